"""Answers requests of clients and observers about the procs of this host, and signals procs.

Runs in: the host agent.
Invariants: every request gets one answer; an observer is dropped once it has been answered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch._src.host import report
from monarch._src.host.parts import AgentView, Handlers, Parts
from monarch._src.host.state.host import Action
from monarch._src.host.state.procs import Mesh, ProcState
from monarch._src.host.zygote_pool import ZygotePool
from monarch._src.system.hardware import nvidia_devices
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import (
    RanksRestarting,
    RestartRanks,
    RestartsSet,
    SetRestarts,
    Signalled,
    SignalProcs,
    Snapshot,
    Snapshotted,
)

if TYPE_CHECKING:
    from monarch._src.system.nvml import GpuMonitor, GpuUse


class AgentRequests:
    """The requests to one agent."""

    def __init__(
        self,
        agent: AgentView,
        parts: Parts,
        zygotes: ZygotePool,
        is_ending: Callable[[], bool],
        do: Callable[[Sequence[Action]], None],
    ) -> None:
        """`is_ending` tells whether the agent has been told to end; `do` carries out actions."""
        self._do = do
        self._zygotes = zygotes
        self._node = agent.node
        self._host = agent.host
        self._owner = agent.owner
        self._boards = agent.boards
        self._parts = parts
        self._is_ending = is_ending
        self._has_gpus = nvidia_devices() > 0
        self._gpus: GpuMonitor | None = None
        self.handlers: Handlers = {
            Snapshot: self._on_snapshot,
            SignalProcs: self._on_signal,
            SetRestarts: self._on_set_restarts,
            RestartRanks: self._on_restart_ranks,
        }

    def snapshot(self, message: Snapshot) -> Snapshotted:
        """The state of these meshes and of their ranks; of all meshes if the request names none."""
        wanted = message.meshes or list(self._host.meshes)
        found = [self._host.meshes[uid] for uid in wanted if uid in self._host.meshes]
        now = time.monotonic()
        gpus = self._gpu_use()
        states = [report.mesh_state(mesh, self._boards[mesh.uid], now, gpus) for mesh in found]
        self._parts.amend_snapshot(states)
        return Snapshotted(
            message.request, states, self._is_ending(), self._zygotes.importing,
            self._zygotes.given_up,
        )  # fmt: skip

    def _gpu_use(self) -> dict[int, GpuUse] | None:
        if not self._has_gpus:
            return None
        if self._gpus is None:
            from monarch._src.system.nvml import GpuMonitor  # few hosts have devices

            self._gpus = GpuMonitor()
        return self._gpus.use()

    def _on_snapshot(self, peer: str, message: Snapshot, _payload: Payload) -> None:
        self._node.send(peer, self.snapshot(message))
        if peer.startswith(OBSERVER):  # an observer connects for one question
            self._node.drop(peer)

    def _on_signal(self, peer: str, message: SignalProcs, _payload: Payload) -> None:
        mesh = self._host.meshes.get(message.mesh)
        reached: list[int] = []
        problem = self._refusal(peer, mesh)
        if mesh is not None and not problem:
            send = os.killpg if message.group else os.kill  # each proc leads a group
            for rank in message.ranks:
                proc = mesh.at(rank)
                # The kernel reuses no pid before its process has been reaped.
                if proc is not None and proc.pid and proc.state is not ProcState.ENDED:
                    try:
                        send(proc.pid, message.number)
                    except ProcessLookupError:
                        continue
                    except OSError as error:
                        problem = f"signal {message.number}: {error.strerror}"
                        break
                    reached.append(rank)
            text = ", ".join(map(str, reached))
            self._owner.note(
                "kill", peer, mesh=mesh.spec.name, ranks=text, signal=str(message.number)
            )
        self._node.send(peer, Signalled(message.request, reached, problem))

    def _on_set_restarts(self, peer: str, message: SetRestarts, _payload: Payload) -> None:
        mesh = self._host.meshes.get(message.mesh)
        problem = self._refusal(peer, mesh)
        if mesh is not None and not problem and not mesh.set_restart_rule(message.rule):
            problem = "it was spawned without restarts"
        self._node.send(peer, RestartsSet(message.request, problem))

    def _on_restart_ranks(self, peer: str, message: RestartRanks, _payload: Payload) -> None:
        mesh = self._host.meshes.get(message.mesh)
        answer = RanksRestarting(message.request, [], self._refusal(peer, mesh))
        if mesh is not None and not answer.problem:
            now = time.monotonic()
            try:
                actions = self._host.restart_requested(
                    message.mesh, message.ranks, message.grace_s, now
                )
            except ValueError as error:
                answer.problem = str(error)
            else:
                text = ", ".join(map(str, message.ranks))
                self._owner.note("restart", peer, mesh=mesh.spec.name, ranks=text)
                self._do(actions)
                answer.lives = [
                    (proc.rank, proc.life + proc.asked_again)
                    for proc in map(mesh.at, message.ranks)
                    if proc is not None
                ]
        self._node.send(peer, answer)

    def _refusal(self, peer: str, mesh: Mesh | None) -> str:
        """Why that peer may not change the procs of that mesh, or an empty text."""
        if mesh is None:
            return "there is no such mesh on this host"
        if peer not in (self._owner.client_now, mesh.spec.owner):
            return f"{peer} neither owns it nor is the client of this session"
        return ""
