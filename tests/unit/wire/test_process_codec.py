"""What was seen of actors travels unchanged, and what is none of it is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.wire.frames import Payload
from monarch._src.wire.msgpack_text import UNREADABLE
from monarch._src.wire.process_codec import ActorsSeen, SeenActor, packed_actors, unpacked_actors

actors = st.builds(
    SeenActor, name=st.text(), class_name=st.text(), running=st.lists(st.text()).map(tuple),
    queued=st.integers(0, 2**63 - 1),
    attributes=st.lists(st.tuples(st.text(), st.text())).map(tuple),
    more=st.integers(0, 2**63 - 1), ended=st.booleans(),
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
