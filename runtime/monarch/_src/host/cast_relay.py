"""The host agent's part in casts: passes them on and gathers the answers.

Runs in: the host agent, on its one thread. `host.state.cast_relay` decides which answers are sent;
`host.state.cast_tree` decides which other hosts get a cast.
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


class _WaitingCast(msgspec.Struct, frozen=True):
    """A cast to a mesh that has not been asked for yet."""

    sender: str
    owner: str
    again: Callable[[], list[Action]]


class _TreeCast(msgspec.Struct, frozen=True):
    """A cast that came over the tree. `up` is the node that passed it on."""

    up: str
    message: CastTree
    payload: Payload


class CastRelay:
    """All casts over this host."""

    def __init__(self, node: Node, host: Host) -> None:
        self._node = node
        self._host = host
        self._table = CastTable()
        self._watching: dict[int, set[str]] = {}  # by mesh: senders, which are told of its ends
        self._waiting: dict[int, list[_WaitingCast]] = {}  # by mesh that does not exist yet
        self._orders: dict[tuple[str, int], CastOrder[_TreeCast]] = {}  # by sender and mesh
        self._relays = TreeRelays()
        self._tree_keys: dict[tuple[str, int], Key] = {}  # by sender and call: casts over the tree

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
        waiting = _WaitingCast(message.sender, message.owner, again)
        self._waiting.setdefault(message.mesh, []).append(waiting)

    def _pass_on(self, message: Cast, payload: Payload, *, tells: bool = False) -> bool:
        """Forward a cast to the ranks of this host; returns whether they owe answers."""
        living = [proc for proc in self._living(message) if proc is not None]
        ranks = [proc.rank for proc in living]
        owed = self._table.cast(message.sender, message, ranks, tells=tells)
        self._node.forward([proc.node for proc in living], message, payload)
        return owed

    def receivers(self, message: Cast) -> list[str]:
        """By position in the cast's region: the node here that gets it, or an empty string."""
        return ["" if proc is None else proc.node for proc in self._living(message)]

    def _living(self, message: Cast) -> list[Proc | None]:
        mesh, lives = self._host.meshes.get(message.mesh), dict(message.lives)
        found = [None if mesh is None else mesh.at(rank) for rank in _ranks(message)]
        return [
            proc
            if proc is not None
            and proc.state is not ProcState.ENDED
            and proc.life == lives.get(proc.rank, 0)  # else the sender is about to hear of its end
            else None
            for proc in found
        ]

    # --- over other hosts -------------------------------------------------------------------------

    def tree(self, peer: str, message: CastTree, payload: Payload) -> list[Action]:
        """A cast has arrived that goes to other hosts as well."""
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
            else:  # freed here, but it may exist on other hosts
                parts = cut(HostRange(message.first, message.count).rest, message.fanout)
                missing = tuple(part.first for part in parts)
                self._do([Done(peer, _key(cast), message.first, 0, [], missing)])
            return actions
        stream = (cast.sender, cast.mesh)
        order = self._orders.get(stream)
        if order is None:
            order = self._orders[stream] = CastOrder()
        again = peer == cast.sender and message.count == 1
        ready = order.on_cast(
            cast.number, message.before[0][1], _TreeCast(peer, message, payload), again=again
        )
        if ready is None and again:
            self._do(self._relays.asked_again(_key(cast), message.first))
        for arrived in ready or ():
            self._take(mesh, arrived)
        return actions

    def _take(self, mesh: Mesh, arrived: _TreeCast) -> None:
        message, payload = arrived.message, arrived.payload
        cast, key = message.cast, _key(message.cast)
        sites = mesh.spec.sites
        block = math.prod(mesh.spec.sizes) // len(sites)
        places = sites_of(cast.region, block, message.without)
        parts = cut(HostRange(message.first, message.count).rest, message.fanout)
        children = {part.first: sites[places[part.first]] for part in parts}
        if message.standing is not None:
            self._relays.standing(cast.sender, cast.mesh, message.standing, cast.number)
        if cast.call:
            self._tree_keys[cast.sender, cast.call] = key
        owes = self._pass_on(cast, payload, tells=True)
        if not owes:
            self._tree_keys.pop((cast.sender, cast.call), None)
        self._do(self._relays.taken(key, arrived.up, message.first, cast.call, children, owes=owes))
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
                self._do(self._relays.host_lost(site))

    def tree_done(self, _peer: str, message: TreeDone, payload: Payload) -> None:
        """A host that this one passed a cast to has finished it."""
        key = (message.sender, message.mesh, message.number)
        answers = list(unpacked(message.runs, payload))
        self._do(
            self._relays.child_done(
                key, message.place, message.call, answers, message.missing, time.monotonic()
            )
        )

    def site_lost(self, site: str) -> None:
        """The link to that host is gone."""
        self._do(self._relays.host_lost(site))

    def _do(self, actions: Sequence[Done | Stuck]) -> None:
        for action in actions:
            sender, mesh, number = action.key
            if isinstance(action, Stuck):
                self._node.send(sender, TreeStuck(mesh, number, action.place))
                continue
            runs, payload = packed(action.answers)
            done = TreeDone(sender, mesh, number, action.place, action.call, runs, action.missing)
            # If that node has ended, the sender is told and asks this host itself.
            self._node.send(action.to, done, payload)

    # --- ranks of this host -----------------------------------------------------------------------

    def _watch(self, message: Cast) -> list[Action]:
        """Tell the sender of a cast about the ends of the procs it casts to."""
        if message.sender == message.owner:
            return []
        watching = self._watching.setdefault(message.mesh, set())
        if message.sender in watching:
            return []
        mesh = self._host.meshes.get(message.mesh)
        if mesh is not None:
            watching.add(message.sender)
        ranks = _ranks(message) if mesh is None else mesh.ranks
        # A sender to a mesh with restarts has asked to watch each rank before.
        nodes = [proc_node(message.mesh, rank) for rank in ranks] if mesh is None else [
            proc.node for proc in mesh.procs
        ]  # fmt: skip
        return [
            action
            for node in nodes
            for action in self._host.watch_requested(node, message.sender, message.owner)
        ]

    def spawned(self, mesh: int) -> list[Action]:
        """A mesh was spawned; deliver the casts that were waiting for it."""
        return [action for waiting in self._waiting.pop(mesh, ()) for action in waiting.again()]

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

    def after_poll(self) -> None:
        """Every message that could be read has been handled."""
        self._send(self._table.after_poll())
        deadline = self.next_deadline()
        if deadline is not None and (now := time.monotonic()) >= deadline:
            self._send(self._table.time_passed(now))
            self._send_direct(self._relays.time_passed(now))

    def next_deadline(self) -> float | None:
        """The time at which `after_poll` has something to do, or None."""
        deadlines = self._table.next_deadline(), self._relays.next_deadline()
        return min((found for found in deadlines if found is not None), default=None)

    def owes(self, mesh: int, rank: int) -> bool:
        """Whether a call waits for an answer of that rank."""
        return self._table.owes(mesh, rank)

    def ended(self, node: str) -> None:
        """A process has ended; its answers are sent before its end is reported."""
        place = parse_proc_node(node)
        if place is not None:
            self._send(self._table.ended(*place), at_once=True)
            self._send_direct(self._relays.kept(place[0]))  # they may not have reached the root yet
        self.lost(node)

    def _send_direct(self, held: Sequence[tuple[str, int, list[Answered]]]) -> None:
        """Send answers directly to the caller."""
        for to, call, answers in held:
            runs, payload = packed(answers)
            self._node.send(to, Answers(call, runs), payload)

    def lost(self, node: str) -> None:
        """A process that may have sent casts has ended."""
        self._table.caller_lost(node)
        self._forget(lambda sender, _: sender == node)
        for watching in self._watching.values():
            watching.discard(node)
        for mesh, waiting in list(self._waiting.items()):
            left = [item for item in waiting if node not in (item.sender, item.owner)]
            if left:
                self._waiting[mesh] = left
            else:
                del self._waiting[mesh]

    def freed(self, mesh: int) -> None:
        """A mesh has been freed."""
        self._watching.pop(mesh, None)
        self._forget(lambda _, of: of == mesh)

    def _forget(self, which: Callable[[str, int], bool]) -> None:
        self._relays.forget(which)
        for pair in [pair for pair in self._orders if which(*pair)]:
            del self._orders[pair]
        for call in [call for call, key in self._tree_keys.items() if which(key[0], key[1])]:
            del self._tree_keys[call]

    def _send(self, answers: list[SendAnswers], *, at_once: bool = False) -> None:
        """Send answers; with `at_once` also those for the tree go directly to the caller."""
        for answer in answers:
            message = answer.message
            key = self._tree_keys.get((answer.to, message.call)) if answer.last else None
            direct = key is None or at_once
            if direct and message.runs:
                self._node.send(answer.to, message, answer.payload)
            if key is not None:
                del self._tree_keys[answer.to, message.call]
                own = [] if direct else list(unpacked(message.runs, answer.payload))
                self._do(self._relays.own_done(key, own, time.monotonic()))


def _key(cast: Cast) -> Key:
    return cast.sender, cast.mesh, cast.number


def _ranks(message: Cast) -> list[int]:
    offset, sizes, strides = message.region
    return list(NDSlice(offset=offset, sizes=sizes, strides=strides).ranks())
