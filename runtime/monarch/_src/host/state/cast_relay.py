"""The relay of casts: one message in for many ranks, one merged answer out. No I/O.

The state of casts in a host agent (the driver is `monarch._src.host.cast_relay`). Events are
methods named in the past tense; they return the answers to send.

A call that was cast *owes* the answers of its ranks. They are held until the last one has arrived,
but for no more than `HELD_S`: then the held answers are sent, so that the caller knows which ranks
it waits for. If the caller wants each answer as it arrives (a stream), or one of them is an error,
held answers are sent after each read of the socket. Equal answers of neighbours are sent once.
Large answers do not come this way: the rank sends them to the caller directly and reports
`ELSEWHERE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from monarch._src.shape import NDSlice
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import ELSEWHERE, OK, STATUS, AnswerRun, Answers, Cast

Answered: TypeAlias = "tuple[int, int, int, bytes]"  # first position, count, status, body
Key: TypeAlias = "tuple[str, int]"  # the caller, and the number of its call
HELD_S = 0.2


class SendAnswers(msgspec.Struct, frozen=True):
    """Send merged answers to the caller; `last`: no others follow."""

    to: str
    message: Answers
    payload: Payload
    last: bool


class _Gather:
    """One call that was cast. `owed`: exactly the living ranks that have not answered."""

    __slots__ = ("eager", "held", "mesh", "owed", "region", "tells")

    def __init__(
        self, mesh: int, region: NDSlice, owed: set[int], *, eager: bool, tells: bool
    ) -> None:
        self.mesh = mesh
        self.region = region
        self.owed = owed
        self.eager = eager
        self.tells = tells  # report the last answer even if nothing is held
        self.held: list[Answered] = []


class CastTable:
    """All calls that were cast over this host and are not answered yet."""

    def __init__(self) -> None:
        self._open: dict[Key, _Gather] = {}
        self._urgent: set[Key] = set()  # calls with held answers that may not wait
        self._since: dict[Key, float] = {}  # calls with held answers: since when, oldest first

    def __len__(self) -> int:
        return len(self._open)

    def cast(
        self, sender: str, message: Cast, living: Iterable[int], *, tells: bool = False
    ) -> bool:
        """A cast was passed on to these ranks; returns whether any of them owes an answer.

        tells: send the last answers even if there are none.
        """
        if message.call:
            offset, sizes, strides = message.region
            region = NDSlice(offset=offset, sizes=sizes, strides=strides)
            gather = _Gather(message.mesh, region, set(living), eager=message.each, tells=tells)
            if gather.owed:
                self._open[sender, message.call] = gather
                return True
        return False

    def answered(
        self, to: str, call: int, rank: int, position: int, status: int, body: bytes, now: float
    ) -> list[SendAnswers]:
        """A rank has answered; `body` is empty for ELSEWHERE. `now`: seconds that grow."""
        key = (to, call)
        gather = self._open.get(key)
        if gather is None or rank not in gather.owed:
            return []
        gather.owed.discard(rank)
        if status & STATUS != ELSEWHERE:
            gather.held.append((position, 1, status, body))
            self._since.setdefault(key, now)
        if not gather.owed:  # earlier answers are sent first
            self._urgent.discard(key)
            return self.after_poll() + self._leave(key, gather)
        if status & STATUS not in (OK, ELSEWHERE):
            gather.eager = True
        if gather.eager and gather.held:
            self._urgent.add(key)
        return []

    def after_poll(self) -> list[SendAnswers]:
        """Every message that could be read has been: urgent answers are sent."""
        urgent, self._urgent = self._urgent, set()
        return [found for key in urgent for found in self._leave(key, self._open[key])]

    def next_deadline(self) -> float | None:
        """The time at which `time_passed` has something to do, or None."""
        return next((since + HELD_S for since in self._since.values()), None)

    def time_passed(self, now: float) -> list[SendAnswers]:
        """Send answers that have been held for `HELD_S`."""
        late = [key for key, since in self._since.items() if since + HELD_S <= now]
        return [found for key in late for found in self._leave(key, self._open[key])]

    def ended(self, mesh: int, rank: int) -> list[SendAnswers]:
        """A rank has ended. Answers of others are sent before the caller hears of it."""
        hit = [(k, g) for k, g in self._open.items() if g.mesh == mesh and rank in g.region]
        found: list[SendAnswers] = []
        for key, gather in hit:
            gather.owed.discard(rank)
            found += self._leave(key, gather)
        return found

    def owes(self, mesh: int, rank: int) -> bool:
        """Whether a call waits for an answer of that rank."""
        return any(g.mesh == mesh and rank in g.owed for g in self._open.values())

    def caller_lost(self, node: str) -> None:
        """That caller has ended; drop its calls."""
        for key in [key for key in self._open if key[0] == node]:
            del self._open[key]
            self._urgent.discard(key)
            self._since.pop(key, None)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        for gather in self._open.values():
            assert gather.owed, "a call that is owed nothing is closed"
            assert all(rank in gather.region for rank in gather.owed)
        for key in self._urgent:
            assert self._open[key].held
            assert self._open[key].eager
        assert self._since.keys() == {key for key, gather in self._open.items() if gather.held}
        assert list(self._since.values()) == sorted(self._since.values())

    def _leave(self, key: Key, gather: _Gather) -> list[SendAnswers]:
        self._urgent.discard(key)
        self._since.pop(key, None)
        if not gather.owed:
            del self._open[key]
        held, gather.held = gather.held, []
        last = not gather.owed
        return [_merged(key, held, last=last)] if held or (last and gather.tells) else []


def merge(answers: Iterable[Answered]) -> list[Answered]:
    """Answers in the order of positions, with equal answers of neighbours merged."""
    found: list[Answered] = []
    end = -1
    for first, count, status, body in sorted(answers):
        if first == end and status == found[-1][2] and body == found[-1][3]:
            found[-1] = (found[-1][0], found[-1][1] + count, status, body)
        else:
            found.append((first, count, status, body))
        end = first + count
    return found


def packed(answers: Iterable[Answered]) -> tuple[list[AnswerRun], Payload]:
    """Answers as they travel."""
    runs: list[AnswerRun] = []
    bodies: list[bytes] = []
    for first, count, status, body in answers:
        runs.append((first, count, status, len(body)))
        bodies.append(body)
    return runs, Payload(b"".join(bodies))


def unpacked(runs: Iterable[AnswerRun], payload: Payload) -> Iterator[Answered]:
    """The inverse of `packed`."""
    bodies = memoryview(payload.body)
    end = 0
    for first, count, status, size in runs:
        begin, end = end, end + size
        yield first, count, status, bytes(bodies[begin:end])


def _merged(key: Key, held: list[Answered], *, last: bool) -> SendAnswers:
    to, call = key
    runs, payload = packed(merge(held))
    return SendAnswers(to, Answers(call, runs), payload, last)
