"""Snapshots of live actors, as messages carry them. No I/O.

The answer to `ReadActors` is a Reply whose payload is an `ActorsSeen` in MessagePack.
"""

import msgspec

from monarch._src.wire.frames import Payload
from monarch._src.wire.msgpack_text import pack, unpacker


class SeenActor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One actor. `class_name` is qualified by its module; `attributes` are names with texts.

    `running`: its running endpoints, oldest first; `queued`: the number of calls that have not
    begun; `more`: the number of attributes left out. `ended`: it has failed, or was stopped.
    """

    name: str
    class_name: str
    running: tuple[str, ...]
    queued: int
    attributes: tuple[tuple[str, str], ...]
    more: int = 0
    ended: bool = False


class ActorsSeen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The actors of one process, in the order in which they were spawned."""

    actors: tuple[SeenActor, ...] = ()


_unpack = unpacker(ActorsSeen)


def packed(seen: ActorsSeen) -> Payload:
    """The payload of a Reply."""
    return Payload(pack(seen))


def unpacked(payload: Payload) -> ActorsSeen:
    """The snapshot in a payload.

    Raises:
        UNREADABLE (`wire.msgpack_text`): the payload is something else.
    """
    return _unpack(payload.body)
