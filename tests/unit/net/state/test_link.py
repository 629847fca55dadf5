"""The session of a link: one case a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch._src.net.state.link import ACK_EVERY, Link, NoRoomError
from monarch._src.net.state.link_actions import (
    TRANSITIONS,
    Action,
    Bounds,
    Deliver,
    LinkDown,
    LinkState,
    LinkUp,
    PeerLeft,
    PeerLost,
    PeerRefused,
    Room,
    Transmit,
)
from monarch._src.wire.link_protocol import (
    Ack,
    Data,
    LinkHello,
    LinkMessage,
    LinkRefused,
    decode_link,
    encode_link,
)

VERSIONS = {"protocol": "1", "monarch": "0.1.0", "python": "3.11.7", "platform": "linux"}
BOUNDS = Bounds(patience_s=24.0, ping_s=1.0, window=1000, queue=4000)


class Ends:
    """The two ends, a clock, and a wire that carries everything at once, unless it is cut."""

    def __init__(
        self,
        bounds: Bounds = BOUNDS,
        a_versions: dict[str, str] = VERSIONS,
        b_versions: dict[str, str] = VERSIONS,
    ) -> None:
        self.now = 0.0
        self.a = Link("a", 10, a_versions, "b", bounds, 0.0)
        self.b = Link("b", 20, b_versions, "a", bounds, 0.0)
        self.told: dict[Link, list[Action]] = {self.a: [], self.b: []}
        self.carried: list[tuple[Link, LinkMessage]] = []
        self.passes: Callable[[Link, LinkMessage], bool] = lambda _link, _message: True

    def other(self, link: Link) -> Link:
        return self.b if link is self.a else self.a

    def do(self, link: Link, actions: list[Action]) -> None:
        link.validate()
        for action in actions:
            if not isinstance(action, Transmit):
                self.told[link].append(action)
            elif self.passes(link, action.message):
                self.carried.append((link, action.message))
                message = decode_link([encode_link(action.message), *action.frames])
                to = self.other(link)
                self.do(to, to.received(message, action.frames, self.now))

    def connect(self) -> None:
        for link in (self.a, self.b):
            self.do(link, link.connected(self.now))

    def disconnect(self) -> None:
        for link in (self.a, self.b):
            self.do(link, link.disconnected(self.now))

    def send(self, link: Link, *messages: bytes) -> None:
        for message in messages:
            self.do(link, link.send([message], self.now))

    def handle(self, link: Link, size: int) -> None:
        self.do(link, link.handled(size))

    def wait(self, seconds: float) -> None:
        """Let time pass, looking at it when the ends want to."""
        end = self.now + seconds
        while True:
            deadlines = [d for link in (self.a, self.b) if (d := link.next_deadline()) is not None]
            if not deadlines or min(deadlines) > end:
                break
            self.now = max(self.now, min(deadlines))
            for link in (self.a, self.b):
                self.do(link, link.time_passed(self.now))
        self.now = end

    def got(self, link: Link) -> list[bytes]:
        return [b"".join(action.frames) for action in self.told[link] if type(action) is Deliver]

    def notices(self, link: Link) -> list[type[Action]]:
        return [type(action) for action in self.told[link] if type(action) is not Deliver]


@pytest.fixture
def ends() -> Ends:
    both = Ends()
    both.connect()
    return both


def cut(link: Link, kind: type[LinkMessage]) -> Callable[[Link, LinkMessage], bool]:
    """Let all pass but what `link` says of that kind."""
    return lambda sender, message: not (sender is link and isinstance(message, kind))


# --- while all goes well --------------------------------------------------------------------------


def test_both_are_up_after_one_hello_from_each_side(ends: Ends) -> None:
    assert (ends.a.state, ends.b.state) == (LinkState.UP, LinkState.UP)
    assert ends.a.session == ends.b.session == 10 ^ 20
    assert ends.told[ends.a] == ends.told[ends.b] == [LinkUp(False)]


def test_what_is_sent_before_there_is_a_connection_arrives_in_order_afterwards() -> None:
    ends = Ends()
    ends.send(ends.a, b"1", b"2")
    ends.connect()
    ends.send(ends.a, b"3")
    assert ends.got(ends.b) == [b"1", b"2", b"3"]
    assert ends.got(ends.a) == []


def test_a_message_of_several_frames_arrives_as_it_was_sent(ends: Ends) -> None:
    frames = [b"head", bytearray(b"x" * 50), memoryview(b"tail")]
    ends.do(ends.a, ends.a.send(frames, 0.0))
    assert [a.frames for a in ends.told[ends.b] if isinstance(a, Deliver)] == [frames]


def test_messages_are_acknowledged_by_what_goes_the_other_way(ends: Ends) -> None:
    ends.send(ends.a, *[b"x"] * 10)
    assert ends.a.unacknowledged == 10
    ends.send(ends.b, b"y")
    assert (ends.a.unacknowledged, ends.a.held) == (0, 0)
    assert not any(isinstance(message, Ack) for _, message in ends.carried)


def test_where_nothing_goes_the_other_way_there_is_one_ack_for_many(ends: Ends) -> None:
    ends.send(ends.a, *[b"x"] * (3 * ACK_EVERY + 5))
    assert sum(isinstance(message, Ack) for _, message in ends.carried) == 3
    assert ends.a.unacknowledged == 5
    ends.wait(2 * BOUNDS.ping_s)
    assert ends.a.unacknowledged == 0


# --- connections that break -----------------------------------------------------------------------


def test_what_a_connection_lost_is_sent_again_after_the_next_and_nothing_comes_twice(
    ends: Ends,
) -> None:
    ends.send(ends.a, b"1")
    ends.passes = cut(ends.a, Data)
    ends.send(ends.a, b"2", b"3")
    ends.disconnect()
    ends.passes = lambda _link, _message: True
    ends.send(ends.a, b"4")
    ends.connect()
    assert ends.got(ends.b) == [b"1", b"2", b"3", b"4"]
    assert ends.notices(ends.a) == [LinkUp, LinkDown, LinkUp]
    assert ends.told[ends.a][-1] == LinkUp(True)


def test_what_arrived_but_was_not_acknowledged_is_not_delivered_again(ends: Ends) -> None:
    ends.send(ends.a, b"1", b"2")
    assert ends.a.unacknowledged == 2
    ends.disconnect()
    ends.connect()
    assert ends.got(ends.b) == [b"1", b"2"]
    assert ends.a.unacknowledged == 0


def test_a_loss_without_a_break_is_noticed_by_a_ping(ends: Ends) -> None:
    ends.passes = cut(ends.a, Data)
    ends.send(ends.a, b"1", b"2")
    ends.passes = lambda _link, _message: True
    ends.send(ends.a, b"3")
    assert ends.got(ends.b) == []
    ends.wait(2 * BOUNDS.ping_s)
    assert ends.got(ends.b) == [b"1", b"2", b"3"]


def test_a_hello_that_is_lost_is_said_again(ends: Ends) -> None:
    both = Ends()
    both.passes = lambda _link, message: not isinstance(message, LinkHello)
    both.connect()
    both.passes = lambda _link, _message: True
    both.wait(2 * BOUNDS.ping_s)
    assert both.a.state is both.b.state is LinkState.UP


def test_a_new_connection_in_place_of_one_that_was_not_known_to_be_broken_loses_nothing(
    ends: Ends,
) -> None:
    ends.passes = cut(ends.a, Data)
    ends.send(ends.a, b"1")
    ends.passes = lambda _link, _message: True
    ends.do(ends.a, ends.a.connected(ends.now))
    assert ends.got(ends.b) == [b"1"]


# --- lost -----------------------------------------------------------------------------------------


def test_a_link_that_is_down_for_less_than_patience_is_no_failure(ends: Ends) -> None:
    ends.disconnect()
    ends.send(ends.b, b"kept")
    ends.wait(BOUNDS.patience_s - 0.01)
    ends.connect()
    assert ends.got(ends.a) == [b"kept"]
    assert PeerLost not in ends.notices(ends.a) + ends.notices(ends.b)


def test_one_that_is_down_for_longer_is_lost_on_both_sides_which_say_what_was_not_said(
    ends: Ends,
) -> None:
    ends.disconnect()
    ends.send(ends.a, b"1", b"2")
    ends.wait(BOUNDS.patience_s)
    assert ends.told[ends.a][-1] == PeerLost("no connection to it for 24.0 s", 2)
    assert ends.notices(ends.b)[-1] is PeerLost
    with pytest.raises(ConnectionError, match="the link to b has ended: no connection to it"):
        ends.send(ends.a, b"3")


def test_one_that_has_given_up_tells_the_other_whenever_it_hears_of_it(ends: Ends) -> None:
    ends.do(ends.a, ends.a.disconnected(ends.now))
    ends.passes = lambda _link, _message: False
    for _ in range(30):
        ends.now += 1.0
        ends.do(ends.a, ends.a.time_passed(ends.now))
    assert ends.a.state is LinkState.LOST
    assert ends.b.state is LinkState.UP
    ends.passes = lambda _link, _message: True
    ends.do(ends.b, ends.b.connected(ends.now))
    assert ends.b.state is LinkState.LOST
    assert ends.b.why == "it has given up this side: no connection to it for 24.0 s"


def test_a_peer_that_lives_anew_is_lost_and_what_its_old_life_was_sent_never_reaches_the_new(
    ends: Ends,
) -> None:
    ends.send(ends.a, b"for the old")
    anew = Link("b", 21, VERSIONS, "a", BOUNDS, ends.now)
    ends.told[anew] = []
    ends.b = anew
    ends.connect()
    assert ends.told[ends.a][-1] == PeerLost("it has begun a new incarnation", 1)
    assert ends.got(anew) == []
    assert anew.state is not LinkState.UP


def test_messages_of_an_earlier_life_are_for_nobody(ends: Ends) -> None:
    late = Data(9 ^ 20, 1, 0, 1 << 30)
    assert ends.b.received(late, [b"late"], 0.0) == []
    old_hello = LinkHello("a", 9, VERSIONS, 0, 0, 1000, True)
    assert ends.b.received(old_hello, [], 0.0) == []
    assert ends.b.state is LinkState.UP


def test_a_peer_that_claims_what_was_never_sent_is_lost_and_not_believed(ends: Ends) -> None:
    ends.do(ends.a, ends.a.received(Ack(ends.a.session, 7, 0), [], 0.0))
    assert ends.told[ends.a][-1] == PeerLost("it acknowledged 7 of 0 messages", 0)


def refusing(refused_s: float | None) -> Ends:
    """Two ends that were up, and whose connection is cut."""
    found = Ends(Bounds(patience_s=24.0, ping_s=1.0, refused_s=refused_s))
    found.connect()
    found.disconnect()
    return found


def test_an_address_that_refuses_connections_for_a_while_has_lost_its_process() -> None:
    ends = refusing(2.0)
    for at in (0.1, 1.0, 2.0):
        assert ends.a.connection_refused(at) == []
    (lost,) = [one for one in ends.a.connection_refused(2.1) if isinstance(one, PeerLost)]
    assert "no process has listened at its address for 2.0 s" in lost.why
    assert ends.a.state is LinkState.LOST
    assert ends.a.connection_refused(9.0) == []


def test_a_connection_between_two_refusals_begins_the_time_anew() -> None:
    ends = refusing(2.0)
    assert ends.a.connection_refused(0.1) == []
    ends.connect()
    ends.disconnect()
    assert ends.a.connection_refused(5.0) == []
    assert ends.a.state is LinkState.DOWN


def test_refusals_count_neither_before_the_first_connection_nor_without_a_bound() -> None:
    first = Ends(Bounds(patience_s=24.0, ping_s=1.0, refused_s=2.0))
    unbounded = refusing(None)
    for link in (first.a, unbounded.a):
        for at in (0.1, 20.0):
            assert link.connection_refused(at) == []
        assert link.state is LinkState.DOWN


def test_a_process_that_did_not_run_for_a_while_does_not_take_others_for_lost(ends: Ends) -> None:
    ends.disconnect()
    ends.now += 10 * BOUNDS.patience_s
    ends.do(ends.a, ends.a.time_passed(ends.now))
    assert ends.a.state is LinkState.DOWN
    ends.wait(BOUNDS.patience_s)
    assert ends.a.state is LinkState.LOST


def test_a_busy_peer_whose_connection_is_up_is_never_lost(ends: Ends) -> None:
    ends.passes = lambda link, _message: link is ends.a
    ends.wait(100 * BOUNDS.patience_s)
    assert ends.a.state is LinkState.UP


def test_one_that_always_answers_is_lost_when_it_does_not() -> None:
    prompt = Bounds(patience_s=24.0, ping_s=1.0, silence_s=24.0)
    ends = Ends(prompt)
    ends.connect()
    ends.wait(100.0)
    ends.passes = lambda link, _message: link is ends.b  # one-way: b speaks, and hears nothing
    ends.wait(23.0)
    assert ends.a.state is ends.b.state is LinkState.UP
    ends.wait(3.0)
    assert ends.a.state is ends.b.state is LinkState.LOST
    assert "it has not answered for 24" in ends.b.why


# --- orderly ends and refusals --------------------------------------------------------------------


def test_who_closes_says_so_and_the_other_knows_that_it_is_no_failure(ends: Ends) -> None:
    ends.send(ends.a, b"last")
    ends.do(ends.a, ends.a.close("done", ends.now))
    assert ends.told[ends.b][-2:] == [Deliver([b"last"], 4), PeerLeft("done")]
    assert ends.a.state is ends.b.state is LinkState.LEFT
    assert ends.a.bye_received, "it may close the connection now: the other has heard it"
    assert ends.b.bye_received
    assert ends.a.close("again", ends.now) == []


@pytest.mark.parametrize(
    ("key", "theirs"),
    [
        ("protocol", "2"), ("monarch", "0.2.0"), ("python", "3.12.1"), ("platform", "darwin"),
        ("cloudpickle", "2.2"), ("torch", "2.5.1"), ("link", "2"),
    ],
)  # fmt: skip
def test_versions_that_differ_are_refused_with_a_table_on_both_sides(key: str, theirs: str) -> None:
    mine = {**VERSIONS, "cloudpickle": "3.0.0", "torch": "2.13.0", "link": "1"}
    ends = Ends(a_versions=mine, b_versions={**mine, key: theirs})
    ends.connect()
    for link, here, there in ((ends.a, mine[key], theirs), (ends.b, theirs, mine[key])):
        refused = ends.told[link][-1]
        assert isinstance(refused, PeerRefused)
        lines = refused.why.splitlines()
        assert lines[0] == f"{link.peer} speaks another version:"
        assert lines[1].split() == ["here", "there"]
        marked = [line.split() for line in lines if "<-- differs" in line]
        assert marked == [[key, here, there, "<--", "differs"]]
        assert link.state is LinkState.REFUSED


def test_who_is_refused_before_it_has_heard_a_hello_is_told_why(ends: Ends) -> None:
    dialling = Link("a", 30, VERSIONS, "b", BOUNDS, 0.0)
    dialling.connected(0.0)
    assert dialling.received(LinkRefused(31, "it is not meant"), (), 0.0) == []
    assert dialling.received(LinkRefused(0, "it is not meant"), (), 0.0) == []
    assert dialling.received(LinkRefused(30, "no such name"), (), 0.0) == [
        PeerRefused("no such name")
    ]
    assert dialling.state is LinkState.REFUSED
    # Who has heard one belongs to a session, and to none other.
    assert ends.a.received(LinkRefused(10, "no such name"), (), 0.0) == []
    assert ends.a.state is LinkState.UP


@pytest.mark.parametrize(
    ("key", "theirs"), [("python", "3.11.2"), ("cloudpickle", "3.0.9"), ("torch", None)]
)
def test_what_makes_no_difference_is_not_refused(key: str, theirs: str | None) -> None:
    mine = {**VERSIONS, "cloudpickle": "3.0.0", "torch": "2.13.0"}
    other = {k: v for k, v in {**mine, key: theirs}.items() if v is not None}
    ends = Ends(a_versions=mine, b_versions=other)
    ends.connect()
    assert ends.a.state is ends.b.state is LinkState.UP


# --- credit ---------------------------------------------------------------------------------------


def test_a_peer_that_handles_nothing_holds_a_window_and_one_message_at_most(ends: Ends) -> None:
    ends.send(ends.a, *[b"x" * 300] * 10)
    ends.wait(10.0)
    assert len(ends.got(ends.b)) == 4  # the fourth begins below 1000
    ends.handle(ends.b, 600)
    assert len(ends.got(ends.b)) == 6
    ends.handle(ends.b, 1200)
    assert len(ends.got(ends.b)) == 10


def test_a_message_larger_than_the_window_passes_by_itself(ends: Ends) -> None:
    ends.send(ends.a, b"x" * 3000, b"next")
    assert len(ends.got(ends.b)) == 1
    ends.handle(ends.b, 3000)
    assert ends.got(ends.b)[1:] == [b"next"]


def test_what_waits_here_is_bounded_and_there_is_word_when_it_goes_on(ends: Ends) -> None:
    ends.send(ends.a, *[b"x" * 500] * 8)
    assert not ends.a.has_room
    with pytest.raises(NoRoomError, match="4000 bytes wait to be sent to b"):
        ends.send(ends.a, b"more")
    assert Room not in ends.notices(ends.a)
    for _ in range(4):
        ends.handle(ends.b, 500)
        ends.handle(ends.b, 500)
    ends.wait(3 * BOUNDS.ping_s)
    assert ends.notices(ends.a).count(Room) == 1
    ends.send(ends.a, b"more")
    assert ends.got(ends.b)[-1] == b"more"


def test_credit_that_was_lost_on_the_way_comes_with_the_next_word(ends: Ends) -> None:
    ends.send(ends.a, *[b"x" * 500] * 4)
    assert len(ends.got(ends.b)) == 2
    ends.passes = lambda _link, _message: False
    ends.handle(ends.b, 1000)
    ends.passes = lambda _link, _message: True
    ends.wait(2 * BOUNDS.ping_s)
    assert len(ends.got(ends.b)) == 4


def test_the_table_of_transitions_knows_every_state_and_no_way_back_from_an_end() -> None:
    assert set(TRANSITIONS) == set(LinkState)
    final = {LinkState.LOST, LinkState.LEFT, LinkState.REFUSED}
    assert {state for state, to in TRANSITIONS.items() if not to} == final
