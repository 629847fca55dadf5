"""Messages become a stream of bytes and come out of it as they were, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.wire.memory_copies import CHEAP, LARGE, room
from monarch._src.wire.stream import (
    MOST_FRAMES,
    Splitter,
    StreamError,
    pack,
)
from tests.streams import fed

SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([CHEAP - 1, CHEAP, 1 << 16, 1 << 19]),
)
MESSAGES = st.lists(st.lists(SIZES, min_size=1, max_size=5), min_size=1, max_size=8)


def of_sizes(sizes: list[int]) -> list[bytes]:
    return [bytes([n % 251]) * size for n, size in enumerate(sizes)]


def through(splitter: Splitter, data: bytes, cuts: list[int]) -> list[list[bytes]]:
    """What comes out of it when the bytes come in pieces of these sizes, over and over."""
    found: list[list[bytes]] = []
    at, turn = 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        turn += 1
        messages = fed(splitter, data[at : at + size])
        at += size
        found += [[bytes(frame) for frame in message] for message in messages]
    return found


@given(MESSAGES, st.lists(st.integers(1, 1 << 17), min_size=1, max_size=4))
def test_what_goes_in_comes_out_however_the_stream_is_cut(
    shapes: list[list[int]], cuts: list[int]
) -> None:
    messages = [of_sizes(sizes) for sizes in shapes]
    data = b"".join(b"".join(pack(frames)) for frames in messages)
    if max(cuts) < 64:
        cuts = [*cuts, 1 << 15]  # or it takes long
    assert through(Splitter(b"from"), data, cuts) == [[b"from", *frames] for frames in messages]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4).map(of_sizes))
def test_a_stream_can_be_cut_at_every_byte(frames: list[bytes]) -> None:
    data = b"".join(pack(frames)) * 2
    assert through(Splitter(), data, [1]) == 2 * [[b"", *frames]]


def test_a_small_message_is_four_bytes_longer_and_one_piece() -> None:
    (packed,) = pack([b"abc"])
    assert packed == b"\0\0\0\3abc"


def test_a_long_frame_is_not_copied_behind_its_size() -> None:
    long = bytearray(CHEAP)
    size, packed = pack([long])
    assert packed is long
    assert size == CHEAP.to_bytes(4, "big")


def test_frames_beside_the_first_are_not_copied_and_empty_ones_left_out() -> None:
    frame = bytearray(1)
    packed = pack([b"first", b"", frame, b""])
    assert packed[1] is frame
    assert [len(piece) for piece in packed] == [4 + 4 * 8 + 5, 1]


def test_a_message_of_one_frame_may_be_fed_from_memory_that_is_used_again() -> None:
    read = bytearray(b"".join(pack([b"abc"])))
    (message,) = Splitter(b"x").feed(memoryview(read))
    read[:] = bytes(len(read))
    assert message == [b"x", b"abc"]


def test_who_it_is_from_may_be_learned_while_it_comes() -> None:
    data = b"".join(pack([b"name"]) + pack([bytes(1 << 16)]) + pack([b"after"]))
    splitter = Splitter()
    (name,) = splitter.feed(data[:1000])
    splitter.mark = name[1]
    found = through(splitter, data[1000:], [1 << 14])
    assert [message[0] for message in found] == [b"name", b"name"]


def test_what_was_handed_out_is_not_held_any_more() -> None:
    splitter = Splitter(b"x")
    (message,) = splitter.feed(b"".join(pack([b"head", bytes(CHEAP)])))
    held = [value for name in Splitter.__slots__ if (value := getattr(splitter, name))]
    assert message not in held
    assert message[2] not in held


def test_frames_beside_the_first_can_be_written_to() -> None:
    splitter = Splitter()
    (message,) = splitter.feed(b"".join(pack([bytes(CHEAP), b"short", b""])))
    assert [view.readonly for view in message[2:]] == [False, False]


@pytest.mark.parametrize(
    "junk", [b"\x01\x00\x00\x00", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff"]
)
def test_what_begins_no_message_is_refused(junk: bytes) -> None:
    splitter = Splitter()
    with pytest.raises(StreamError, match=rf"a message cannot begin with the bytes {junk.hex()}"):
        splitter.feed(junk)


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1])
def test_a_frame_for_which_there_can_be_no_memory_is_refused(size: int) -> None:
    splitter = Splitter()
    with pytest.raises(StreamError, match=f"no memory for a frame of {size} bytes"):
        splitter.feed((1 << 31 | 1).to_bytes(4, "big") + size.to_bytes(8, "big"))


def test_more_frames_than_anybody_would_take_are_not_packed() -> None:
    with pytest.raises(ValueError, match="1048577 frames"):
        pack([b""] * (MOST_FRAMES + 1))


@pytest.mark.parametrize("size", [0, 1, LARGE, 2 * LARGE])
def test_room_can_be_written_to(size: int) -> None:
    view = room(size)
    assert (len(view), view.readonly, view.format) == (size, False, "B")
    if size:
        view[-1] = 7
        assert view[-1] == 7
