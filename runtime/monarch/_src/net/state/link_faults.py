"""The effect of injected faults on the links of one process: hold, delay, lose. No I/O, no clock.

A *lane* is one direction of the link to one other node; there are two outgoing ones, since answers
to casts go through the host agent. A message on a lane passes, or waits in the lane: for its delay,
for the end of a hold, and for the messages before it, so that a lane preserves the order. A rule
affects the lanes to its peers while it is in force. Several rules on one lane combine: the longest
delay counts, and a single hold suffices.

Only `lossy` messages are ever lost, by a draw from the seed of the rule and the name of this
process: the same messages in the same order have the same losses. Lost messages are kept until
their rule ends, so that callers that wait for them can be notified.

`now` is seconds on any monotonic clock.
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
    """The fate of a message."""

    PASS = "pass"  # the caller passes it on now
    WAIT = "wait"  # it waits in its lane, and is returned by `due`
    LOST = "lost"


class _Waiting(msgspec.Struct, Generic[T]):
    came: float
    item: T


class _Rule(msgspec.Struct):
    given: LinkRule
    peers: frozenset[object]
    draw: Random

    def works_on(self, node: str) -> bool:
        return (_place_of(node) in self.peers) != self.given.others

    def delays(self, lane: Lane) -> float:
        """How long a message in that lane waits; inf while it is held."""
        direction, node = lane
        if not self.works_on(node) or (direction == OUT and not self.given.both):
            return 0.0
        return inf if self.given.holds else self.given.delay_s

    def loses(self, direction: str) -> bool:
        """Whether to lose a lossy message; draws a random number."""
        way = IN if direction == IN else OUT
        return way == self.given.loses_on and self.draw.random() < self.given.loses


def _place_of(node: str) -> object:
    """The peer of a rule that a node belongs to: a rank of a mesh, in any incarnation."""
    return parse_proc_node(node) or node


class FaultyLinks(Generic[T]):
    """The links of the process `name`, and the rules on them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rules: dict[int, _Rule] = {}
        self._lanes: dict[Lane, deque[_Waiting[T]]] = {}
        self._lost: dict[int, list[T]] = {}

    def __bool__(self) -> bool:
        """Whether there is a rule or a waiting message."""
        return bool(self._rules or self._lanes)

    # --- events -------------------------------------------------------------------------------

    def ruled(self, rule: LinkRule) -> None:
        """A rule begins. Raises ValueError if its number is in use."""
        if rule.number in self._rules:
            raise ValueError(f"link rule {rule.number} is in force already")
        draw = Random(f"{rule.seed} {self._name}")
        self._rules[rule.number] = _Rule(rule, frozenset(map(_place_of, rule.peers)), draw)
        self._lost[rule.number] = []

    def lifted(self, number: int) -> list[T]:
        """A rule has ended; returns its lost messages, in order. Ignores an unknown rule."""
        self._rules.pop(number, None)
        return self._lost.pop(number, [])

    def came(self, direction: str, node: str, item: T, now: float, *, lossy: bool) -> Verdict:
        """A message is about to pass a lane."""
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
        """Remove the messages that may pass now in that direction, each lane in order."""
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
        """When `due` has its next message, or None."""
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
            assert times == sorted(times), "a lane keeps the order of its messages"
