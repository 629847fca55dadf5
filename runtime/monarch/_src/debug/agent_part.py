"""The host agent's part in debugging: who may ask, what goes to which rank and back.

Runs in: the host agent, on its one thread; loaded with the first breakpoint or the first question.
What follows from what, `debug.state.sessions` decides.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from monarch._src.debug.dap.state import bridges
from monarch._src.debug.dap.state.bridges import BridgeTable
from monarch._src.debug.state.sessions import Action, Answer, Command, DebugTable, Notify, Place
from monarch._src.host.state.host import Host
from monarch._src.host.state.procs import Mesh, Proc, ProcState
from monarch._src.net.node import Node
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
    RELEASE,
    SOURCE,
)

log = logging.getLogger("monarch.agent")
ACTIONS = {
    ATTACH: "attach", RELEASE: "release", COMMAND: "command", COMPLETE: "complete",
    SOURCE: "source", BREAK: "break in", KEEP: "pause failures", DROP: "pause no failures",
}  # fmt: skip


class DebugService:
    """The driver of one `DebugTable`. `client` says who holds the session now."""

    def __init__(
        self,
        node: Node,
        host: Host,
        client: Callable[[], str],
        note: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        """`note` writes down what an operator does: what, who, facts."""
        self._note = note
        self._node = node
        self._host = host
        self._client = client
        self._told = client()  # the client that knows what is paused
        self._table = DebugTable()
        self._bridges = BridgeTable()
        self._keeps = False  # whether failing endpoints are paused
        self._consoles: set[str] = set()  # terminals that have asked something
        self._numbers = itertools.count(1)
        # Questions to ranks whether they can be interrupted: who asked what, about which place.
        self._breaking: dict[int, tuple[str, int, Place]] = {}
        self.handlers: dict[type, Callable[[str, Any, Payload], None]] = {
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
            self._do(self._table.told(place, message, time.monotonic(), editor))

    def _on_broke_in(self, peer: str, message: BrokeIn, _payload: Payload) -> None:
        asked = self._breaking.get(message.request)
        if asked is not None and parse_proc_node(peer) == asked[2]:
            del self._breaking[message.request]
            self._say(asked, str(message.threads), message.problem)

    def hello(self, node: str) -> None:
        """A proc is there."""
        place = parse_proc_node(node)
        if place is not None:
            self._pass(self._bridges.begun(place))
        if self._keeps:
            self._node.send(node, KeepFailures(True))

    def proc_ended(self, node: str) -> None:
        """That process is gone."""
        self.gone(node)
        place = parse_proc_node(node)
        if place is None:
            return
        self._do(self._table.proc_ended(place))
        self._pass(self._bridges.proc_ended(place))
        for number, asked in list(self._breaking.items()):
            if asked[2] == place:
                del self._breaking[number]
                self._say(asked, "0", "its process has ended")

    # --- from consoles ----------------------------------------------------------------------------

    def _on_list(self, peer: str, message: ListPaused, _payload: Payload) -> None:
        self._look_for_gone()
        now = time.monotonic()
        wanted = message.meshes or [(uid, list[int]()) for uid in self._host.meshes]
        found: list[PausedMesh] = []
        for uid, ranks in wanted:
            mesh = self._host.meshes.get(uid)
            sessions = self._table.listed(uid, ranks or None, now)
            if mesh is not None and sessions:
                spec = mesh.spec
                found.append(PausedMesh(uid, spec.name, spec.labels, spec.sizes, sessions))
        self._node.send(peer, PausedListed(message.request, found, self._keeps))
        if peer.startswith(OBSERVER):  # it was here for that
            self._node.drop(peer)

    def _on_ask(self, peer: str, message: AskDebugger, _payload: Payload) -> None:
        self._look_for_gone()
        why = self._refusal(peer, [mesh for mesh, _, _ in message.targets])
        self._write_down(peer, message, why)
        if why:
            for target in message.targets or [(0, 0, 0)]:
                answer = DebuggerAnswered(message.request, *target, ENDED, "", "", None, why)
                self._node.send(peer, answer)
            if peer.startswith(OBSERVER):
                self._node.drop(peer)
            return
        if peer.startswith(DEBUGGER):
            self._consoles.add(peer)
        if message.what in (KEEP, DROP):
            self._keep(message.what == KEEP)
            self._say((peer, message.request, (0, 0)), "", "")
        elif message.what == BREAK:
            for mesh, rank, _ in message.targets:
                self._break_in(peer, message.request, (mesh, rank))
        else:
            self._do(self._table.asked(peer, message))

    def _write_down(self, peer: str, message: AskDebugger, why: str) -> None:
        """Not what is said to a rank: it could hold what is nobody's business."""
        for uid in sorted({mesh for mesh, _, _ in message.targets} or {0}):
            mesh = self._host.meshes.get(uid)
            facts = {
                "mesh": "" if mesh is None else mesh.spec.name,
                "ranks": ", ".join(sorted({str(r) for m, r, _ in message.targets if m == uid})),
                "action": ACTIONS.get(message.what, str(message.what)),
            }
            if why:
                self._note("refused", peer, why=why, **facts)
            else:
                self._note("debug", peer, **facts)

    def _refusal(self, peer: str, meshes: Iterable[int]) -> str:
        """Why that node may not say what ranks do; empty if it may."""
        if peer == self._client() or peer.startswith(DEBUGGER):
            return ""
        if parse_proc_node(peer) is None:
            return f"{peer} may look on and not debug; `monarch debug` and the client may"
        owned = {mesh.uid for mesh in self._host.meshes.values() if mesh.spec.owner == peer}
        return "" if owned.issuperset(meshes) else f"{peer} does not own that mesh"

    def _keep(self, on: bool) -> None:
        self._keeps = on
        for mesh in self._host.meshes.values():
            self._node.forward(_living(mesh), KeepFailures(on), Payload(b""))

    def _break_in(self, console: str, request: int, place: Place) -> None:
        proc = self._proc_at(place)
        number = next(self._numbers)
        asked = (console, request, place)
        if proc is None or proc.state is ProcState.ENDED or not proc.said_hello:
            self._say(asked, "0", "there is no process, or it has not begun")
            return
        self._breaking[number] = asked
        self._node.send(proc.node, BreakIn(number))

    # --- bridges ----------------------------------------------------------------------------------

    def _on_ask_bridge(self, peer: str, message: AskBridge, _payload: Payload) -> None:
        self._look_for_gone()
        why = self._refusal(peer, [mesh for mesh, _ in message.targets])
        if peer.startswith(DEBUGGER):
            self._consoles.add(peer)
        reachable: list[Place] = []
        for target in message.targets:
            problem = why or self._unreachable(target)
            if message.opens and not problem:
                problem = self._held(target, peer)
            if problem:
                self._node.send(peer, BridgeAnswered(message.request, *target, 0, problem))
            else:
                reachable.append(target)
        self._pass(self._bridges.asked(peer, msgspec.structs.replace(message, targets=reachable)))
        if peer.startswith(OBSERVER):
            self._node.drop(peer)

    def _unreachable(self, place: Place) -> str:
        proc = self._proc_at(place)
        ended = proc is None or proc.state is ProcState.ENDED
        return "there is no process" if ended else ""

    def _held(self, place: Place, peer: str) -> str:
        holder = "" if self._bridges.console_of(place) else self._table.holder_at(place, peer)
        return f"{holder} has attached to it; `detach` there first" if holder else ""

    def _on_bridge_bytes(self, peer: str, message: BridgeBytes, _payload: Payload) -> None:
        place = parse_proc_node(peer)
        if place is not None and not message.mesh:  # of its own bridge
            self._pass(self._bridges.answered(place, message))
        else:
            self._pass(self._bridges.said(peer, message))

    def _on_bridge_set(self, peer: str, message: BridgeSet, _payload: Payload) -> None:
        place = parse_proc_node(peer)
        if place is not None:
            self._pass(self._bridges.told(place, message))

    def _pass(self, actions: Sequence[bridges.Action]) -> None:
        for action in actions:
            if isinstance(action, bridges.Notify):
                self._node.send(action.console, action.message)
                continue
            proc = self._proc_at(action.place)
            if proc is not None and proc.said_hello:
                self._node.send(proc.node, action.message)

    def gone(self, console: str) -> None:
        """That node is no client, or no process, any more."""
        self._table.console_gone(console)
        self._pass(self._bridges.console_gone(console))

    def _look_for_gone(self) -> None:
        """Terminals say no good-bye when they are killed; their pipe ends."""
        now = time.monotonic()
        for console in list(self._consoles):
            if self._node.has_received_all(console, now):
                self._consoles.discard(console)
                self.gone(console)
                self._node.drop(console)

    # --- what others see --------------------------------------------------------------------------

    def looked(self) -> None:
        """Tell the next client, if there is one, what is paused."""
        client = self._client()
        if client != self._told:
            self._told = client
            for message in self._table.told_anew() if client else ():
                self._node.send(client, message)

    def show(self, states: Sequence[MeshState]) -> None:
        """Enter what is paused into a snapshot."""
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

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Answer(console, message):
                    if console:
                        self._node.send(console, message)
                case Command(place, message):
                    proc = self._proc_at(place)
                    if proc is not None:
                        self._node.send(proc.node, message)
                case Notify(place, message):
                    self._tell(place, message)

    def _tell(self, place: Place, message: RankPaused) -> None:
        proc = self._proc_at(place)
        if proc is None:
            return
        watching = self._host.watchers(proc.node) | {self._client()}
        for node in sorted(watching - {""}):
            self._node.send(node, message)

    def _proc_at(self, place: Place) -> Proc | None:
        mesh = self._host.meshes.get(place[0])
        return None if mesh is None else mesh.at(place[1])

    def _say(self, asked: tuple[str, int, Place], text: str, problem: str) -> None:
        console, request, place = asked
        answer = DebuggerAnswered(request, *place, 0, ENDED, text, "", None, problem)
        self._node.send(console, answer)


def _living(mesh: Mesh) -> list[str]:
    return [proc.node for proc in mesh.procs if proc.said_hello and proc.state is not _ENDED]


_ENDED = ProcState.ENDED
