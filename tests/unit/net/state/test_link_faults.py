"""Injected faults on links: order is kept, holds hold, delays end, and a seed loses the same."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monarch._src.net.state.link_faults import IN, OUT, VIA_AGENT, FaultyLinks, Verdict
from monarch._src.wire.messages import LinkRule

HOLD = LinkRule(1, ("a",), holds=True)
SLOW = LinkRule(2, ("a",), delay_s=2.0)
LOSE = LinkRule(3, ("a",), loses=1.0)


def test_without_rules_everything_passes() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    assert links.came(IN, "a", 1, 0.0, lossy=True) is Verdict.PASS
    assert not links
    assert links.next_due(IN) is None


def test_a_hold_holds_both_ways_until_it_is_lifted() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(HOLD)
    for direction in (IN, OUT, VIA_AGENT):
        assert links.came(direction, "a", 1, 0.0, lossy=False) is Verdict.WAIT
        assert links.came(direction, "b", 2, 0.0, lossy=False) is Verdict.PASS
        assert links.due(direction, 1e9) == []
        assert links.next_due(direction) is None
    assert links.lifted(1) == []
    assert links  # what waited has still to go
    for direction in (IN, OUT, VIA_AGENT):
        assert links.due(direction, 0.0) == [1]
    assert not links


def test_a_delay_is_counted_from_when_each_came() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(SLOW)
    links.came(IN, "a", 1, 10.0, lossy=False)
    links.came(IN, "a", 2, 11.0, lossy=False)
    assert links.next_due(IN) == 12.0
    assert links.due(IN, 11.9) == []
    assert links.due(IN, 12.0) == [1]
    assert links.due(IN, 13.0) == [2]
    assert links.next_due(IN) is None


def test_of_several_rules_the_longest_counts() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(SLOW)
    links.ruled(LinkRule(4, ("a",), delay_s=5.0))
    links.came(IN, "a", 1, 0.0, lossy=False)
    assert links.next_due(IN) == 5.0
    links.lifted(4)
    assert links.next_due(IN) == 2.0


def test_others_are_all_but_those() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(LinkRule(1, ("a",), others=True, holds=True))
    assert links.came(IN, "a", 1, 0.0, lossy=False) is Verdict.PASS
    assert links.came(IN, "b", 1, 0.0, lossy=False) is Verdict.WAIT


def test_a_peer_is_a_place_whichever_process_has_it() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(LinkRule(1, ("5.2", "5.3.7"), holds=True))
    for node, verdict in (
        ("5.2", Verdict.WAIT), ("5.2.1", Verdict.WAIT),
        ("5.3", Verdict.WAIT), ("5.4", Verdict.PASS),
    ):  # fmt: skip
        assert links.came(IN, node, 1, 0.0, lossy=False) is verdict


def test_what_peers_hold_themselves_is_not_held_twice() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(LinkRule(1, ("a",), holds=True, both=False))
    assert links.came(OUT, "a", 1, 0.0, lossy=False) is Verdict.PASS
    assert links.came(IN, "a", 1, 0.0, lossy=False) is Verdict.WAIT
    assert links.came(VIA_AGENT, "a", 1, 0.0, lossy=False) is Verdict.WAIT


def test_only_what_may_be_lost_is_and_it_is_told_when_the_rule_is_lifted() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(LOSE)
    assert links.came(IN, "a", 1, 0.0, lossy=False) is Verdict.PASS
    assert links.came(IN, "a", 2, 0.0, lossy=True) is Verdict.LOST
    assert links.came(OUT, "a", 3, 0.0, lossy=True) is Verdict.PASS
    assert links.came(IN, "b", 4, 0.0, lossy=True) is Verdict.PASS
    assert links.lifted(3) == [2]
    assert links.lifted(3) == []


@pytest.mark.parametrize("direction", [OUT, VIA_AGENT])
def test_answers_are_lost_whichever_way_they_leave(direction: str) -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(LinkRule(1, ("a",), loses=1.0, loses_on="out"))
    assert links.came(direction, "a", 1, 0.0, lossy=True) is Verdict.LOST


@given(st.integers(), st.floats(0.05, 0.95))
def test_a_seed_loses_the_same_ones_and_each_process_its_own(seed: int, part: float) -> None:
    def lost(name: str) -> list[int]:
        links: FaultyLinks[int] = FaultyLinks(name)
        links.ruled(LinkRule(1, (), others=True, loses=part, seed=seed))
        for item in range(200):
            links.came(IN, "a", item, 0.0, lossy=True)
        return links.lifted(1)

    assert lost("me") == lost("me")
    assert lost("me") != lost("you") or part > 0.9 or part < 0.1


def test_a_rule_is_made_once() -> None:
    links: FaultyLinks[int] = FaultyLinks("me")
    links.ruled(HOLD)
    with pytest.raises(ValueError, match="in force already"):
        links.ruled(HOLD)


class Traffic(RuleBasedStateMachine):
    """Random rules and messages on a few lanes: each lane gives out what it was given, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.links: FaultyLinks[int] = FaultyLinks("me")
        self.now = 0.0
        self.number = 0
        self.numbers: set[int] = set()
        self.sent: dict[tuple[str, str], list[int]] = {}
        self.out: dict[tuple[str, str], list[int]] = {}
        self.lane_of: dict[int, tuple[str, str]] = {}

    @rule(
        peers=st.sets(st.sampled_from("ab")), others=st.booleans(), holds=st.booleans(),
        delay=st.sampled_from([0.0, 1.0, 3.0]), both=st.booleans(),
    )  # fmt: skip
    def begin(self, peers: set[str], others: bool, holds: bool, delay: float, both: bool) -> None:
        self.number += 1
        self.numbers.add(self.number)
        self.links.ruled(LinkRule(self.number, tuple(peers), others, holds, delay, both=both))

    @precondition(lambda self: self.numbers)
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.numbers)))
        self.numbers.discard(number)
        assert self.links.lifted(number) == []

    @rule(direction=st.sampled_from([IN, OUT, VIA_AGENT]), node=st.sampled_from("ab"))
    def send(self, direction: str, node: str) -> None:
        self.number += 1
        lane = (direction, node)
        self.sent.setdefault(lane, []).append(self.number)
        self.lane_of[self.number] = lane
        verdict = self.links.came(direction, node, self.number, self.now, lossy=True)
        assert verdict is not Verdict.LOST
        if verdict is Verdict.PASS:
            self.out.setdefault(lane, []).append(self.number)

    @rule(passed=st.sampled_from([0.0, 0.5, 2.0]))
    def look(self, passed: float) -> None:
        self.now += passed
        for direction in (IN, OUT, VIA_AGENT):
            for item in self.links.due(direction, self.now):
                self.out.setdefault(self.lane_of[item], []).append(item)
            due = self.links.next_due(direction)
            assert due is None or due > self.now

    @invariant()
    def in_order(self) -> None:
        self.links.validate()
        for lane, sent in self.sent.items():
            out = self.out.get(lane, [])
            assert out == sent[: len(out)]
        on_the_way = sum(map(len, self.sent.values())) - sum(map(len, self.out.values()))
        assert on_the_way == self.links.waiting()

    def teardown(self) -> None:
        for number in self.numbers:
            self.links.lifted(number)
        for direction in (IN, OUT, VIA_AGENT):
            for item in self.links.due(direction, inf):
                self.out.setdefault(self.lane_of[item], []).append(item)
        assert self.out == {lane: sent for lane, sent in self.sent.items() if sent}
        assert not self.links


TestTraffic = Traffic.TestCase
