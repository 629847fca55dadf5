"""What injected faults do to the links of one process: hold, delay, lose. No I/O, no clock.

A *lane* is one direction of the link to one other node; there are two outwards, since answers to
casts go through the host agent. What comes on a lane passes, or waits in
the lane: for its delay to be over, for a hold to be lifted, and for what waits before it, so that a
lane never changes the order of what goes through it. A rule works on the lanes to its peers while
it is there; several on one lane work together: the longest delay counts, any hold holds.

Only what is `lossy` is ever lost, by a draw from the seed of the rule and the name of this process:
the same messages in the same order lose the same ones. What was lost is kept until its rule is
lifted, so that whoever waits for it can be told.

`now` is seconds on any clock that never goes back.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from math import inf
from random import Random
from typing import Generic, TypeAlias, TypeVar

import msgspec

from monarch._src.wire.ids import parse_proc_node
from monarch._src.wire.messages import LinkRule

T = TypeVar("T")
Lane: TypeAlias = "tuple[str, str]"  # direction, node
IN, OUT, VIA_AGENT = "in", "out", "via agent"


class Verdict(Enum):
    """What becomes of a message that has come."""

    PASS = "pass"  # now, by whoever asked
    WAIT = "wait"  # it is in its lane, and comes out of `due`
    LOST = "lost"


class _Waiting(msgspec.Struct, Generic[T]):
    came: float
    item: T


class _Rule(msgspec.Struct):
    given: LinkRule
    peers: frozenset[object]
    draw: Random

    def works_on(self, node: str) -> bool:
        return (_who(node) in self.peers) != self.given.others

    def delays(self, lane: Lane) -> float:
        """For how long a message in that lane waits; inf while it is held."""
        direction, node = lane
        if not self.works_on(node) or (direction == OUT and not self.given.both):
            return 0.0
        return inf if self.given.holds else self.given.delay_s

    def loses(self, direction: str) -> bool:
        """Whether a message that may be lost is."""
        way = IN if direction == IN else OUT
        return way == self.given.loses_on and self.draw.random() < self.given.loses


def _who(node: str) -> object:
    """Whom a rule means by a node: a place in a mesh, whichever process has it."""
    return parse_proc_node(node) or node


class Links(Generic[T]):
    """The links of the process `name`, and the rules on them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rules: dict[int, _Rule] = {}
        self._lanes: dict[Lane, deque[_Waiting[T]]] = {}
        self._lost: dict[int, list[T]] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to do: a rule, or something that still waits."""
        return bool(self._rules or self._lanes)

    # --- events -------------------------------------------------------------------------------

    def ruled(self, rule: LinkRule) -> None:
        """A rule begins to work. A number that is there already is refused with ValueError."""
        if rule.number in self._rules:
            raise ValueError(f"link rule {rule.number} is in force already")
        draw = Random(f"{rule.seed} {self._name}")
        self._rules[rule.number] = _Rule(rule, frozenset(map(_who, rule.peers)), draw)
        self._lost[rule.number] = []

    def lifted(self, number: int) -> list[T]:
        """A rule has ended; what it has lost, in order. One that is unknown is no error."""
        self._rules.pop(number, None)
        return self._lost.pop(number, [])

    def came(self, direction: str, node: str, item: T, now: float, *, lossy: bool) -> Verdict:
        """A message is to go through a lane."""
        for number, rule in self._rules.items() if lossy else ():
            if rule.works_on(node) and rule.loses(direction):
                self._lost[number].append(item)
                return Verdict.LOST
        lane = self._lanes.get((direction, node))
        if lane is None:
            if not self._delay((direction, node)):
                return Verdict.PASS
            lane = self._lanes[direction, node] = deque()
        lane.append(_Waiting(now, item))
        return Verdict.WAIT

    def due(self, direction: str, now: float) -> list[T]:
        """What may go through now in that direction, each lane in order. It is out of here then."""
        found: list[T] = []
        for key, lane in list(self._lanes.items()):
            delay = self._delay(key)
            while key[0] == direction and lane and lane[0].came + delay <= now:
                found.append(lane.popleft().item)
            if not lane:
                del self._lanes[key]
        return found

    # --- questions ----------------------------------------------------------------------------

    def next_due(self, direction: str) -> float | None:
        """When `due` has something next, or None."""
        times = [
            lane[0].came + self._delay(key)
            for key, lane in self._lanes.items()
            if key[0] == direction
        ]
        first = min(times, default=inf)
        return None if first == inf else first

    def waiting(self) -> int:
        """How many messages wait."""
        return sum(len(lane) for lane in self._lanes.values())

    def _delay(self, lane: Lane) -> float:
        return max((rule.delays(lane) for rule in self._rules.values()), default=0.0)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert self._rules.keys() == self._lost.keys()
        for lane in self._lanes.values():
            assert lane, "an empty lane is forgotten"
            times = [waiting.came for waiting in lane]
            assert times == sorted(times), "a lane keeps the order of what comes"
