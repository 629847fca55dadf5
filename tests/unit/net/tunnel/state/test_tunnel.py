"""Both ends of a tunnel, driven through schedules of random trouble on a network in memory."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._src.net.tunnel.state.tunnel import (
    MOST_STREAMS,
    PIECE,
    WINDOW,
    Action,
    Dial,
    Opened,
    Say,
    Shut,
    Tunnel,
    TunnelMessage,
    Write,
)
from monarch._src.wire.messages import (
    TunnelBytes,
    TunnelClose,
    TunnelCredit,
    TunnelOpen,
    TunnelOpened,
)

WHERE = "tcp://10.0.0.2:26600"


def opened() -> tuple[Tunnel, Tunnel, int]:
    near, far = Tunnel(near=True), Tunnel(near=False)
    stream, _ = near.asked(WHERE)
    far.received(TunnelOpen(stream, WHERE))
    far.dialled(stream, WHERE)
    near.received(TunnelOpened(stream, WHERE))
    return near, far, stream


def test_a_stream_is_asked_for_dialled_and_open_on_both_sides() -> None:
    near, far = Tunnel(near=True), Tunnel(near=False)
    stream, [ask] = near.asked(WHERE)
    assert isinstance(ask, Say)
    [dial] = far.received(ask.message)
    assert isinstance(dial, Dial)
    assert str(dial.address) == WHERE
    assert near.may_read(stream) == far.may_read(stream) == 0
    [said] = far.dialled(stream, WHERE)
    assert isinstance(said, Say)
    assert near.received(said.message) == [Opened(stream, WHERE)]
    assert near.may_read(stream) == far.may_read(stream) == PIECE


def test_what_cannot_be_dialled_is_told_with_the_reason() -> None:
    near, far = Tunnel(near=True), Tunnel(near=False)
    stream, [ask] = near.asked(WHERE)
    assert isinstance(ask, Say)
    far.received(ask.message)
    [said] = far.not_dialled(stream, "nobody listens")
    assert isinstance(said, Say)
    assert near.received(said.message) == [Shut(stream, "nobody listens")]
    assert len(near) == len(far) == 0


@pytest.mark.parametrize(
    "address",
    ["ipc:///tmp/worker", "tcp://*:26600", "tcp://h2:0", "h2:26600", "", "tcp://0.0.0.0:1"],
)
def test_a_gateway_dials_tcp_addresses_of_hosts_and_nothing_else(address: str) -> None:
    far = Tunnel(near=False)
    [said] = far.received(TunnelOpen(1, address))
    assert isinstance(said, Say)
    assert isinstance(said.message, TunnelOpened)
    assert said.message.why
    assert len(far) == 0


@pytest.mark.parametrize("address", [WHERE, "tcp://h2:26600", "tcp://[fe80::1]:26600"])
def test_a_gateway_without_keys_dials_its_own_loopback_only(address: str) -> None:
    far = Tunnel(near=False, beyond=False)
    [said] = far.received(TunnelOpen(1, address))
    assert isinstance(said, Say)
    assert isinstance(said.message, TunnelOpened)
    assert "without keys" in said.message.why
    assert isinstance(far.received(TunnelOpen(2, "tcp://127.0.0.1:26600"))[0], Dial)


def test_who_takes_nothing_is_sent_a_window_and_no_more() -> None:
    near, far, stream = opened()
    sent = 0
    while size := near.may_read(stream):
        for action in near.read(stream, bytes(size)):
            assert isinstance(action, Say)
            far.received(action.message, action.body)
        sent += size
    assert sent == WINDOW == far.held
    assert far.wrote(stream, PIECE) == []
    [credit] = far.wrote(stream, WINDOW // 2)
    assert isinstance(credit, Say)
    near.received(credit.message)
    assert near.may_read(stream) == PIECE


def test_a_slow_stream_takes_nothing_from_another() -> None:
    near, _, slow = opened()
    other, _ = near.asked(WHERE)
    near.received(TunnelOpened(other, WHERE))
    while size := near.may_read(slow):
        near.read(slow, bytes(size))
    assert near.may_read(other) == PIECE


def test_what_was_sent_before_the_end_is_still_written() -> None:
    near, far, stream = opened()
    near.read(stream, b"last words")
    [write] = far.received(TunnelBytes(stream), b"last words")
    assert write == Write(stream, b"last words")
    [bye] = near.ended(stream)
    assert isinstance(bye, Say)
    assert far.received(bye.message) == []
    assert far.ends(stream)
    assert far.may_read(stream) == 0
    assert far.wrote(stream, 4) == []
    assert far.wrote(stream, 6) == [Shut(stream)]
    assert len(near) == len(far) == 0


def test_who_ends_while_it_is_dialled_is_dialled_no_longer() -> None:
    near, far = Tunnel(near=True), Tunnel(near=False)
    stream, _ = near.asked(WHERE)
    far.received(TunnelOpen(stream, WHERE))
    near.ended(stream)
    assert far.received(TunnelClose(stream)) == [Shut(stream)]
    assert far.dialled(stream, WHERE) == [Shut(stream)]
    assert far.not_dialled(stream, "too late") == []


def test_the_end_of_the_link_ends_every_stream_and_another_begins_anew() -> None:
    near, far, stream = opened()
    assert near.cut("it is lost") == [Shut(stream, "it is lost")]
    assert far.cut("it is lost") == [Shut(stream, "it is lost")]
    again, [ask] = near.asked(WHERE)
    assert isinstance(ask, Say)
    assert again == stream
    assert isinstance(far.received(ask.message)[0], Dial)


def test_more_streams_than_there_may_be_are_refused_by_both_sides() -> None:
    near, far = Tunnel(near=True), Tunnel(near=False)
    for _ in range(MOST_STREAMS):
        stream, _ = near.asked(WHERE)
        assert isinstance(far.received(TunnelOpen(stream, WHERE))[0], Dial)
    with pytest.raises(OSError, match=f"{MOST_STREAMS} connections"):
        near.asked(WHERE)
    [said] = far.received(TunnelOpen(MOST_STREAMS + 1, WHERE))
    assert isinstance(said, Say)
    assert isinstance(said.message, TunnelOpened)
    assert said.message.why
    far.validate()


def test_who_sends_more_than_it_may_loses_that_stream_and_no_other() -> None:
    near, far, stream = opened()
    other, _ = near.asked(WHERE)
    far.received(TunnelOpen(other, WHERE))
    far.dialled(other, WHERE)
    close, shut = far.received(TunnelBytes(stream), bytes(WINDOW + 1))
    assert isinstance(close, Say)
    assert isinstance(close.message, TunnelClose)
    assert isinstance(shut, Shut)
    assert far.may_read(other) == PIECE


def test_no_credit_that_is_claimed_makes_an_end_send_more_than_a_window_ahead() -> None:
    _, far, stream = opened()
    far.received(TunnelCredit(stream, 1 << 60))
    sent = 0
    while size := far.may_read(stream):
        far.read(stream, bytes(size))
        sent += size
    assert sent == WINDOW


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize(
    "message",
    [
        TunnelOpened(7, WHERE), TunnelBytes(7), TunnelCredit(7, 1 << 70), TunnelClose(7),
        TunnelOpen(0, WHERE), TunnelCredit(-1, -1),
    ],
)  # fmt: skip
def test_what_comes_of_no_stream_is_dropped(near: bool, message: TunnelMessage) -> None:
    tunnel = Tunnel(near=near)
    assert tunnel.received(message, b"bytes") == []
    tunnel.validate()


NUMBERS = st.integers(-1, 4) | st.integers(-(1 << 63), (1 << 63) - 1)
SAID = st.one_of(
    st.builds(TunnelOpen, NUMBERS, st.sampled_from([WHERE, "tcp://localhost:1", "x"]) | st.text()),
    st.builds(TunnelOpened, NUMBERS, st.text(), st.sampled_from(["", "no"])),
    st.builds(TunnelBytes, NUMBERS),
    st.builds(TunnelCredit, NUMBERS, NUMBERS),
    st.builds(TunnelClose, NUMBERS, st.text()),
)


@given(st.booleans(), st.lists(st.tuples(SAID, st.integers(0, 2 * WINDOW), st.booleans())))
def test_whatever_the_other_end_says_an_end_keeps_its_rules(
    near: bool, said: list[tuple[TunnelMessage, int, bool]]
) -> None:
    tunnel = Tunnel(near=near)
    if near:
        tunnel.asked(WHERE)
    for message, size, answers in said:
        for action in tunnel.received(message, bytes(size)):
            if isinstance(action, Dial) and answers:
                tunnel.dialled(action.stream, WHERE)
            if isinstance(action, Write) and answers:
                tunnel.wrote(action.stream, len(action.data))
        tunnel.validate()


class Side:
    """One end, with connections in memory: what is still to be read, and what was written."""

    def __init__(self, tunnel: Tunnel, rng: random.Random) -> None:
        self.tunnel = tunnel
        self.rng = rng
        self.out: deque[tuple[TunnelMessage, bytes]] = deque()
        self.to_read: dict[int, bytes] = {}
        self.was_read: dict[int, bytes] = {}
        self.pending: dict[int, bytes] = {}
        self.written: dict[int, bytes] = {}
        self.dialling: set[int] = set()
        self.open: set[int] = set()
        self.shut: set[int] = set()

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Say(message, body):
                    self.out.append((message, bytes(body)))
                case Dial(stream, _):
                    self.dialling.add(stream)
                case Opened(stream, _):
                    self.begins(stream)
                case Write(stream, data):
                    assert stream not in self.shut
                    self.pending[stream] = self.pending.get(stream, b"") + bytes(data)
                case Shut(stream, why):
                    assert not self.pending.get(stream) or why
                    self.over(stream)
        self.tunnel.validate()

    def begins(self, stream: int) -> None:
        self.open.add(stream)
        self.to_read[stream] = self.rng.randbytes(self.rng.randrange(3 * WINDOW // 2))

    def over(self, stream: int) -> None:
        self.dialling.discard(stream)
        self.open.discard(stream)
        self.shut.add(stream)
        self.pending.pop(stream, None)

    def step(self) -> None:
        rng = self.rng
        if self.dialling and rng.random() < 0.5:
            stream = rng.choice(sorted(self.dialling))
            self.dialling.discard(stream)
            if rng.random() < 0.8:
                self.begins(stream)
                self.do(self.tunnel.dialled(stream, WHERE))
            else:
                self.do(self.tunnel.not_dialled(stream, "no"))
        for stream in sorted(self.open):
            if (most := self.tunnel.may_read(stream)) and rng.random() < 0.7:
                data = self.to_read[stream][: rng.randrange(most) + 1]
                if data:
                    self.to_read[stream] = self.to_read[stream][len(data) :]
                    self.was_read[stream] = self.was_read.get(stream, b"") + data
                    self.do(self.tunnel.read(stream, data))
                elif rng.random() < 0.5:
                    self.over(stream)
                    self.do(self.tunnel.ended(stream))
                    continue
            waiting = self.pending.get(stream, b"")
            if waiting and rng.random() < 0.6:
                size = rng.randrange(len(waiting)) + 1
                self.written[stream] = self.written.get(stream, b"") + waiting[:size]
                self.pending[stream] = waiting[size:]
                self.do(self.tunnel.wrote(stream, size))
            elif rng.random() < 0.002:
                self.over(stream)
                self.do(self.tunnel.ended(stream, "broken"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 5))
def test_bytes_arrive_in_order_or_not_at_all_and_nothing_is_left_in_the_end(
    seed: int, streams: int
) -> None:
    rng = random.Random(seed)
    near, far = Side(Tunnel(near=True), rng), Side(Tunnel(near=False), rng)
    left = streams
    for _ in range(20_000):
        if left and rng.random() < 0.2:
            left -= 1
            _, actions = near.tunnel.asked(WHERE)
            near.do(actions)
        near.step()
        far.step()
        for one, other in ((near, far), (far, near)):
            for _ in range(rng.randrange(4)):
                if one.out:
                    message, body = one.out.popleft()
                    other.do(other.tunnel.received(message, body))
        assert near.tunnel.held <= streams * WINDOW
        assert far.tunnel.held <= streams * WINDOW
        if not left and not len(near.tunnel) and not len(far.tunnel) and not near.out:
            break
    assert len(near.tunnel) == len(far.tunnel) == 0
    for one, other in ((near, far), (far, near)):
        for stream, came in one.written.items():
            assert other.was_read[stream].startswith(came)
