"""What goes through a pipe arrives whole and in order, however much there is of it."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from monarch._src.net.local import pipe as pipe_module
from monarch._src.net.local.pipe import PIECES, room_to_read
from monarch._src.net.local.router import Router
from monarch._src.wire.memory_copies import CHEAP
from monarch._src.wire.segment_refs import SEGMENT_FROM
from tests.unit.net.routers import LARGE, PATIENCE_S, MakeRouter, address, received

pytestmark = pytest.mark.usefixtures("polling")

READ = len(room_to_read())
SIZES = [0, 1, CHEAP - 1, CHEAP, SEGMENT_FROM, READ - 4, READ - 3, LARGE]


@pytest.mark.parametrize("size", SIZES)
def test_frames_of_any_size_arrive_whole(pair: tuple[Router, Router], size: int) -> None:
    a, b = pair
    data = os.urandom(size)
    a.send(b">b", [b"head", data, memoryview(data), bytearray(data)])
    a.send(b">b", [data])
    assert received(b, a)[1:] == [b"head", data, data, data]
    assert received(b, a)[1:] == [data]


def test_what_is_received_as_bulk_can_be_written_to(pair: tuple[Router, Router]) -> None:
    a, b = pair
    a.send(b">b", [b"head", b"short", bytes(SEGMENT_FROM)])
    parts = None
    while parts is None:
        b.wait(PATIENCE_S)
        a.readable()
        parts = b.receive()
    for part in parts[2:]:
        assert isinstance(part, memoryview)
        assert not part.readonly


def test_what_does_not_fit_waits_and_leaves_in_order(pair: tuple[Router, Router]) -> None:
    a, b = pair
    full: list[int] = []
    a.on_full = lambda: full.append(1)
    bulk = os.urandom(LARGE)
    sizes = itertools.cycle([10, 3000, CHEAP + 5, 70_000])
    sent = [[b"%d" % number, b"x" * next(sizes)] for number in range(300)]
    assert a.send(b">b", [b"first", bulk])
    assert full, "somebody should wait for room now"
    for frames in sent:
        assert a.send(b">b", frames)
        assert a.send(b">b", [frames[0]])
    assert received(b, a)[1:] == [b"first", bulk]
    for frames in sent:
        assert received(b, a)[1:] == frames
        assert received(b, a)[1:] == frames[:1]
    a.readable()
    assert a.wait(0.0) == [], "it looks no more for room"


def test_small_messages_that_wait_leave_together(
    pair: tuple[Router, Router], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    pipe = a._pipes[b">b"]
    real, writes = pipe._socket, list[int]()

    def full(data: Any, flags: int) -> int:
        raise BlockingIOError(errno.EAGAIN, "no room")

    class Counting:
        def sendmsg(self, pieces: Any, *rest: Any) -> int:
            writes.append(len(pieces))
            return real.sendmsg(pieces, *rest)

        def recv_into(self, room: memoryview) -> int:
            return real.recv_into(room)

    numbers = [b"%d" % number for number in range(PIECES)]
    with monkeypatch.context() as patch:
        patch.setattr(pipe, "_send", full)
        patch.setattr(pipe, "_socket", Counting())
        for number in numbers:
            assert a.send(b">b", [number])
        assert [received(b, a)[1] for _ in numbers] == numbers
    assert writes == [PIECES]


def test_one_that_sends_on_and_on_looks_for_room_itself(pair: tuple[Router, Router]) -> None:
    a, b = pair
    message = bytes(1000)
    while not a._pipes[b">b"].waits():
        a.send(b">b", [message])
    while b.wait(0.0) == [] and b.receive() is not None:
        while b.receive() is not None:
            pass
    for _ in range(2 * pipe_module.GATHERED // len(message)):
        a.send(b">b", [message])
    assert b.readable()
    assert a._pipes[b">b"]._gathered < pipe_module.GATHERED


def test_what_goes_with_the_name_and_finds_no_room_is_told_as_any_other(
    make_router: MakeRouter, sockets: Path
) -> None:
    a, b = make_router("a"), make_router("b")
    full: list[int] = []
    a.on_full = lambda: full.append(1)
    bulk = os.urandom(LARGE)
    a.connect(b">b", address(sockets, "b"), [[b"small"], [bulk]])
    assert full == [1], "or nobody would wait for room"
    assert received(b, a) == [b"a", b"small"]
    assert received(b, a) == [b"a", bulk]
