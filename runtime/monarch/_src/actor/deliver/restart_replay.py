"""What every process that takes the place of another is to be sent first. No I/O.

Runs in: any process that makes actors on procs which are started again; a message is kept under the
lock of its mesh with which it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from monarch._src.shape import Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Bootstrap, Message, SpawnActor, StopProc


class Kept(msgspec.Struct, frozen=True):
    """A message that the processes of a region are sent, also those that come later."""

    region: Region
    message: SpawnActor | Bootstrap | StopProc
    payload: Payload


class KeptMessages:
    """Those of all meshes whose procs are started again, in the order in which they were sent."""

    def __init__(self) -> None:
        self._by_mesh: dict[int, list[Kept]] = {}

    def of(self, mesh: int) -> Sequence[Kept]:
        """What a new process of that mesh is to be sent, if it is of that region."""
        return self._by_mesh.get(mesh, ())

    def add(self, mesh: int, kept: Kept) -> None:
        """Keep that too."""
        self._by_mesh.setdefault(mesh, []).append(kept)

    def sent(self, mesh: int, region: Region, message: Message, payload: Payload) -> None:
        """What makes an actor, or ends all, is kept in the moment in which it is sent."""
        if isinstance(message, SpawnActor):
            self.add(mesh, Kept(region, msgspec.structs.replace(message), payload))
        elif isinstance(message, StopProc):  # one that comes now is to end at once
            self._by_mesh[mesh] = [Kept(region, msgspec.structs.replace(message), payload)]

    def without(self, mesh: int, actor: int) -> None:
        """That actor is not made again."""
        kept = self._by_mesh.get(mesh)
        if kept is not None:
            kept[:] = [
                one
                for one in kept
                if not (isinstance(one.message, SpawnActor) and one.message.actor == actor)
            ]

    def forget(self, mesh: int) -> None:
        """That mesh has ended."""
        self._by_mesh.pop(mesh, None)
