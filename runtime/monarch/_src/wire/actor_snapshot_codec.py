"""What actors are at a moment, as it travels. No I/O.

The answer to `ReadActors` is a Reply whose payload is an `ActorsSeen` in MessagePack.
"""

import msgspec

from monarch._src.wire.frames import Payload
from monarch._src.wire.msgpack_text import pack, unpacker


class SeenActor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One actor. `class_name` is qualified by its module; `attributes` are names with texts.

    `running`: the endpoints that are under way, oldest first; `queued`: calls that have come and
    not begun; `more`: attributes that are not told. `ended`: it has failed, or was stopped.
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
    """As the payload of a Reply."""
    return Payload(pack(seen))


def unpacked(payload: Payload) -> ActorsSeen:
    """What `packed` was given.

    Raises:
        UNREADABLE (`wire.msgpack_text`): it is something else.
    """
    return _unpack(payload.body)
