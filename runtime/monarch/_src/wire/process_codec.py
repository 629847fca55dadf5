"""The live actors and the recorded calls of one process, as messages carry them. No I/O.

The answer to `ReadActors` is a Reply whose payload is an `ActorsSeen` in MessagePack, that to
`ReadCalls` one with `CallsRecorded`.
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


_unpack_actors = unpacker(ActorsSeen)


def packed_actors(seen: ActorsSeen) -> Payload:
    """The payload of a Reply."""
    return Payload(pack(seen))


def unpacked_actors(payload: Payload) -> ActorsSeen:
    """The snapshot in a payload.

    Raises:
        UNREADABLE (`wire.msgpack_text`): the payload is something else.
    """
    return _unpack_actors(payload.body)


class RecordedCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call. `name` is a place in `CallsRecorded.names`.

    `began_ns`: since 1970, by the clock of its host; `took_ns` is None while it runs.
    """

    name: int
    began_ns: int
    took_ns: int | None
    failed: bool


class CallsRecorded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Calls in the order of their ends, then the running ones. `names`: actor and endpoint.

    `is_cut`: older ones that were asked for are missing.
    """

    names: tuple[tuple[str, str], ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    is_cut: bool = False


_unpack_calls = unpacker(CallsRecorded)


def packed_calls(recorded: CallsRecorded) -> Payload:
    """The payload of a Reply."""
    return Payload(pack(recorded))


def unpacked_calls(payload: Payload) -> CallsRecorded:
    """The calls in a payload.

    Raises:
        UNREADABLE (`wire.msgpack_text`): the payload is something else.
    """
    return _unpack_calls(payload.body)
