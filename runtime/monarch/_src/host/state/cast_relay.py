"""The relay of casts: one message in for many ranks, one merged answer out. No I/O.

What a host agent knows of casts (its driver is `monarch._src.host.cast_relay`). Events are methods
named in the past tense; those that let answers leave return them.

A call that was cast *owes* the answers of its ranks. They are held until the last has come, but for
no more than `HELD_S`: then what is held leaves, so that who called knows whom he waits for. If
somebody wants each as it comes (a stream), or one of them is bad news, what is held leaves at the
end of each look at the socket. Equal answers of neighbours are sent once. Only small answers come
this way: a large one goes to the caller at once, and its rank says so (`ELSEWHERE`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from monarch._src.shape import NDSlice
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import ELSEWHERE, OK, STATUS, AnswerRun, Answers, Cast

Answered: TypeAlias = "tuple[int, int, int, bytes]"  # first position, count, status, body
Key: TypeAlias = "tuple[str, int]"  # who called, and the number of its call
HELD_S = 0.2


class SendAnswers(msgspec.Struct, frozen=True):
    """Send merged answers to who called; `last`: no others follow."""

    to: str
    message: Answers
    payload: Payload
    last: bool


class _Gather:
    """One call that was cast. `owed`: all and only the ranks that owe an answer and live."""

    __slots__ = ("eager", "held", "mesh", "owed", "region", "tells")

    def __init__(
        self, mesh: int, region: NDSlice, owed: set[int], *, eager: bool, tells: bool
    ) -> None:
        self.mesh = mesh
        self.region = region
        self.owed = owed
        self.eager = eager
        self.tells = tells  # when the last has come, also if nothing is held then
        self.held: list[Answered] = []


class CastTable:
    """All calls that were cast over this host and are not answered yet."""

    def __init__(self) -> None:
        self._open: dict[Key, _Gather] = {}
        self._restless: set[Key] = set()  # those that hold answers and are not to wait
        self._since: dict[Key, float] = {}  # those that hold any: since when, the oldest first

    def __len__(self) -> int:
        return len(self._open)

    def cast(
        self, sender: str, message: Cast, living: Iterable[int], *, tells: bool = False
    ) -> bool:
        """A cast was passed on to these ranks; whether any of them owes an answer.

        tells: the last answers are to be sent even if there are none.
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
        """A rank has answered; `body` is empty if it did so ELSEWHERE. `now`: seconds that grow."""
        key = (to, call)
        gather = self._open.get(key)
        if gather is None or rank not in gather.owed:
            return []
        gather.owed.discard(rank)
        if status & STATUS != ELSEWHERE:
            gather.held.append((position, 1, status, body))
            self._since.setdefault(key, now)
        if not gather.owed:  # and what came before it goes before it
            self._restless.discard(key)
            return self.looked() + self._leave(key, gather)
        if status & STATUS not in (OK, ELSEWHERE):
            gather.eager = True
        if gather.eager and gather.held:
            self._restless.add(key)
        return []

    def looked(self) -> list[SendAnswers]:
        """Everything that could be received has been: what is not to wait leaves."""
        restless, self._restless = self._restless, set()
        return [found for key in restless for found in self._leave(key, self._open[key])]

    def next_deadline(self) -> float | None:
        """When `time_passed` has something to do, if nothing else happens."""
        return next((since + HELD_S for since in self._since.values()), None)

    def time_passed(self, now: float) -> list[SendAnswers]:
        """Look at the time: what has been held for long leaves."""
        late = [key for key, since in self._since.items() if since + HELD_S <= now]
        return [found for key in late for found in self._leave(key, self._open[key])]

    def ended(self, mesh: int, rank: int) -> list[SendAnswers]:
        """A rank is gone. What others have answered leaves before the caller hears of it."""
        hit = [(k, g) for k, g in self._open.items() if g.mesh == mesh and rank in g.region]
        found: list[SendAnswers] = []
        for key, gather in hit:
            gather.owed.discard(rank)
            found += self._leave(key, gather)
        return found

    def owes(self, mesh: int, rank: int) -> bool:
        """Whether anybody waits for an answer of that rank."""
        return any(g.mesh == mesh and rank in g.owed for g in self._open.values())

    def caller_lost(self, node: str) -> None:
        """Nobody wants its answers any more."""
        for key in [key for key in self._open if key[0] == node]:
            del self._open[key]
            self._restless.discard(key)
            self._since.pop(key, None)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        for gather in self._open.values():
            assert gather.owed, "a call that is owed nothing is closed"
            assert all(rank in gather.region for rank in gather.owed)
        for key in self._restless:
            assert self._open[key].held
            assert self._open[key].eager
        assert self._since.keys() == {key for key, gather in self._open.items() if gather.held}
        assert list(self._since.values()) == sorted(self._since.values())

    def _leave(self, key: Key, gather: _Gather) -> list[SendAnswers]:
        self._restless.discard(key)
        self._since.pop(key, None)
        if not gather.owed:
            del self._open[key]
        held, gather.held = gather.held, []
        last = not gather.owed
        return [_merged(key, held, last=last)] if held or (last and gather.tells) else []


def merge(answers: Iterable[Answered]) -> list[Answered]:
    """These, in the order of positions, equal ones of neighbours as one."""
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
    """What was `packed`."""
    bodies = memoryview(payload.body)
    end = 0
    for first, count, status, size in runs:
        begin, end = end, end + size
        yield first, count, status, bytes(bodies[begin:end])


def _merged(key: Key, held: list[Answered], *, last: bool) -> SendAnswers:
    to, call = key
    runs, payload = packed(merge(held))
    return SendAnswers(to, Answers(call, runs), payload, last)
