"""Plugs the features of higher packages into the runtime of a process.

Runs in: every client (`programs.client`) and every proc (`programs.proc`), before its runtime
begins. The agent has a table of its own (`programs.agent`).
Invariants: each feature is imported when it is first used. A process that has no use for torch, the
debugger or telemetry loads none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch._src.actor.parts import set_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from datetime import timedelta

    from monarch._src.wire.messages import (
        BreakIn,
        BridgeBytes,
        DebugCommand,
        EndpointWait,
        KeepFailures,
        ReadCalls,
        ReadTable,
        SetBridge,
        SetHistory,
        TableRead,
    )


def plug_in() -> None:
    """Set the features of this process. Idempotent."""
    set_parts(_Parts())


class _Parts:
    """See `actor.parts.Parts`."""

    def begin_history(self) -> None:
        from monarch._src.telemetry.history import switch

        switch.begin()

    def set_history(self, message: SetHistory) -> None:
        from monarch._src.telemetry.history import switch

        switch.on_set_history(message)

    def read_calls(self, run: Any, peer: str, message: ReadCalls) -> None:
        from monarch._src.observe.timeline.rank_part import read_calls

        read_calls(run, peer, message)

    def read_table(self, run: Any, message: ReadTable) -> TableRead:
        from monarch._src.telemetry.sql.process_rows import read_table

        return read_table(run, message)

    def endpoint_waits(self, run: Any) -> list[EndpointWait]:
        from monarch._src.observe.stacks.rank_part import endpoint_waits

        return endpoint_waits(run)

    def debug(
        self,
        run: Any,
        message: DebugCommand | KeepFailures | BreakIn | SetBridge | BridgeBytes,
    ) -> None:
        from monarch._src.debug.rank_part import on_message

        on_message(run, message)

    def proc_of(self, ref: Any, node: str) -> Any:
        from monarch._src.mesh.meshes import proc_of

        return proc_of(ref, node)

    def mesh_of(self, ref: Any) -> Any:
        from monarch._src.mesh.meshes import mesh_of

        return mesh_of(ref)

    def sync_workspace(self, hosts: Any, workspace: Any, reload: bool) -> Any:
        from monarch._src.workspace.sync import sync_workspace

        return sync_workspace(hosts, workspace, reload=reload)

    def init_process_group(
        self, procs: Any, backend: str | None, timeout: float | timedelta | None
    ) -> None:
        from monarch._src.spmd.process_group import init_process_group

        init_process_group(procs, backend, timeout)

    def remake_process_groups(self, procs: Any, ranks: Sequence[int]) -> Awaitable[list[str]]:
        from monarch._src.spmd.process_group import remake_process_groups

        return remake_process_groups(procs, ranks)

    def device_mesh(self, procs: Any, backend: str | None) -> Any:
        from monarch._src.spmd.process_group import device_mesh

        return device_mesh(procs, backend)

    def activate(self, procs: Any, device: Any) -> Any:
        from monarch._src.tensor.api import activate

        return activate(procs, device)

    def deactivate(self, procs: Any) -> None:
        from monarch._src.tensor.api import deactivate

        deactivate(procs)

    def process_group(self, procs: Any, dims: str | Sequence[str], timeout: float | str) -> Any:
        from monarch._src.tensor.api import process_group

        return process_group(procs, dims, timeout)

    def rank_tensor(self, procs: Any, dim: str) -> Any:
        from monarch._src.tensor.api import rank_tensor

        return rank_tensor(procs, dim)

    def stacks_text(self, procs: Any, timeout_s: float) -> str:
        from monarch._src.observe.stacks.query import stacks_text

        return stacks_text(procs, timeout_s)
