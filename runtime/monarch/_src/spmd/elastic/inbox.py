"""Answers, deaths and new units, as they come in to the thread that drives a training.

Runs in: `put` on any thread, the rest on the driving one. An `Outcome` is that of a call on a rank.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from monarch._src.actor.future import Future
from monarch._src.errors import ActorError, RestartedError, SupervisionError
from monarch._src.failures.report import RankFailure
from monarch._src.spmd.elastic.state.plan import Member
from monarch._src.spmd.elastic.state.rounds import Loss
from monarch._src.spmd.elastic.unit import Unit

# Errors of a rank that is in good order itself: a peer is gone, or this process is a new one.
_OF_PEERS = (
    "CollectiveError", "NotReadyError", "RDMAOwnerLostError", "RDMAHandleError", "RDMATimeoutError",
)  # fmt: skip
POLL_S = 0.5  # between two ticks, or checks of a wait that the session has not ended


class Value(msgspec.Struct, frozen=True):
    """The call has returned."""

    value: Any


class Lost(msgspec.Struct, frozen=True):
    """The rank is gone."""

    rank: int
    loss: Loss


class Ended(msgspec.Struct, frozen=True):
    """The call was ended because of a peer."""

    rank: int
    why: str


class Raised(msgspec.Struct, frozen=True):
    """Code of the user has raised."""

    rank: int
    error: BaseException
    why: str


Outcome: TypeAlias = "Value | Lost | Ended | Raised"


def outcome_of(future: Future[Any], *, joins: bool = False) -> Outcome:
    """The outcome of a call that is done. `joins`: errors of torch's backend are of peers too."""
    try:
        return Value(future.get(0))
    except RestartedError as error:
        return Lost(_rank_of(error.failures), Loss(_what(error.failures, error), False))
    except SupervisionError as error:  # a BootstrapError is one, and an ActorError too
        return Lost(_rank_of(error.failures), Loss(_what(error.failures, error), True))
    except ActorError as error:
        rank, what = _rank_of(error.failures), _what(error.failures, error)
        kind = error.failures[0].exception_type if error.failures else ""
        if kind in _OF_PEERS or (
            joins and not isinstance(error.exception, (TypeError, ValueError))
        ):
            return Ended(rank, what)
        return Raised(rank, error, what)


def _rank_of(failures: tuple[RankFailure, ...]) -> int:
    return failures[0].rank if failures else 0


def _what(failures: tuple[RankFailure, ...], error: BaseException) -> str:
    return failures[0].what if failures else str(error)


class UnitDone(msgspec.Struct, frozen=True):
    """A unit was spawned for that slot, or the error of the last attempt."""

    slot: int
    found: Unit | BaseException


class RankEnded(msgspec.Struct, frozen=True):
    """A proc of the mesh with that uid has died."""

    uid: int
    why: str


class _Answered(msgspec.Struct, frozen=True):
    stage: int
    unit: int
    member: Member | None
    future: Future[Any]


News: TypeAlias = "UnitDone | RankEnded"
# The unit that is called, its member if one is called alone, and the future of the call.
Asked: TypeAlias = "tuple[int, Member | None, Future[Any]]"


class Answers:
    """The outcomes of the calls of a stage, by member."""

    def __init__(self) -> None:
        self.values: dict[Member, Any] = {}
        self.losses: dict[Member, Loss] = {}
        self.ended: dict[Member, str] = {}
        self.raised: dict[Member, Raised] = {}

    def lacks(self, member: Member) -> bool:
        """Whether the call of this member has not ended yet."""
        return not any(
            member in each for each in (self.values, self.losses, self.ended, self.raised)
        )

    @property
    def is_complete(self) -> bool:
        """Whether all calls that have ended have returned."""
        return not (self.losses or self.ended or self.raised)

    def add(self, unit: int, member: Member | None, outcome: Outcome) -> None:
        """Enter an outcome. The error of a call of many ranks names its rank."""
        match outcome:
            case Value(value) if member is None:
                rank, value = value
                self.values[Member(unit, rank)] = value
            case Value(value) if member is not None:
                self.values[member] = value
            case Lost(rank, loss):
                self.losses[member or Member(unit, rank)] = loss
            case Ended(rank, why):
                self.ended[member or Member(unit, rank)] = why
            case Raised(rank):
                self.raised[member or Member(unit, rank)] = outcome
            case _:
                raise AssertionError(outcome)


class Inbox:
    """One for each training."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[_Answered | News] = queue.SimpleQueue()
        self._stage = 0

    def put(self, news: News) -> None:
        """Enter news. Any thread."""
        self._events.put(news)

    def take_news(self) -> list[News]:
        """Take all news, and drop answers to calls of earlier stages."""
        found: list[News] = []
        while not self._events.empty():
            event = self._events.get()
            if not isinstance(event, _Answered):
                found.append(event)
        return found

    def wait_for_news(self) -> News:
        """The next news."""
        while True:
            event = self._next(None, None)
            if event is not None and not isinstance(event, _Answered):
                return event

    def collect(
        self,
        asked: Sequence[Asked],
        on_outcome: Callable[[Outcome], None],
        on_news: Callable[[News], None],
        *,
        deadline: float | None = None,
        joins: bool = False,
        on_tick: Callable[[Answers], None] | None = None,
    ) -> Answers:
        """Wait until these calls have ended, or for the deadline.

        Calls `on_tick` with the answers so far, `POLL_S` seconds after the last event.
        """
        self._stage += 1
        for unit, member, future in asked:
            answered = _Answered(self._stage, unit, member, future)
            future.on_done(partial(self._events.put, answered))
        answers, waiting = Answers(), {id(future): future for _, _, future in asked}
        tick = None if on_tick is None else partial(on_tick, answers)
        while waiting:
            event = self._next(deadline, next(iter(waiting.values())), tick)
            if event is None:
                break
            if not isinstance(event, _Answered):
                on_news(event)
            elif event.stage == self._stage:
                del waiting[id(event.future)]
                outcome = outcome_of(event.future, joins=joins)
                answers.add(event.unit, event.member, outcome)
                on_outcome(outcome)
        return answers

    def _next(
        self,
        deadline: float | None,
        waiting: Future[Any] | None,
        tick: Callable[[], None] | None = None,
    ) -> _Answered | News | None:
        """The next event; None when the deadline has passed."""
        while True:
            left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            try:
                return self._events.get(timeout=max(left, 0))
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    return None
            if tick is not None:
                tick()
            if waiting is not None:
                try:
                    waiting.get(0)  # raises if the session has ended
                except TimeoutError:
                    pass
                except Exception:
                    if not waiting.done:
                        raise
