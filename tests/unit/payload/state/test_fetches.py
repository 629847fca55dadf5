"""Payloads of other hosts: asked for within the credit, handed on whole and in their order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monarch._src.payload.state.fetches import CREDIT, CREDIT_BY_LINK, PIECE, Ask, Fetching, Lane

LANE: Lane = ("there", "sender", "receiver")
SIZES = [0, 1, PIECE, 3 * PIECE + 1, CREDIT]
LANES: list[Lane] = [LANE, ("there", "sender", "other"), ("elsewhere", "sender", "receiver")]


def test_a_payload_is_asked_for_in_pieces_and_no_more_than_the_credit_at_a_time() -> None:
    fetching: Fetching[str] = Fetching()
    size = CREDIT + 2 * PIECE + 5
    number, asks = fetching.wanted(LANE, "large", [size])
    assert asks == [Ask(number, 0, at, PIECE) for at in range(0, CREDIT, PIECE)]
    came = 0
    for ask in asks:  # each that comes is one more that may be asked for
        more, is_here = fetching.piece_came(number, ask.part, ask.at, ask.size)
        asks += more
        came += ask.size
        assert is_here == (came == size)
        fetching.validate()
    assert asks[-1] == Ask(number, 0, CREDIT + 2 * PIECE, 5)
    assert fetching.released(LANE) == ["large"]


def test_what_comes_behind_it_waits_in_its_lane_and_in_no_other() -> None:
    fetching: Fetching[str] = Fetching()
    number, (ask,) = fetching.wanted(LANE, "large", [10])
    assert not fetching.passes(LANE)
    assert fetching.passes(LANES[1])
    fetching.message_came(LANE, "behind")
    assert fetching.released(LANE) == []
    assert fetching.piece_came(number, ask.part, ask.at, ask.size) == ([], True)
    assert fetching.released(LANE) == ["large", "behind"]
    assert fetching.passes(LANE)


def test_the_next_payload_is_asked_for_before_the_first_is_handed_on() -> None:
    fetching: Fetching[str] = Fetching()
    first, _ = fetching.wanted(LANE, "first", [10])
    second, (ask,) = fetching.wanted(LANE, "second", [20])
    assert ask == Ask(second, 0, 0, 20)
    fetching.piece_came(second, 0, 0, 20)
    assert fetching.released(LANE) == []
    fetching.piece_came(first, 0, 0, 10)
    assert fetching.released(LANE) == ["first", "second"]


def test_parts_without_bytes_are_not_asked_for() -> None:
    fetching: Fetching[str] = Fetching()
    number, asks = fetching.wanted(LANE, "message", [0, 7, 0, 0, 3, 0])
    assert asks == [Ask(number, 1, 0, 7), Ask(number, 4, 0, 3)]
    assert fetching.piece_came(number, 1, 0, 7) == ([], False)
    assert fetching.piece_came(number, 4, 0, 3) == ([], True)


@pytest.mark.parametrize("piece", [(0, 1, 9), (1, 0, 11), (0, 0, 11), (0, 0, 0), (0, 0, -1)])
def test_a_piece_that_was_not_asked_for_is_refused(piece: tuple[int, int, int]) -> None:
    fetching: Fetching[str] = Fetching()
    number, _ = fetching.wanted(LANE, "message", [10, 10])
    with pytest.raises(ValueError, match="were not requested"):
        fetching.piece_came(number, *piece)
    fetching.validate()


def test_of_a_sender_that_has_ended_what_is_here_is_handed_on_and_the_rest_dropped() -> None:
    fetching: Fetching[str] = Fetching()
    lost, _ = fetching.wanted(LANE, "lost", [10])
    here, _ = fetching.wanted(LANE, "here", [10])
    other, _ = fetching.wanted(LANES[2], "of another site", [10])
    fetching.piece_came(here, 0, 0, 10)
    assert fetching.sender_ended("there", "somebody else") == []
    assert fetching.sender_ended("there", "sender") == [lost]
    assert fetching.released(LANE) == ["here"]
    assert fetching.sender_ended("elsewhere") == [other]
    assert fetching.released(LANES[2]) == []
    assert len(fetching) == 0


def test_pieces_that_come_in_any_order_make_a_payload() -> None:
    fetching: Fetching[str] = Fetching()
    number, asks = fetching.wanted(LANE, "message", [2 * PIECE, 5])
    for ask in (asks[1], asks[2]):
        assert fetching.piece_came(number, ask.part, ask.at, ask.size) == ([], False)
        assert fetching.released(LANE) == []
    assert fetching.piece_came(number, 0, 0, PIECE) == ([], True)
    with pytest.raises(ValueError, match="were not requested"):
        fetching.piece_came(number, 0, 0, PIECE)
    assert fetching.released(LANE) == ["message"]


def test_what_has_to_come_by_the_link_is_asked_for_again_with_less_credit() -> None:
    fetching: Fetching[str] = Fetching()
    number, asks = fetching.wanted(LANE, "message", [CREDIT])
    again: list[Ask] = []
    for ask in asks:
        again += fetching.goes_by_link(number, ask.part, ask.at)
        fetching.validate()
    assert sum(ask.size for ask in again) == CREDIT_BY_LINK
    other, more = fetching.wanted(LANES[1], "of the same host", [PIECE])
    assert more == []
    here: list[int] = []
    for ask in again:
        asks, is_here = fetching.piece_came(ask.fetch, ask.part, ask.at, ask.size)
        again += asks
        here += [ask.fetch] * is_here
    assert here == [number, other]
    assert sorted(ask.at for ask in again if ask.fetch == number) == list(range(0, CREDIT, PIECE))


class FetchingMachine(RuleBasedStateMachine):
    """Any order of messages, pieces and ends, against what each lane was given."""

    def __init__(self) -> None:
        super().__init__()
        self.fetching: Fetching[int] = Fetching()
        self.asked: list[Ask] = []
        self.given: dict[Lane, list[int]] = {lane: [] for lane in LANES}  # not handed on yet
        self.of: dict[int, tuple[Lane, int]] = {}  # by fetch: its lane and message
        self.missing: dict[int, int] = {}  # by message: bytes that have not come
        self.lost: set[int] = set()
        self.number = 0

    def ask(self, asks: list[Ask]) -> None:
        self.asked += asks

    def release(self, lane: Lane) -> None:
        given = self.given[lane]
        ready = 0
        while ready < len(given) and (
            given[ready] in self.lost or not self.missing.get(given[ready])
        ):
            ready += 1
        assert self.fetching.released(lane) == [m for m in given[:ready] if m not in self.lost]
        del given[:ready]

    @rule(lane=st.sampled_from(LANES))
    def small(self, lane: Lane) -> None:
        self.number += 1
        if self.fetching.passes(lane):
            assert not self.given[lane]
        else:
            self.fetching.message_came(lane, self.number)
            self.given[lane].append(self.number)

    @rule(
        lane=st.sampled_from(LANES),
        sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=3).filter(any),
    )
    def large(self, lane: Lane, sizes: list[int]) -> None:
        self.number += 1
        number, asks = self.fetching.wanted(lane, self.number, sizes)
        self.given[lane].append(self.number)
        self.of[number] = lane, self.number
        self.missing[self.number] = sum(sizes)
        self.ask(asks)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def piece(self, data: st.DataObject) -> None:
        site = data.draw(st.sampled_from(sorted({self.of[a.fetch][0][0] for a in self.asked})))
        ask = data.draw(st.sampled_from([a for a in self.asked if self.of[a.fetch][0][0] == site]))
        self.asked.remove(ask)
        lane, message = self.of[ask.fetch]
        if message in self.lost:
            return
        asks, is_here = self.fetching.piece_came(ask.fetch, ask.part, ask.at, ask.size)
        self.missing[message] -= ask.size
        assert is_here == (not self.missing[message])
        self.ask(asks)
        if is_here:
            self.release(lane)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def not_that_way(self, data: st.DataObject) -> None:
        ask = data.draw(st.sampled_from(self.asked))
        self.asked.remove(ask)
        if self.of[ask.fetch][1] not in self.lost:
            self.ask(self.fetching.goes_by_link(ask.fetch, ask.part, ask.at))

    @rule(site=st.sampled_from(["there", "elsewhere"]), sender=st.sampled_from(["sender", None]))
    def ended(self, site: str, sender: str | None) -> None:
        for number in self.fetching.sender_ended(site, sender):
            self.lost.add(self.of[number][1])
            self.ask(self.fetching.is_lost(number))
        for lane in LANES:
            if lane[0] == site:
                self.release(lane)
                assert not self.given[lane]

    @invariant()
    def everything_that_waits_has_been_asked_for_or_waits_for_credit(self) -> None:
        self.fetching.validate()
        for site in ("there", "elsewhere"):
            owed = [a for a in self.asked if self.of[a.fetch][0][0] == site
                    and self.of[a.fetch][1] not in self.lost]  # fmt: skip
            assert sum(a.size for a in owed) == self.fetching.owed(site)
            waits = any(
                self.missing.get(m) and m not in self.lost
                for lane in LANES if lane[0] == site for m in self.given[lane]
            )  # fmt: skip
            assert bool(owed) == waits, "nothing is forgotten"


FetchingMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestFetching = FetchingMachine.TestCase
