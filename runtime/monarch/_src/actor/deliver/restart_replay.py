"""The messages that a restarted proc receives before any other. No I/O.

Runs in: any process that spawns actors on procs. A message is recorded under the lock of the mesh,
the lock under which it is sent. Ranks of a mesh without a policy may be restarted by request: its
messages are kept too, but without constructor arguments of more than `MOST_KEPT` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from monarch._src.shape import Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Bootstrap, Message, SpawnActor, StopProc

MOST_KEPT = 64 << 20
"""Bytes of the constructor arguments of an actor mesh, up to which they are kept."""


class ReplayedMessage(msgspec.Struct, frozen=True):
    """A message for the procs of a region, including their later incarnations."""

    region: Region
    message: SpawnActor | Bootstrap | StopProc
    payload: Payload | None  # None: it was too large to be kept


class ReplayLog:
    """The messages to replay, for all meshes whose procs restart, in the order of sending."""

    def __init__(self) -> None:
        self._by_mesh: dict[int, list[ReplayedMessage]] = {}

    def of(self, mesh: int) -> Sequence[ReplayedMessage]:
        """The messages for a new incarnation of a rank, each if its region contains the rank."""
        return self._by_mesh.get(mesh, ())

    def add(self, mesh: int, replayed: ReplayedMessage) -> None:
        """Record a message."""
        self._by_mesh.setdefault(mesh, []).append(replayed)

    def on_sent(
        self, mesh: int, region: Region, message: Message, payload: Payload, *, all_sizes: bool
    ) -> None:
        """Record a sent message if it spawns an actor or ends the proc."""
        if isinstance(message, SpawnActor):
            kept = payload if all_sizes or is_kept(payload) else None
            self.add(mesh, ReplayedMessage(region, msgspec.structs.replace(message), kept))
        elif isinstance(message, StopProc):  # a new incarnation ends at once
            self._by_mesh[mesh] = [
                ReplayedMessage(region, msgspec.structs.replace(message), payload)
            ]

    def too_large(self, mesh: int, rank: int) -> list[SpawnActor]:
        """The spawns on that rank whose arguments were not kept."""
        return [
            one.message
            for one in self.of(mesh)
            if one.payload is None and rank in one.region and isinstance(one.message, SpawnActor)
        ]

    def drop_actor(self, mesh: int, actor: int) -> None:
        """Stop recreating that actor."""
        replayed = self._by_mesh.get(mesh)
        if replayed is not None:
            replayed[:] = [
                one
                for one in replayed
                if not (isinstance(one.message, SpawnActor) and one.message.actor == actor)
            ]

    def forget(self, mesh: int) -> None:
        """Drop the messages of a mesh that has ended."""
        self._by_mesh.pop(mesh, None)


def is_kept(payload: Payload) -> bool:
    """Whether arguments of that size are kept for a mesh without a policy."""
    return payload.nbytes <= MOST_KEPT
