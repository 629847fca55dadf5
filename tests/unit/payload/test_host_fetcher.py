"""A gateway that fetches: what it asks for, what it hands in, with segments and without."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from monarch._src.net.hosts.gateway import Gateway
from monarch._src.net.node import Node
from monarch._src.payload.host_fetcher import Fetcher, Segments
from monarch._src.payload.pieces import Outcome, Wanted
from monarch._src.payload.receiver import PayloadReceiver
from monarch._src.payload.sender import HEADER
from monarch._src.payload.state.fetches import PIECE
from monarch._src.wire.frames import FrameError, Payload, carried, decode, encode, lent_in
from monarch._src.wire.messages import (
    OK,
    AnyMessage,
    AskPart,
    PayloadPart,
    PayloadTaken,
    Reply,
    Shutdown,
)
from monarch._src.wire.segment_refs import InSegment

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="segments need memfd_create, which Linux has"
)
BODY, BUFFER = os.urandom(PIECE + 3), os.urandom(5)


class Desk:
    """Stands for a gateway and its node: notes what goes out and what is handed in."""

    name, site = "agent", "here"

    def __init__(self) -> None:
        self.asked: list[AnyMessage] = []
        self.handed: list[tuple[AnyMessage, Payload]] = []
        self.reaches = True

    def pass_on(self, _sender: str, _origin: str, _to: str, _site: str, frames: Any) -> bool:
        self.asked.append(decode(frames)[0])
        return self.reaches

    def hand_in(self, _sender: str, _origin: str, _to: str, frames: Any) -> bool:
        self.handed.append(decode([bytes(frames[0]), *frames[1:]]))
        return True


class Bulk:
    """Stands for the connections beside links: notes what is asked for there."""

    def __init__(self, why_not: str) -> None:
        self.why = why_not
        self.wanted: list[Wanted] = []
        self.over: list[str] = []
        self.done: Callable[[Wanted, Outcome, str], None] = lambda _wanted, _outcome, _why: None

    def why_not(self, _site: str) -> str:
        return self.why

    def ask(self, _site: str, wanted: Wanted) -> None:
        self.wanted.append(wanted)

    def forget_site(self, site: str) -> None:
        self.over.append(site)


class Host:
    """A fetcher, and who sends to it."""

    def __init__(self, *, has_segments: bool, why_not: str = "all ports are closed") -> None:
        self.desk, self.bulk = Desk(), Bulk(why_not)
        self.segments = Segments(lambda node, _: (node,))
        if not has_segments:
            self.segments.to_lend().close()
        self.fetcher = Fetcher(
            cast(Node, self.desk), cast(Gateway, self.desk), self.segments.to_lend,
            cast(Any, self.bulk),
        )  # fmt: skip

    def came(self, number: int, frames: Sequence[Any]) -> bool:
        return self.fetcher._passes("sender", "there", f"to {number}", frames)  # pyright: ignore[reportPrivateUsage]

    def serve(self, parts: Sequence[bytes]) -> None:
        """Send all that is asked for."""
        while self.desk.asked:
            ask = self.desk.asked.pop(0)
            if isinstance(ask, AskPart):
                piece = parts[ask.part][ask.at : ask.at + ask.size]
                part = PayloadPart(ask.number, ask.key, ask.word, ask.part, ask.at)
                self.fetcher.on_part("sender", part, Payload(b"", [piece]))


@pytest.fixture(params=[True, False], ids=["segments", "no segments"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(has_segments=request.param)
    yield made
    made.segments.close()


def lent(*sizes: int, body: bool = True, word: int = 1) -> InSegment:
    spans: list[tuple[int, int]] = []
    at = HEADER
    for size in sizes:
        spans.append((at, size))
        at += size
    return InSegment(1, 1, 1, 1, 99, 7, at, word, True, False, body, tuple(spans))


def message(number: int, apart: InSegment, body: bytes = b"") -> list[Any]:
    return list(encode(Reply(number, 0, OK), Payload(body, (apart,))))


def read(payload: Payload, borrower: PayloadReceiver) -> list[bytes]:
    """Body and buffers of what was handed in, as its receiver has them."""
    if payload.buffers and isinstance(payload.buffers[0], InSegment):
        payload.buffers = (borrower.borrow(payload.buffers[0], 0),)
    whole = carried(payload)
    return [bytes(whole.body), *(bytes(cast(Any, part)) for part in whole.buffers)]


def test_a_message_is_handed_in_whole_with_its_body_apart_or_not(host: Host) -> None:
    borrower = PayloadReceiver()
    for number, (apart, body, parts) in enumerate([
        (lent(len(BODY), len(BUFFER)), b"", [BODY, BUFFER]),
        (lent(len(BODY), len(BUFFER), body=False), b"pickle", [BODY, BUFFER]),
        (lent(len(BODY)), b"", [BODY]),
    ]):  # fmt: skip
        assert not host.came(number, message(number, apart, body))
        host.serve(parts)
        ((said, payload),) = host.desk.handed
        assert said == Reply(number, 0, OK)
        assert read(payload, borrower) == ([body, *parts] if body else parts)
        host.desk.handed.clear()
    borrower.close()


def test_what_was_taken_or_given_up_is_told_to_its_sender(host: Host) -> None:
    host.came(1, message(1, lent(8)))
    host.serve([b"12345678"])
    host.came(2, message(2, lent(8, word=2)))
    asked = host.desk.asked.pop()
    assert asked == AskPart(7, 99, 2, 0, 0, 8)
    host.fetcher.on_part("sender", PayloadPart(7, 99, 2, 0, 0), Payload(b""))  # it is gone
    assert host.desk.asked == [PayloadTaken(7, 99, 2, 0, "all ports are closed")]
    assert len(host.desk.handed) == 1
    host.fetcher.on_part("sender", PayloadPart(7, 99, 2, 0, 0), Payload(b"", [b"12345678"]))
    assert len(host.desk.handed) == 1


def test_of_a_sender_that_is_out_of_reach_or_ends_what_is_behind_is_handed_in(host: Host) -> None:
    small = list(encode(Shutdown("behind it")))
    host.came(1, message(1, lent(8)))
    assert not host.came(1, small)
    host.fetcher.on_sender_ended("there", "sender")
    assert [said for said, _ in host.desk.handed] == [Shutdown("behind it")]
    host.desk.reaches = False
    host.came(1, message(1, lent(8, word=2)))
    assert host.came(1, small), "nothing waits for it"


def test_a_piece_that_was_not_asked_for_ends_the_payload_and_nothing_else(host: Host) -> None:
    host.came(1, message(1, lent(8)))
    host.fetcher.on_part("sender", PayloadPart(7, 99, 1, 0, 3), Payload(b"", [b"12345"]))
    assert host.desk.handed == []
    host.came(2, message(2, lent(8, word=2)))
    host.serve([b"12345678"])
    assert [said for said, _ in host.desk.handed] == [Reply(2, 0, OK)]


@pytest.fixture(params=[True, False], ids=["segments", "no segments"])
def beside(request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host that asks beside the links."""
    made = Host(has_segments=request.param, why_not="")
    yield made
    made.segments.close()


def put(wanted: Wanted, parts: Sequence[bytes]) -> None:
    """As a thread of `Bulk` does with a piece that has come."""
    data = parts[wanted.part][wanted.at : wanted.at + wanted.size]
    room = wanted.here.room(wanted.part, wanted.at, wanted.size)
    if room is None:
        wanted.here.write(wanted.part, wanted.at, data)
    else:
        room[:] = data


def test_pieces_that_come_beside_the_link_in_any_order_make_the_message(beside: Host) -> None:
    borrower = PayloadReceiver()
    for number in range(3):  # in new memory, and in memory that is there
        assert not beside.came(number, message(number, lent(len(BODY), len(BUFFER))))
        assert len(beside.bulk.wanted) == 3
        for wanted in reversed(beside.bulk.wanted):
            put(wanted, [BODY, BUFFER])
            beside.bulk.done(wanted, Outcome.HERE, "")
        beside.bulk.wanted.clear()
        ((said, payload),) = beside.desk.handed
        assert said == Reply(number, 0, OK)
        assert read(payload, borrower) == [BODY, BUFFER]
        beside.desk.handed.clear()
        del payload
        taken = PayloadTaken(7, 99, 1, len(BODY) + len(BUFFER), "")
        assert beside.desk.asked == [taken], "nothing but that goes over the link"
        beside.desk.asked.clear()
    borrower.close()


@pytest.mark.parametrize("outcome", [Outcome.DOWN, Outcome.STALE, Outcome.UNREADABLE])
def test_what_does_not_come_beside_the_link_comes_by_it(beside: Host, outcome: Outcome) -> None:
    borrower = PayloadReceiver()
    beside.came(1, message(1, lent(len(BODY), len(BUFFER))))
    first, second, third = beside.bulk.wanted
    put(second, [BODY, BUFFER])
    beside.bulk.done(second, Outcome.HERE, "")
    for wanted in (third, first):
        beside.bulk.done(wanted, outcome, "why not")
    beside.serve([BODY, BUFFER])
    ((_, payload),) = beside.desk.handed
    assert read(payload, borrower) == [BODY, BUFFER]
    beside.came(2, message(2, lent(8, word=2)))
    is_of_the_sender = outcome is Outcome.UNREADABLE
    assert len(beside.bulk.wanted) == (3 if is_of_the_sender else 4)
    beside.fetcher.on_sender_ended("there", "sender")
    beside.came(3, message(3, lent(8, word=3)))
    assert beside.bulk.wanted[-1].lent.word == 3, "another sender of that name"
    borrower.close()


def test_a_piece_for_which_there_is_no_memory_ends_its_payload_and_no_other(beside: Host) -> None:
    beside.came(1, message(1, lent(8)))
    beside.came(2, message(2, lent(8, word=2)))
    first, second = beside.bulk.wanted
    beside.bulk.done(first, Outcome.NO_MEMORY, "no space left on device")
    put(second, [b"12345678"])
    beside.bulk.done(second, Outcome.HERE, "")
    assert [said for said, _ in beside.desk.handed] == [Reply(2, 0, OK)]


def test_a_piece_of_a_dropped_payload_touches_no_segment_of_another(beside: Host) -> None:
    beside.came(1, message(1, lent(8)))
    (late,) = beside.bulk.wanted
    beside.fetcher.on_sender_ended("there")
    assert beside.bulk.over == ["there"]
    beside.came(2, message(2, lent(8, word=2)))
    new = beside.bulk.wanted[-1]
    put(new, [b"12345678"])
    put(late, [b"too late"])  # its thread has not ended yet
    beside.bulk.done(late, Outcome.HERE, "")
    beside.bulk.done(new, Outcome.HERE, "")
    ((said, payload),) = beside.desk.handed
    assert said == Reply(2, 0, OK)
    borrower = PayloadReceiver()
    assert read(payload, borrower) == [b"12345678"]
    borrower.close()


@pytest.mark.parametrize("cut", [1, 3, 5, 9, 12, 30])
def test_frames_that_are_cut_or_say_nonsense_are_refused(host: Host, cut: int) -> None:
    (frame,) = message(1, lent(8))
    assert lent_in([frame]) == lent(8)
    for frames in ([frame[:cut]], [frame, b"more"]):
        try:
            assert lent_in(frames) is None
            decode(frames)
        except FrameError:
            continue
        pytest.fail("it was taken")
    with pytest.raises(FrameError, match="an invalid segment reference"):
        host.came(1, message(1, InSegment(1, 1, 1, 1, 99, 7, 100, 1, True, False, True, ((0, 8),))))
