"""One trunk over a real connection: what goes in comes out, however slow the other side reads."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch._src.net.trunk import (
    KNOCK_BYTES,
    Trunk,
    check_knock,
    knock,
    new_socket,
    number_of,
)
from monarch._src.wire.frames import Buffer
from monarch._src.wire.sealed import KEY_BYTES, RECORD, Sealer, SealError, Unsealer
from monarch._src.wire.stream import StreamError

ONE, OTHER = bytes(KEY_BYTES), bytes([1]) * KEY_BYTES
Pair = tuple[Trunk, Trunk]


def nowhere(_frames: Sequence[Buffer], _size: int) -> memoryview | None:
    return None


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = new_socket(socket.AF_INET, 5.0)
        dialled.connect_ex(listener.getsockname())
        accepted, _ = listener.accept()
    accepted.setblocking(False)
    return dialled, accepted


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets that are connected."""
    made = connected()
    yield made
    for one in made:
        one.close()


@pytest.fixture
def pair(ends: tuple[socket.socket, socket.socket]) -> Pair:
    """The two ends of a trunk."""
    a, b = ends
    return (
        Trunk(a, Sealer(ONE), Unsealer(OTHER), nowhere),
        Trunk(b, Sealer(OTHER), Unsealer(ONE), nowhere),
    )


def pumped(sender: Trunk, receiver: Trunk, count: int) -> list[list[bytes]]:
    """So many messages, written and read in turn."""
    found: list[list[bytes]] = []
    while len(found) < count:
        assert sender.flush()
        came = receiver.receive()
        assert came is not None
        found += [[bytes(frame) for frame in message] for message in came[0]]
    return found


FRAMES = st.lists(
    st.one_of(st.binary(max_size=60), st.integers(0, 3 * RECORD).map(bytes)), min_size=1, max_size=5
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(messages=st.lists(FRAMES, min_size=1, max_size=8))
def test_messages_of_any_frames_arrive_whole_and_in_order(
    pair: Pair, messages: list[list[bytes]]
) -> None:
    for sender, receiver in (pair, pair[::-1]):
        for message in messages:
            assert sender.send(message)
        assert pumped(sender, receiver, len(messages)) == messages


def test_what_finds_no_room_waits_in_order_and_is_not_copied(pair: Pair) -> None:
    sender, receiver = pair
    large = os.urandom(16 << 20)
    assert sender.send([b"head", large])
    assert sender.waits
    for number in range(100):
        assert sender.send([b"head", str(number).encode()])
    found = pumped(sender, receiver, 101)
    assert not sender.waits
    assert found == [[b"head", large], *([b"head", str(n).encode()] for n in range(100))]


def test_a_large_frame_is_received_where_it_belongs(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    asked: list[tuple[list[bytes], int]] = []
    there = bytearray(1 << 20)

    def place(frames: Sequence[Buffer], size: int) -> memoryview | None:
        asked.append(([bytes(frame) for frame in frames], size))
        return memoryview(there)

    a, b = ends
    sender = Trunk(a, Sealer(ONE), Unsealer(OTHER), nowhere)
    receiver = Trunk(b, Sealer(OTHER), Unsealer(ONE), place)
    piece = os.urandom(1 << 20)
    sender.send([b"head", b"which", piece])
    assert pumped(sender, receiver, 1) == [[b"head", b"which", piece]]
    assert there == piece
    assert asked == [([b"head", b"which"], 1 << 20)]


@pytest.mark.parametrize(
    "garbage", [b"\0" * 64, b"\x80\0\0\x01" + b"x" * 40, b"GET / HTTP/1.1\r\n"]
)
def test_bytes_that_the_peer_did_not_seal_are_refused(pair: Pair, garbage: bytes) -> None:
    a, b = pair
    a._socket.send(garbage)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(SealError):
        pumped(a, b, 1)


def test_a_sealed_stream_that_is_none_is_refused(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    a, b = ends
    trunk = Trunk(b, Sealer(OTHER), Unsealer(ONE), nowhere)
    a.send(Sealer(ONE).seal(b"\xff\xff\xff\xff"))
    with pytest.raises(StreamError):
        pumped(trunk, trunk, 1)


@pytest.mark.parametrize("pair_of", [b"\xff\xff", b"\0\x05abcd", b"\0"])
def test_a_sealed_pair_of_frames_that_is_none_is_refused(
    ends: tuple[socket.socket, socket.socket], pair_of: bytes
) -> None:
    a, b = ends
    trunk = Trunk(b, Sealer(OTHER), Unsealer(ONE), nowhere)
    a.send(Sealer(ONE).seal(pair_of, other=True))
    with pytest.raises(SealError):
        pumped(trunk, trunk, 1)


def test_the_end_of_the_peer_is_told(pair: Pair) -> None:
    a, b = pair
    a.send([b"last", b"words"])
    a.end_sending()
    assert pumped(a, b, 1) == [[b"last", b"words"]]
    came = b.receive()
    while came is not None:
        assert came == ([], False)
        came = b.receive()
    b.close()
    b.close()
    assert b.fd == -1


def test_a_knock_shows_the_key_and_is_good_for_one_offer() -> None:
    said = knock(7, Sealer(ONE))
    assert len(said) == KNOCK_BYTES
    assert number_of(said) == 7
    check_knock(said, Unsealer(ONE))
    for wrong in (knock(7, Sealer(OTHER)), said[:8] + bytes(KNOCK_BYTES - 8)):
        with pytest.raises(SealError):
            check_knock(wrong, Unsealer(ONE))
