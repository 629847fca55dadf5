"""The bytes of a trace are what Perfetto's own classes read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.telemetry.perfetto.state import packets

perfetto_trace = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@given(number=U64)
def test_numbers_are_written_as_varints(number: int) -> None:
    found = packets.varint(number)
    assert sum((byte & 0x7F) << 7 * at for at, byte in enumerate(found)) == number
    assert all(byte & 0x80 for byte in found[:-1])
    assert not found[-1] & 0x80


@given(
    time_ns=U64,
    uuid=U64,
    name=TEXT,
    flow=U64,
    whole=st.integers(-(2**63), 2**63 - 1),
    number=st.floats(allow_nan=False),
    text=TEXT,
    flag=st.booleans(),
)
def test_a_slice_is_read_as_it_was_written(
    time_ns: int, uuid: int, name: str, flow: int, whole: int, number: float, text: str, flag: bool
) -> None:
    values = {"whole": whole, "number": number, "text": text, "flag": flag}
    data = packets.slice_begin(time_ns, uuid, name, "call", values, [flow], [flow ^ 1])
    (packet,) = perfetto_trace.Trace.FromString(data).packet
    event = packet.track_event
    assert (packet.timestamp, packet.trusted_packet_sequence_id) == (time_ns, packets.SEQUENCE_ID)
    assert (event.type, event.track_uuid, event.name) == (event.TYPE_SLICE_BEGIN, uuid, name)
    assert list(event.categories) == ["call"]
    assert (list(event.flow_ids), list(event.terminating_flow_ids)) == ([flow], [flow ^ 1])
    found = {one.name: one for one in event.debug_annotations}
    assert found["whole"].int_value == whole
    assert found["number"].double_value == number
    assert found["text"].string_value == text
    assert found["flag"].bool_value is flag


def test_tracks_are_declared_with_their_process() -> None:
    data = packets.start() + packets.process_track(7, 3, "workers[3]") + packets.track(8, 7, "x")
    first, process, track = perfetto_trace.Trace.FromString(data).packet
    assert first.sequence_flags == first.SEQ_INCREMENTAL_STATE_CLEARED
    described = process.track_descriptor
    assert (described.uuid, described.process.pid) == (7, 3)
    assert described.process.process_name == "workers[3]"
    described = track.track_descriptor
    assert (described.uuid, described.parent_uuid, described.name) == (8, 7, "x")


def test_ends_and_instants_have_their_kinds() -> None:
    data = packets.slice_end(5, 8) + packets.instant(6, 8, "line", "log", {"level": "WARN"})
    end, instant = perfetto_trace.Trace.FromString(data).packet
    assert end.track_event.type == end.track_event.TYPE_SLICE_END
    assert instant.track_event.type == instant.track_event.TYPE_INSTANT
    assert instant.track_event.debug_annotations[0].string_value == "WARN"


def test_text_that_is_no_unicode_gets_backslashes() -> None:
    data = packets.instant(6, 8, "half \ud800", "log", {})
    (packet,) = perfetto_trace.Trace.FromString(data).packet
    assert packet.track_event.name == "half \\ud800"
