"""What clients and who looks on ask a host agent about its ranks, and have it do to them.

Runs in: the host agent.
Owns: what reads stacks, and what knows of breakpoints, from their first use on.
Invariants: nobody is answered twice; who only looks on is dropped when answered.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from monarch._src.host import report
from monarch._src.host.owner import AgentOwner
from monarch._src.host.state.host import Host
from monarch._src.host.state.procs import ProcState
from monarch._src.host.status_board import Board
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import (
    AnyMessage,
    AskBridge,
    AskDebugger,
    BridgeBytes,
    BridgeSet,
    BrokeIn,
    Debugged,
    ListPaused,
    ReadStacks,
    Signalled,
    SignalProcs,
    Snapshot,
    Snapshotted,
    StacksRead,
)

if TYPE_CHECKING:
    from monarch._src.debug.agent_part import DebugService
    from monarch._src.observe.stacks.py_spy import Looks


class AgentRequests:
    """The questions to one agent."""

    def __init__(
        self,
        node: Node,
        host: Host,
        tenure: AgentOwner,
        boards: Mapping[int, Board],
        selector: selectors.BaseSelector,
        is_ending: Callable[[], bool],
    ) -> None:
        """`boards`: of its meshes, those to come too. `is_ending`: whether the agent is to end."""
        self._node = node
        self._host = host
        self._tenure = tenure
        self._boards = boards
        self._selector = selector
        self._is_ending = is_ending
        self._looks: Looks | None = None
        self._debugging: DebugService | None = None
        self.handlers: dict[type, Callable[[str, Any, Payload], None]] = {
            Snapshot: self._on_snapshot,
            ReadStacks: self._on_read_stacks,
            SignalProcs: self._on_signal,
            Debugged: self._on_debugging,
            BrokeIn: self._on_debugging,
            ListPaused: self._on_debugging,
            AskDebugger: self._on_debugging,
            AskBridge: self._on_debugging,
            BridgeBytes: self._on_debugging,
            BridgeSet: self._on_debugging,
        }

    def hello(self, proc: str) -> None:
        """A proc has connected."""
        if self._debugging is not None:
            self._debugging.on_proc_connected(proc)

    def gone(self, client: str) -> None:
        """That client is none any more."""
        if self._debugging is not None:
            self._debugging.on_console_gone(client)

    def proc_ended(self, proc: str) -> None:
        """It has, and what waited there."""
        if self._debugging is not None:
            self._debugging.on_proc_ended(proc)

    def looked(self) -> None:
        """All that can be read was handled."""
        if self._debugging is not None:
            self._debugging.on_client_changed()

    def seen(self, message: Snapshot) -> Snapshotted:
        """What the ranks of these meshes do."""
        wanted = message.meshes or list(self._host.meshes)
        found = [self._host.meshes[uid] for uid in wanted if uid in self._host.meshes]
        now = time.monotonic()
        states = [report.mesh_state(mesh, self._boards[mesh.uid], now) for mesh in found]
        if self._debugging is not None:
            self._debugging.mark_paused(states)
        return Snapshotted(message.request, states, self._is_ending())

    def _on_snapshot(self, peer: str, message: Snapshot, _payload: Payload) -> None:
        self._node.send(peer, self.seen(message))
        if peer.startswith(OBSERVER):  # it was here for that
            self._node.drop(peer)

    def _on_read_stacks(self, peer: str, message: ReadStacks, _payload: Payload) -> None:
        if self._looks is None:
            from monarch._src.observe.stacks.py_spy import (
                Looks,  # an agent that is never asked goes without
            )

            self._looks = Looks(self._selector, self._answer_stacks)
        asked = message.meshes or [(uid, list[int]()) for uid in self._host.meshes]
        now = time.monotonic()
        jobs = [
            report.to_look_into(self._host.meshes[uid], self._boards[uid], ranks, message.idle, now)
            for uid, ranks in asked
            if uid in self._host.meshes
        ]
        self._looks.ask(peer, message.request, jobs, full=message.full, timeout_s=message.timeout_s)

    def _on_signal(self, peer: str, message: SignalProcs, _payload: Payload) -> None:
        mesh = self._host.meshes.get(message.mesh)
        reached: list[int] = []
        problem = ""
        if mesh is None:
            problem = "there is no such mesh on this host"
        elif peer not in (self._tenure.client_now, mesh.spec.owner):
            problem = f"{peer} neither owns it nor is the client of this session"
        else:
            for rank in message.ranks:
                proc = mesh.at(rank)
                # A pid that has not been reaped belongs to nobody else.
                if proc is not None and proc.pid and proc.state is not ProcState.ENDED:
                    try:
                        os.kill(proc.pid, message.number)
                    except ProcessLookupError:
                        continue
                    except OSError as error:
                        problem = f"signal {message.number}: {error.strerror}"
                        break
                    reached.append(rank)
            text = ", ".join(map(str, reached))
            self._tenure.note(
                "kill", peer, mesh=mesh.spec.name, ranks=text, signal=str(message.number)
            )
        self._node.send(peer, Signalled(message.request, reached, problem))

    def _on_debugging(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        if self._debugging is None:
            from monarch._src.debug.agent_part import (
                DebugService,  # nor does one without breakpoints
            )

            tenure = self._tenure
            self._debugging = DebugService(
                self._node, self._host, lambda: tenure.client_now, tenure.note
            )
        self._debugging.handlers[type(message)](peer, message, payload)

    def _answer_stacks(self, peer: str, answer: StacksRead) -> None:
        self._node.send(peer, answer)
        if peer.startswith(OBSERVER):
            self._node.drop(peer)
