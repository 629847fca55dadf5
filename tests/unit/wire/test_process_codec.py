"""What was seen of actors travels unchanged, and what is none of it is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.wire.frames import Payload
from monarch._src.wire.msgpack_text import UNREADABLE
from monarch._src.wire.process_codec import (
    ActorsSeen,
    Counted,
    Figures,
    Key,
    MeasureFigures,
    MeasureKey,
    SeenActor,
    packed_actors,
    packed_metrics,
    unpacked_actors,
    unpacked_metrics,
)

actors = st.builds(
    SeenActor, name=st.text(), class_name=st.text(), running=st.lists(st.text()).map(tuple),
    queued=st.integers(0, 2**63 - 1),
    attributes=st.lists(st.tuples(st.text(), st.text())).map(tuple),
    more=st.integers(0, 2**63 - 1), ended=st.booleans(),
)  # fmt: skip
counts = st.integers(0, 2**63 - 1)
keys = st.builds(
    Key, mesh=counts, mesh_name=st.text(), actor_class=st.text(), actor=st.text(),
    endpoint=st.text(), adverb=st.sampled_from(["", "call", "broadcast"]),
    span=st.text(), parent=st.text(),
)  # fmt: skip
rows = st.builds(
    Figures, key=keys, calls=counts, untimed=counts, errors=counts, bytes_in=counts,
    bytes_out=counts, total_ns=counts, max_ns=counts, waited_ns=counts, observed_ns=counts,
    buckets=st.lists(st.tuples(st.integers(0, 256), counts)).map(tuple),
)  # fmt: skip


numbers = st.floats(allow_nan=False)
measures = st.builds(
    MeasureFigures,
    key=st.builds(
        MeasureKey, mesh=counts, mesh_name=st.text(), actor_class=st.text(), actor=st.text(),
        kind=st.sampled_from(["counter", "up_down_counter", "histogram"]), name=st.text(),
        unit=st.text(), description=st.text(),
        attributes=st.lists(st.tuples(st.text(), st.text()), max_size=3).map(tuple),
    ),
    count=counts, not_finite=counts, total=numbers, low=numbers, high=numbers,
    buckets=st.lists(st.tuples(st.integers(-512, 512), counts), max_size=5).map(tuple),
)  # fmt: skip


@given(st.lists(actors, max_size=4))
def test_actors_arrive_as_they_were_seen(seen: list[SeenActor]) -> None:
    assert unpacked_actors(packed_actors(ActorsSeen(tuple(seen)))) == ActorsSeen(tuple(seen))


def test_so_does_text_that_utf_8_has_no_room_for() -> None:
    seen = ActorsSeen((SeenActor("a", "\udcff", (), 0, (("path", "'\udc80'"),)),))
    assert unpacked_actors(packed_actors(seen)) == seen


@pytest.mark.parametrize("data", [b"", b"\x91\x93\x01\x02\x03", b"\x80", b"\xff" * 9])
def test_what_is_none_of_it_is_refused(data: bytes) -> None:
    with pytest.raises(UNREADABLE):
        unpacked_actors(Payload(data))


@given(st.lists(rows, max_size=5), st.lists(measures, max_size=3))
def test_figures_arrive_as_they_were_sent(
    figures: list[Figures], measured: list[MeasureFigures]
) -> None:
    sent = Counted(tuple(figures), tuple(measured))
    assert unpacked_metrics(packed_metrics(sent)) == sent


@given(st.binary(max_size=60))
def test_what_is_no_figures_is_refused_with_one_error(data: bytes) -> None:
    try:
        found = unpacked_metrics(Payload(data))
    except msgspec.MsgspecError:
        return
    assert all(isinstance(row, Figures) for row in found.figures)
    assert all(isinstance(row, MeasureFigures) for row in found.measures)


@pytest.mark.parametrize("data", [b"", b"\x91\x93\x01\x02\x03", b"\x80", b"\xff" * 9])
def test_of_these_none_is_taken(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        unpacked_metrics(Payload(data))
