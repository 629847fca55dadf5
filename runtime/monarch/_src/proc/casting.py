"""The host agent's part in casts: passes them on, gathers the answers.

Runs in: the host agent, on its one thread. What is owed to whom, `core.casts` decides.
"""

from __future__ import annotations

import logging

from monarch._src.core.casts import CastTable, SendAnswers
from monarch._src.core.host import Action, Host, ProcState
from monarch._src.core.ids import parse_proc_node, proc_node
from monarch._src.net.node import Node
from monarch._src.shape import NDSlice
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Answer, Cast

log = logging.getLogger("monarch.agent")


class Casting:
    """All casts over this host."""

    def __init__(self, node: Node, host: Host) -> None:
        self._node = node
        self._host = host
        self._table = CastTable()
        self._watching: dict[int, set[str]] = {}  # by mesh: who casts to it, and is told of ends
        self._early: dict[int, list[tuple[Cast, Payload]]] = {}  # by mesh that is to come

    def cast(self, peer: str, message: Cast, payload: Payload) -> list[Action]:
        """Pass a cast on to its ranks on this host."""
        if message.sender != peer:
            log.warning("%s sent a cast in the name of %s", peer, message.sender)
            return []
        actions = self._watch(message)
        mesh = self._host.meshes.get(message.mesh)
        if mesh is None:
            if self._host.is_to_come(message.mesh, message.owner):
                self._early.setdefault(message.mesh, []).append((message, payload))
            return actions
        procs = mesh.procs
        living = [
            rank
            for rank in _ranks(message)
            if rank < len(procs) and procs[rank].state is not ProcState.ENDED
        ]
        self._table.cast(peer, message, living)
        self._node.forward([procs[rank].node for rank in living], message, payload)
        return actions

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
        ranks = _ranks(message) if mesh is None else range(len(mesh.procs))
        return [
            action
            for rank in ranks
            for action in self._host.watch_requested(
                proc_node(message.mesh, rank), message.sender, message.owner
            )
        ]

    def spawned(self, mesh: int) -> list[Action]:
        """A mesh has come, and perhaps what others had cast to it before."""
        early = self._early.pop(mesh, ())
        return [
            action for cast, payload in early for action in self.cast(cast.sender, cast, payload)
        ]

    def answered(self, peer: str, message: Answer, payload: Payload) -> None:
        """A rank has answered a cast."""
        place = parse_proc_node(peer)
        if place is not None:
            body = bytes(payload.body)
            rank, position = place[1], message.position
            self._send(
                self._table.answered(message.to, message.call, rank, position, message.status, body)
            )

    def looked(self) -> None:
        """Everything that could be received has been."""
        self._send(self._table.looked())

    def owes(self, mesh: int, rank: int) -> bool:
        """Whether a call waits for an answer of that rank."""
        return self._table.owes(mesh, rank)

    def ended(self, node: str) -> None:
        """A process is gone; before anybody is told, what was answered leaves."""
        place = parse_proc_node(node)
        if place is not None:
            self._send(self._table.ended(*place))
        self.lost(node)

    def lost(self, node: str) -> None:
        """A process that may have cast is gone."""
        self._table.caller_lost(node)
        for watching in self._watching.values():
            watching.discard(node)
        for mesh, early in list(self._early.items()):
            left = [item for item in early if node not in (item[0].sender, item[0].owner)]
            if left:
                self._early[mesh] = left
            else:
                del self._early[mesh]

    def freed(self, mesh: int) -> None:
        """Nothing is left of a mesh."""
        self._watching.pop(mesh, None)

    def _send(self, answers: list[SendAnswers]) -> None:
        for answer in answers:
            self._node.send(answer.to, answer.message, answer.payload)


def _ranks(message: Cast) -> list[int]:
    offset, sizes, strides = message.region
    return list(NDSlice(offset=offset, sizes=sizes, strides=strides).ranks())
