"""Perfetto's trace packets, as bytes. No I/O.

A trace is a sequence of `TracePacket` messages of Protocol Buffers, each a field 1 of `Trace`. Only
the fields that are used here are known here; their numbers are those of `perfetto_trace.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str"

_PACKET = 1  # Trace
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _SEQUENCE_FLAGS, _TRACK = 8, 10, 11, 13, 60  # TracePacket
_UUID, _NAME, _PROCESS, _PARENT = 1, 2, 3, 5  # TrackDescriptor
_PID, _PROCESS_NAME = 1, 6  # ProcessDescriptor
_ANNOTATION, _TYPE, _EVENT_TRACK, _CATEGORY, _EVENT_NAME = 4, 9, 11, 22, 23  # TrackEvent
_FLOW, _LAST_FLOW = 47, 48  # TrackEvent
_BOOL, _INT, _DOUBLE, _STRING, _ANNOTATION_NAME = 2, 4, 5, 6, 10  # DebugAnnotation
_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_VARINT, _FIXED64, _LENGTH = 0, 1, 2  # the kinds of fields
SEQUENCE_ID = 1
_STATE_CLEARED = 1  # TracePacket.SequenceFlags


def varint(number: int) -> bytes:
    """A number as protobuf writes it; a negative one as its 64-bit complement."""
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return varint(field << 3 | _VARINT) + varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | _LENGTH) + varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode("utf-8", "backslashreplace"))


def _fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | _FIXED64) + struct.pack("<Q", value)


def _packet(*parts: bytes) -> bytes:
    return _bytes(_PACKET, b"".join((*parts, _number(_SEQUENCE, SEQUENCE_ID))))


def start() -> bytes:
    """The first packet."""
    return _packet(_number(_SEQUENCE_FLAGS, _STATE_CLEARED))


def process_track(uuid: int, pid: int, name: str) -> bytes:
    """The track of a process. `pid`: 1 to 2**31 - 1, which differs from those of other tracks."""
    process = _number(_PID, pid) + _text(_PROCESS_NAME, name)
    return _packet(_bytes(_TRACK, _number(_UUID, uuid) + _bytes(_PROCESS, process)))


def track(uuid: int, parent: int, name: str) -> bytes:
    """A track below that of a process."""
    described = _number(_UUID, uuid) + _text(_NAME, name) + _number(_PARENT, parent)
    return _packet(_bytes(_TRACK, described))


def _annotation(name: str, value: Value) -> bytes:
    if isinstance(value, bool):
        encoded = _number(_BOOL, value)
    elif isinstance(value, int):
        encoded = _number(_INT, value)
    elif isinstance(value, float):
        encoded = varint(_DOUBLE << 3 | _FIXED64) + struct.pack("<d", value)
    else:
        encoded = _text(_STRING, value)
    return _bytes(_ANNOTATION, _text(_ANNOTATION_NAME, name) + encoded)


def _event(time_ns: int, kind: int, uuid: int, *parts: bytes) -> bytes:
    event = b"".join((_number(_TYPE, kind), _number(_EVENT_TRACK, uuid), *parts))
    return _packet(_number(_TIMESTAMP, time_ns), _bytes(_TRACK_EVENT, event))


def slice_begin(
    time_ns: int,
    uuid: int,
    name: str,
    category: str,
    values: Mapping[str, Value],
    flows: Sequence[int] = (),
    last_flows: Sequence[int] = (),
) -> bytes:
    """A slice begins on that track. `flows` begin here, `last_flows` end: arrows between slices."""
    return _event(
        time_ns, _BEGIN, uuid, _text(_EVENT_NAME, name), _text(_CATEGORY, category),
        *(_annotation(key, value) for key, value in values.items()),
        *(_fixed64(_FLOW, flow) for flow in flows),
        *(_fixed64(_LAST_FLOW, flow) for flow in last_flows),
    )  # fmt: skip


def slice_end(time_ns: int, uuid: int) -> bytes:
    """The slice that began last on that track ends."""
    return _event(time_ns, _END, uuid)


def instant(
    time_ns: int, uuid: int, name: str, category: str, values: Mapping[str, Value]
) -> bytes:
    """An event without a length."""
    return _event(
        time_ns, _INSTANT, uuid, _text(_EVENT_NAME, name), _text(_CATEGORY, category),
        *(_annotation(key, value) for key, value in values.items()),
    )  # fmt: skip
