"""Recorded calls of one process, as messages carry them. No I/O.

The answer to `ReadCalls` is a Reply whose payload is a `CallsRecorded` in MessagePack.
"""

import msgspec

from monarch._src.wire.frames import Payload
from monarch._src.wire.msgpack_text import pack, unpacker


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


_unpack = unpacker(CallsRecorded)


def packed(recorded: CallsRecorded) -> Payload:
    """The payload of a Reply."""
    return Payload(pack(recorded))


def unpacked(payload: Payload) -> CallsRecorded:
    """The calls in a payload.

    Raises:
        UNREADABLE (`wire.msgpack_text`): the payload is something else.
    """
    return _unpack(payload.body)
