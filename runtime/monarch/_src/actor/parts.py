"""The features of higher packages that a process and its meshes call.

Runs in: any process with a runtime, on any thread.
Invariants: neither this package nor `mesh` imports such a feature. `monarch._src.programs.parts`
has the calls; it sets them before the process has a runtime, and imports each feature when it is
first called. So a process that nobody debugs does not load the debugger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

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


class Parts(Protocol):
    """A method for each feature.

    Where higher packages have the class, a type is Any: `run` is the `Runtime` of this process, and
    `procs` a `ProcMesh`.
    """

    # Of the runtime. All but the first are called on the receiving thread.

    def begin_history(self) -> None:
        """Switch history on if the settings say so. Called when the process gets its node."""
        ...

    def set_history(self, message: SetHistory) -> None:
        """Switch history on or off."""
        ...

    def read_calls(self, run: Any, peer: str, message: ReadCalls) -> None:
        """Answer a reader of a timeline."""
        ...

    def read_table(self, run: Any, message: ReadTable) -> TableRead:
        """The rows of this process that a query wants."""
        ...

    def endpoint_waits(self, run: Any) -> list[EndpointWait]:
        """The waits of this process, longest first."""
        ...

    def debug(
        self,
        run: Any,
        message: DebugCommand | KeepFailures | BreakIn | SetBridge | BridgeBytes,
    ) -> None:
        """Handle a message of a console or an editor."""
        ...

    # Of users' objects. Called on the thread of the user.

    def proc_of(self, ref: Any, node: str) -> Any:
        """The process of that node as a ProcMesh; without a reference, the calling process."""
        ...

    def mesh_of(self, ref: Any) -> Any:
        """The whole ProcMesh of a reference; without one, the calling process."""
        ...

    def init_process_group(
        self, procs: Any, backend: str | None, timeout: float | timedelta | None
    ) -> None:
        """See `ProcMesh.init_process_group`."""
        ...

    def remake_process_groups(self, procs: Any, ranks: Sequence[int]) -> Awaitable[list[str]]:
        """Make the groups again that had these restarted ranks; lines about those it could not."""
        ...

    def device_mesh(self, procs: Any, backend: str | None) -> Any:
        """See `ProcMesh.device_mesh`."""
        ...

    def activate(self, procs: Any, device: Any) -> Any:
        """See `ProcMesh.activate`."""
        ...

    def deactivate(self, procs: Any) -> None:
        """See `ProcMesh.deactivate`."""
        ...

    def process_group(self, procs: Any, dims: str | Sequence[str], timeout: float | str) -> Any:
        """See `ProcMesh.process_group`."""
        ...

    def rank_tensor(self, procs: Any, dim: str) -> Any:
        """See `ProcMesh.rank_tensor`."""
        ...

    # Of trainings.

    def stacks_text(self, procs: Any, timeout_s: float) -> str:
        """The stacks of the ranks of a mesh or slice, or why they cannot be read."""
        ...


_parts: Parts | None = None


def set_parts(parts: Parts) -> None:
    """Set the features of this process. Called by `programs.parts`."""
    global _parts
    _parts = parts


def parts() -> Parts:
    """The features of this process.

    Raises:
        RuntimeError: they have not been set.
    """
    if _parts is None:
        raise RuntimeError("the runtime of this process is not complete; import monarch.actor")
    return _parts
