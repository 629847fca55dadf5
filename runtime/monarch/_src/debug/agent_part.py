"""The host agent's part of the debugger: check requests, and relay them to ranks and back.

Runs in: the host agent, on its only thread; loaded on the first breakpoint or the first request.
`debug.state.sessions` and `debug.dap.state.bridges` make the decisions.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Sequence

import msgspec

from monarch._src.debug.dap.state import bridges
from monarch._src.debug.dap.state.bridges import BridgeTable
from monarch._src.debug.state.sessions import (
    Action,
    AnswerConsole,
    DebugTable,
    NotifyWatchers,
    Place,
    SendToRank,
)
from monarch._src.host.parts import AgentView, Handlers, Part
from monarch._src.host.state.procs import Mesh, Proc, ProcState
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import DEBUGGER, OBSERVER, parse_proc_node
from monarch._src.wire.messages import (
    AskBridge,
    AskDebugger,
    BreakIn,
    BridgeAnswered,
    BridgeBytes,
    BridgeSet,
    BrokeIn,
    Debugged,
    DebuggerAnswered,
    KeepFailures,
    ListPaused,
    MeshState,
    PausedListed,
    PausedMesh,
    RankPaused,
)
from monarch._src.wire.messages.debugger import (
    ATTACH,
    BREAK,
    COMMAND,
    COMPLETE,
    DROP,
    ENDED,
    KEEP,
    KEEP_ALL,
    RELEASE,
    SOURCE,
)

log = logging.getLogger("monarch.agent")
ACTIONS = {
    ATTACH: "attach", RELEASE: "release", COMMAND: "command", COMPLETE: "complete",
    SOURCE: "source", BREAK: "break in", KEEP: "pause failures", DROP: "pause no failures",
    KEEP_ALL: "pause failures, of bystanders too",
}  # fmt: skip


class DebugService(Part):
    """Drives a `DebugTable` and a `BridgeTable`."""

    def __init__(self, agent: AgentView) -> None:
        self._write_audit = agent.owner.note
        self._node = agent.node
        self._host = agent.host
        self._owner = agent.owner
        self._notified_client = agent.owner.client_now
        self._table = DebugTable()
        self._bridges = BridgeTable()
        self._post_mortem = KeepFailures(False)  # whether failing endpoints are paused
        self._consoles: set[str] = set()  # terminals that have sent a request
        self._numbers = itertools.count(1)
        # Ranks asked to break in, by request number: console, its request, place.
        self._breaking: dict[int, tuple[str, int, Place]] = {}
        self.handlers: Handlers = {
            Debugged: self._on_debugged,
            BrokeIn: self._on_broke_in,
            ListPaused: self._on_list,
            AskDebugger: self._on_ask,
            AskBridge: self._on_ask_bridge,
            BridgeBytes: self._on_bridge_bytes,
            BridgeSet: self._on_bridge_set,
        }

    # --- from procs -------------------------------------------------------------------------------

    def _on_debugged(self, peer: str, message: Debugged, _payload: Payload) -> None:
        place = parse_proc_node(peer)
        proc = self._host.proc(peer)
        if place is not None and proc is not None and proc.state is not ProcState.ENDED:
            editor = self._bridges.console_of(place)
            self._perform(self._table.on_reported(place, message, time.monotonic(), editor))

    def _on_broke_in(self, peer: str, message: BrokeIn, _payload: Payload) -> None:
        asked = self._breaking.get(message.request)
        if asked is not None and parse_proc_node(peer) == asked[2]:
            del self._breaking[message.request]
            self._answer(asked, str(message.threads), message.problem)

    def on_proc_connected(self, proc: str) -> None:
        """A proc has connected: send it pending bridges and the post-mortem setting."""
        place = parse_proc_node(proc)
        if place is not None:
            self._perform_bridge(self._bridges.on_proc_connected(place))
        if self._post_mortem.on:
            self._node.send(proc, self._post_mortem)

    def on_proc_ended(self, proc: str) -> None:
        """A proc has ended: answer the requests that wait for it."""
        self.on_client_gone(proc)
        place = parse_proc_node(proc)
        if place is None:
            return
        self._perform(self._table.on_proc_ended(place))
        self._perform_bridge(self._bridges.on_proc_ended(place))
        for number, asked in list(self._breaking.items()):
            if asked[2] == place:
                del self._breaking[number]
                self._answer(asked, "0", "its process has ended")

    # --- from consoles ----------------------------------------------------------------------------

    def _on_list(self, peer: str, message: ListPaused, _payload: Payload) -> None:
        self._release_dead_terminals()
        now = time.monotonic()
        wanted = message.meshes or [(uid, list[int]()) for uid in self._host.meshes]
        found: list[PausedMesh] = []
        for uid, ranks in wanted:
            mesh = self._host.meshes.get(uid)
            sessions = self._table.listed(uid, ranks or None, now)
            if mesh is not None and sessions:
                spec = mesh.spec
                found.append(PausedMesh(uid, spec.name, spec.labels, spec.sizes, sessions))
        self._node.send(peer, PausedListed(message.request, found, self._post_mortem.on))
        if peer.startswith(OBSERVER):  # observers send one request
            self._node.drop(peer)

    def _on_ask(self, peer: str, message: AskDebugger, _payload: Payload) -> None:
        self._release_dead_terminals()
        why = self._refusal(peer, [mesh for mesh, _, _ in message.targets])
        self._audit(peer, message, why)
        if why:
            for target in message.targets or [(0, 0, 0)]:
                answer = DebuggerAnswered(message.request, *target, ENDED, "", "", None, why)
                self._node.send(peer, answer)
            if peer.startswith(OBSERVER):
                self._node.drop(peer)
            return
        if peer.startswith(DEBUGGER):
            self._consoles.add(peer)
        if message.what in (KEEP, KEEP_ALL, DROP):
            all_ones = message.what == KEEP_ALL
            self._set_post_mortem(KeepFailures(all_ones or message.what == KEEP, all_ones))
            self._answer((peer, message.request, (0, 0)), "", "")
        elif message.what == BREAK:
            for mesh, rank, _ in message.targets:
                self._break_in(peer, message.request, (mesh, rank))
        else:
            self._perform(self._table.on_request(peer, message))

    def _audit(self, peer: str, message: AskDebugger, why: str) -> None:
        """Audit the request, without the command text, which may contain secrets."""
        for uid in sorted({mesh for mesh, _, _ in message.targets} or {0}):
            mesh = self._host.meshes.get(uid)
            facts = {
                "mesh": "" if mesh is None else mesh.spec.name,
                "ranks": ", ".join(sorted({str(r) for m, r, _ in message.targets if m == uid})),
                "action": ACTIONS.get(message.what, str(message.what)),
            }
            if why:
                self._write_audit("refused", peer, why=why, **facts)
            else:
                self._write_audit("debug", peer, **facts)

    def _refusal(self, peer: str, meshes: Iterable[int]) -> str:
        """Why `peer` may not debug these meshes; empty if it may."""
        if peer == self._owner.client_now or peer.startswith(DEBUGGER):
            return ""
        if parse_proc_node(peer) is None:
            return f"{peer} is an observer and may not debug; use the client or `monarch debug`"
        owned = {mesh.uid for mesh in self._host.meshes.values() if mesh.spec.owner == peer}
        return "" if owned.issuperset(meshes) else f"{peer} does not own that mesh"

    def _set_post_mortem(self, wanted: KeepFailures) -> None:
        self._post_mortem = wanted
        for mesh in self._host.meshes.values():
            self._node.forward(_living(mesh), wanted, Payload(b""))

    def _break_in(self, console: str, request: int, place: Place) -> None:
        proc = self._proc_at(place)
        number = next(self._numbers)
        asked = (console, request, place)
        if proc is None or proc.state is ProcState.ENDED or not proc.said_hello:
            self._answer(asked, "0", "the rank has no process, or it has not started")
            return
        self._breaking[number] = asked
        self._node.send(proc.node, BreakIn(number))

    # --- bridges ----------------------------------------------------------------------------------

    def _on_ask_bridge(self, peer: str, message: AskBridge, _payload: Payload) -> None:
        self._release_dead_terminals()
        why = self._refusal(peer, [mesh for mesh, _ in message.targets])
        if peer.startswith(DEBUGGER):
            self._consoles.add(peer)
        reachable: list[Place] = []
        for target in message.targets:
            problem = why or self._unreachable(target)
            if message.opens and not problem:
                problem = self._held_problem(target, peer)
            if problem:
                self._node.send(peer, BridgeAnswered(message.request, *target, 0, problem))
            else:
                reachable.append(target)
        self._perform_bridge(
            self._bridges.on_request(peer, msgspec.structs.replace(message, targets=reachable))
        )
        if peer.startswith(OBSERVER):
            self._node.drop(peer)

    def _unreachable(self, place: Place) -> str:
        proc = self._proc_at(place)
        ended = proc is None or proc.state is ProcState.ENDED
        return "the rank has no process" if ended else ""

    def _held_problem(self, place: Place, peer: str) -> str:
        holder = "" if self._bridges.console_of(place) else self._table.holder_at(place, peer)
        return f"{holder} is attached to it; `detach` there first" if holder else ""

    def _on_bridge_bytes(self, peer: str, message: BridgeBytes, _payload: Payload) -> None:
        place = parse_proc_node(peer)
        if place is not None and not message.mesh:  # from the debugger of that proc
            self._perform_bridge(self._bridges.on_rank_bytes(place, message))
        else:
            self._perform_bridge(self._bridges.on_console_bytes(peer, message))

    def _on_bridge_set(self, peer: str, message: BridgeSet, _payload: Payload) -> None:
        place = parse_proc_node(peer)
        if place is not None:
            self._perform_bridge(self._bridges.on_bridge_set(place, message))

    def _perform_bridge(self, actions: Sequence[bridges.Action]) -> None:
        for action in actions:
            if isinstance(action, bridges.Notify):
                self._node.send(action.console, action.message)
                continue
            proc = self._proc_at(action.place)
            if proc is not None and proc.said_hello:
                self._node.send(proc.node, action.message)

    def on_client_gone(self, client: str) -> None:
        """A console has disconnected: release the ranks that it holds."""
        self._table.on_console_gone(client)
        self._perform_bridge(self._bridges.on_console_gone(client))

    def _release_dead_terminals(self) -> None:
        """Release the ranks of terminals whose pipe has ended, such as killed ones."""
        now = time.monotonic()
        for console in list(self._consoles):
            if self._node.has_received_all(console, now):
                self._consoles.discard(console)
                self.on_client_gone(console)
                self._node.drop(console)

    # --- for clients and snapshots ----------------------------------------------------------------

    def after_poll(self) -> None:
        """If a new client has attached, send it the paused ranks."""
        client = self._owner.client_now
        if client != self._notified_client:
            self._notified_client = client
            for message in self._table.pause_notices() if client else ():
                self._node.send(client, message)

    def amend_snapshot(self, states: Sequence[MeshState]) -> None:
        """Mark paused ranks in a snapshot."""
        if not self._table:
            return
        now = time.monotonic()
        for mesh in states:
            for rank in mesh.ranks:
                session = self._table.paused_at((mesh.mesh, rank.rank))
                if session is not None and rank.state in ("busy", "idle"):
                    at = session.at
                    rank.state, rank.since_s = "paused", now - session.since
                    rank.actor, rank.endpoint = at.actor_class, at.endpoint or at.function
                    rank.function, rank.filename, rank.line = at.function, at.filename, at.line

    # --- inside -----------------------------------------------------------------------------------

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case AnswerConsole(console, message):
                    if console:
                        self._node.send(console, message)
                case SendToRank(place, message):
                    proc = self._proc_at(place)
                    if proc is not None:
                        self._node.send(proc.node, message)
                case NotifyWatchers(place, message):
                    self._notify_watchers(place, message)

    def _notify_watchers(self, place: Place, message: RankPaused) -> None:
        proc = self._proc_at(place)
        if proc is None:
            return
        watching = self._host.watchers(proc.node) | {self._owner.client_now}
        for node in sorted(watching - {""}):
            self._node.send(node, message)

    def _proc_at(self, place: Place) -> Proc | None:
        mesh = self._host.meshes.get(place[0])
        return None if mesh is None else mesh.at(place[1])

    def _answer(self, asked: tuple[str, int, Place], text: str, problem: str) -> None:
        console, request, place = asked
        answer = DebuggerAnswered(request, *place, 0, ENDED, text, "", None, problem)
        self._node.send(console, answer)


def _living(mesh: Mesh) -> list[str]:
    return [proc.node for proc in mesh.procs if proc.said_hello and proc.state is not _ENDED]


_ENDED = ProcState.ENDED
