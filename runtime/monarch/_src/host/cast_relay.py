"""The host agent's part in casts: passes them on, gathers the answers.

Runs in: the host agent, on its one thread. What is owed to whom, `host.state.cast_relay` decides;
which other hosts are passed what, `host.state.cast_tree`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

import msgspec

from monarch._src.host.state.cast_relay import Answered, CastTable, SendAnswers, packed, unpacked
from monarch._src.host.state.cast_tree import (
    CastOrder,
    Done,
    HostRange,
    Key,
    Stuck,
    TreeRelays,
    cut,
    part_of,
    sites_of,
)
from monarch._src.host.state.host import Action, Host
from monarch._src.host.state.procs import Mesh, Proc, ProcState
from monarch._src.net.node import Node
from monarch._src.shape import NDSlice
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import agent_at, is_agent, parse_proc_node, proc_node
from monarch._src.wire.messages import (
    Answer,
    Answers,
    Cast,
    CastTree,
    TreeDone,
    TreeStuck,
)

log = logging.getLogger("monarch.agent")


class _Early(msgspec.Struct, frozen=True):
    """What was cast to a mesh that is to come."""

    sender: str
    owner: str
    again: Callable[[], list[Action]]


class _Come(msgspec.Struct, frozen=True):
    """A cast that came over the tree. `up`: who has passed it on."""

    up: str
    message: CastTree
    payload: Payload


class CastRelay:
    """All casts over this host."""

    def __init__(self, node: Node, host: Host) -> None:
        self._node = node
        self._host = host
        self._table = CastTable()
        self._watching: dict[int, set[str]] = {}  # by mesh: who casts to it, and is told of ends
        self._early: dict[int, list[_Early]] = {}  # by mesh that is to come
        self._arrivals: dict[tuple[str, int], CastOrder[_Come]] = {}  # by sender and mesh
        self._boughs = TreeRelays()
        self._grown: dict[tuple[str, int], Key] = {}  # by sender and call: it came over the tree

    def cast(self, peer: str, message: Cast, payload: Payload) -> list[Action]:
        """Pass a cast on to its ranks on this host."""
        if message.sender != peer:
            log.warning("%s sent a cast in the name of %s", peer, message.sender)
            return []
        actions = self._watch(message)
        mesh = self._host.meshes.get(message.mesh)
        if mesh is not None:
            self._pass_on(message, payload)
        elif self._host.is_to_come(message.mesh, message.owner):
            self._wait(message, lambda: self.cast(peer, message, payload))
        return actions

    def _wait(self, message: Cast, again: Callable[[], list[Action]]) -> None:
        early = _Early(message.sender, message.owner, again)
        self._early.setdefault(message.mesh, []).append(early)

    def _pass_on(self, message: Cast, payload: Payload, *, tells: bool = False) -> bool:
        """To the ranks of this host; whether they owe answers."""
        living = [proc for proc in self._living(message) if proc is not None]
        ranks = [proc.rank for proc in living]
        owed = self._table.cast(message.sender, message, ranks, tells=tells)
        self._node.forward([proc.node for proc in living], message, payload)
        return owed

    def receivers(self, message: Cast) -> list[str]:
        """By position in its region: the node here that gets a cast, or nothing."""
        return ["" if proc is None else proc.node for proc in self._living(message)]

    def _living(self, message: Cast) -> list[Proc | None]:
        mesh, lives = self._host.meshes.get(message.mesh), dict(message.lives)
        found = [None if mesh is None else mesh.at(rank) for rank in _ranks(message)]
        return [
            proc
            if proc is not None
            and proc.state is not ProcState.ENDED
            and proc.life == lives.get(proc.rank, 0)  # or its sender is about to hear of the end
            else None
            for proc in found
        ]

    # --- over other hosts -------------------------------------------------------------------------

    def tree(self, peer: str, message: CastTree, payload: Payload) -> list[Action]:
        """A cast came that goes over other hosts too."""
        cast = message.cast
        if peer != cast.sender and not is_agent(peer):
            log.warning("%s sent a cast in the name of %s", peer, cast.sender)
            return []
        self._node.link_to(cast.sender, cast.address)
        actions = self._watch(cast)
        mesh = self._host.meshes.get(cast.mesh)
        if mesh is None:
            if self._host.is_to_come(cast.mesh, cast.owner):
                self._wait(cast, lambda: self.tree(peer, message, payload))
            else:  # nothing is left of it here; elsewhere there may be
                parts = cut(HostRange(message.first, message.count).rest, message.fanout)
                missing = tuple(part.first for part in parts)
                self._do([Done(peer, _key(cast), message.first, 0, [], missing)])
            return actions
        lane = (cast.sender, cast.mesh)
        arrivals = self._arrivals.get(lane)
        if arrivals is None:
            arrivals = self._arrivals[lane] = CastOrder()
        again = peer == cast.sender and message.count == 1
        ready = arrivals.came(
            cast.number, message.before[0][1], _Come(peer, message, payload), again=again
        )
        if ready is None and again:
            self._do(self._boughs.asked_again(_key(cast), message.first))
        for come in ready or ():
            self._take(mesh, come)
        return actions

    def _take(self, mesh: Mesh, come: _Come) -> None:
        message, payload = come.message, come.payload
        cast, key = message.cast, _key(message.cast)
        sites = mesh.spec.sites
        block = math.prod(mesh.spec.sizes) // len(sites)
        places = sites_of(cast.region, block, message.without)
        parts = cut(HostRange(message.first, message.count).rest, message.fanout)
        children = {part.first: sites[places[part.first]] for part in parts}
        if message.standing is not None:
            self._boughs.standing(cast.sender, cast.mesh, message.standing, cast.number)
        if cast.call:
            self._grown[cast.sender, cast.call] = key
        owes = self._pass_on(cast, payload, tells=True)
        if not owes:
            self._grown.pop((cast.sender, cast.call), None)
        self._do(self._boughs.taken(key, come.up, message.first, cast.call, children, owes=owes))
        for part in parts:
            before = part_of(message.before, part.first - message.first, part.count)
            below = CastTree(
                part.first, part.count, message.fanout, message.without, before, message.standing,
                cast,
            )  # fmt: skip
            site = children[part.first]
            agent = agent_at(site)
            if not self._node.knows(agent):
                self._node.link_remote(agent, site)
            if not self._node.send(agent, below, payload):
                self._do(self._boughs.host_lost(site))

    def tree_done(self, _peer: str, message: TreeDone, payload: Payload) -> None:
        """Who was passed a cast is done with it."""
        key = (message.sender, message.mesh, message.number)
        answers = list(unpacked(message.runs, payload))
        self._do(
            self._boughs.child_done(
                key, message.place, message.call, answers, message.missing, time.monotonic()
            )
        )

    def site_lost(self, site: str) -> None:
        """Nothing goes to that host from here."""
        self._do(self._boughs.host_lost(site))

    def _do(self, actions: Sequence[Done | Stuck]) -> None:
        for action in actions:
            sender, mesh, number = action.key
            if isinstance(action, Stuck):
                self._node.send(sender, TreeStuck(mesh, number, action.place))
                continue
            runs, payload = packed(action.answers)
            done = TreeDone(sender, mesh, number, action.place, action.call, runs, action.missing)
            # If it is gone, the sender hears of that and asks here itself.
            self._node.send(action.to, done, payload)

    # --- ranks of this host -----------------------------------------------------------------------

    def _watch(self, message: Cast) -> list[Action]:
        """Whoever casts is told of the ends of those that it casts to."""
        if message.sender == message.owner:
            return []
        watching = self._watching.setdefault(message.mesh, set())
        if message.sender in watching:
            return []
        mesh = self._host.meshes.get(message.mesh)
        if mesh is not None:
            watching.add(message.sender)
        ranks = _ranks(message) if mesh is None else mesh.ranks
        # One who casts to a mesh whose procs are restarted has asked for each place before.
        nodes = [proc_node(message.mesh, rank) for rank in ranks] if mesh is None else [
            proc.node for proc in mesh.procs
        ]  # fmt: skip
        return [
            action
            for node in nodes
            for action in self._host.watch_requested(node, message.sender, message.owner)
        ]

    def spawned(self, mesh: int) -> list[Action]:
        """A mesh has come, and perhaps what others had cast to it before."""
        return [action for early in self._early.pop(mesh, ()) for action in early.again()]

    def answered(self, peer: str, message: Answer, payload: Payload) -> None:
        """A rank has answered a cast."""
        place = parse_proc_node(peer)
        if place is not None:
            body = bytes(payload.body)
            rank, position = place[1], message.position
            self._send(
                self._table.answered(
                    message.to, message.call, rank, position, message.status, body,
                    time.monotonic(),
                )
            )  # fmt: skip

    def looked(self) -> None:
        """Everything that could be received has been."""
        self._send(self._table.looked())
        deadline = self.next_deadline()
        if deadline is not None and (now := time.monotonic()) >= deadline:
            self._send(self._table.time_passed(now))
            self._tell(self._boughs.time_passed(now))

    def next_deadline(self) -> float | None:
        """When to look though nothing has come."""
        deadlines = self._table.next_deadline(), self._boughs.next_deadline()
        return min((found for found in deadlines if found is not None), default=None)

    def owes(self, mesh: int, rank: int) -> bool:
        """Whether a call waits for an answer of that rank."""
        return self._table.owes(mesh, rank)

    def ended(self, node: str) -> None:
        """A process is gone; before anybody is told, what was answered leaves."""
        place = parse_proc_node(node)
        if place is not None:
            self._send(self._table.ended(*place), at_once=True)
            self._tell(self._boughs.kept(place[0]))  # it may be on the way up yet
        self.lost(node)

    def _tell(self, held: Sequence[tuple[str, int, list[Answered]]]) -> None:
        """Straight to who called."""
        for to, call, answers in held:
            runs, payload = packed(answers)
            self._node.send(to, Answers(call, runs), payload)

    def lost(self, node: str) -> None:
        """A process that may have cast is gone."""
        self._table.caller_lost(node)
        self._forget(lambda sender, _: sender == node)
        for watching in self._watching.values():
            watching.discard(node)
        for mesh, early in list(self._early.items()):
            left = [item for item in early if node not in (item.sender, item.owner)]
            if left:
                self._early[mesh] = left
            else:
                del self._early[mesh]

    def freed(self, mesh: int) -> None:
        """Nothing is left of a mesh."""
        self._watching.pop(mesh, None)
        self._forget(lambda _, of: of == mesh)

    def _forget(self, which: Callable[[str, int], bool]) -> None:
        self._boughs.forget(which)
        for pair in [pair for pair in self._arrivals if which(*pair)]:
            del self._arrivals[pair]
        for call in [call for call, key in self._grown.items() if which(key[0], key[1])]:
            del self._grown[call]

    def _send(self, answers: list[SendAnswers], *, at_once: bool = False) -> None:
        """at_once: also what would go over the tree goes straight to who called."""
        for answer in answers:
            message = answer.message
            key = self._grown.get((answer.to, message.call)) if answer.last else None
            direct = key is None or at_once
            if direct and message.runs:
                self._node.send(answer.to, message, answer.payload)
            if key is not None:
                del self._grown[answer.to, message.call]
                own = [] if direct else list(unpacked(message.runs, answer.payload))
                self._do(self._boughs.own_done(key, own, time.monotonic()))


def _key(cast: Cast) -> Key:
    return cast.sender, cast.mesh, cast.number


def _ranks(message: Cast) -> list[int]:
    offset, sizes, strides = message.region
    return list(NDSlice(offset=offset, sizes=sizes, strides=strides).ranks())
