"""How each adverb handles the answers to its call.

Runs in: any calling process. The receiving thread hands the answers over; the thread that first
reads the future unpickles them. A broadcast has no answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from monarch._src.actor.call.target import Target
from monarch._src.actor.call.unread import UnreadError
from monarch._src.actor.errors.remote import error_for, unpack_exception, unpack_failure
from monarch._src.actor.future import Future
from monarch._src.actor.serialize import AnswerReader
from monarch._src.actor.state.calls import PendingCall
from monarch._src.errors import SupervisionError, death_error
from monarch._src.failures.report import RankFailure, first_reported
from monarch._src.net.local.waitable import Waitable
from monarch._src.pickling.pickler import is_atom
from monarch._src.shape import Region, ValueMesh
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import THROWN


class _Failures:
    """The failures of one call: the first settles the future, and later ones join its error."""

    __slots__ = ("_exceptions", "_target", "list")

    def __init__(self, target: Target) -> None:
        self._target = target
        self.list: list[RankFailure] = []
        # By the same index: rebuilds the exception, or returns None.
        self._exceptions: list[Callable[[], BaseException | None]] = []

    def unpacked(self, status: int, payload: Payload) -> Callable[[], Any]:
        """Record a rank's failure, and return a function that raises it to the caller.

        The exception raised is that of the failure which the text of the error begins with.
        """
        failure, exception = unpack_failure(payload)
        self._exceptions.append(exception)
        self.list.append(failure)

        def throw() -> Any:
            shown = self._exceptions[first_reported(list(self.list))]
            raise error_for(status, self.list, shown())

        return throw

    def lost(self, rank: int, failure: RankFailure) -> SupervisionError:
        """Record the death of a proc, by its rank in the proc mesh; returns the error to raise."""
        self._exceptions.append(_no_exception)
        self.list.append(self._target.describe_as_actor(failure, rank))
        return death_error(self.list)


def _no_exception() -> None:
    return None


def _fail(
    call: PendingCall, future: Future[Any], target: Target, status: int, payload: Payload
) -> None:
    """Fail with one rank's failure, or with the exception sent through an explicit port."""
    if status == THROWN:
        future.settle(partial(_throw_as_it_is, payload))
        return
    failures = _Failures(target)
    throw = failures.unpacked(status, payload)
    future.unread = UnreadError(failures.list, call.origin)
    future.settle(throw)


def _throw_as_it_is(payload: Payload) -> Any:
    raise unpack_exception(payload)


class OneCall(PendingCall):
    """`call_one` and `choose`: the value of one rank."""

    __slots__ = ("_futures", "_target")

    def __init__(self, target: Target, region: Region, future: Future[Any]) -> None:
        super().__init__(target.procs.uid, target, region, 1)
        self._target = target
        self._futures: tuple[Future[Any], ...] = (future,)

    def futures_of(self) -> Sequence[Future[Any]]:
        return self._futures

    def on_answer(self, position: int, payload: Payload) -> None:
        read = AnswerReader(self._target, self.region, self.endpoint).read
        self._futures[0].settle(partial(read, position, payload))

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        _fail(self, self._futures[0], self._target, status, payload)

    def on_lost(self, position: int, failure: RankFailure) -> None:
        rank = self.region.global_rank(position)
        self._futures[0].fail(_Failures(self._target).lost(rank, failure))

    def release(self) -> None:
        self._futures = ()


class AllCall(PendingCall):
    """`call`: the values of all ranks in rank order, or their failures."""

    __slots__ = (
        "_all_answered",
        "_atom",
        "_failed",
        "_failures",
        "_futures",
        "_payloads",
        "_target",
    )
    accepts_runs = True

    def __init__(self, target: Target, region: Region, future: Future[Any]) -> None:
        super().__init__(target.procs.uid, target, region)
        self._futures: tuple[Future[Any], ...] = (future,)
        # The payloads of immutable atoms are tuples, which the ValueMesh compares to store equal
        # neighbours once. A value that can change in place stays separate for each rank: its
        # payload is a `_Parts`, which equals no other.
        self._payloads: list[tuple[Any, ...] | list[Any]] = [()] * len(region)
        self._target = target
        self._failures = _Failures(target)
        self._atom: tuple[Any, ...] = ()  # the last answer that was an atom
        self._failed = False
        self._all_answered: Waitable | None = None

    def futures_of(self) -> Sequence[Future[Any]]:
        return self._futures

    def release(self) -> None:
        self._futures = ()
        self._payloads = []

    def on_answer(self, position: int, payload: Payload) -> None:
        parts = (payload.body, *payload.buffers)
        if self._failed or parts != self._atom:
            self.on_equal_answers(position, 1, payload)
            return
        self._payloads[position] = self._atom
        if not self.owed:
            self._complete()

    def on_equal_answers(self, first: int, count: int, payload: Payload) -> None:
        if self._failed:
            self._note_answer()
            return
        parts = (payload.body, *payload.buffers)
        if parts == self._atom:
            equal_parts: list[tuple[Any, ...] | list[Any]] = [self._atom] * count
        elif is_atom(payload):
            self._atom = parts
            equal_parts = [parts] * count
        else:
            equal_parts = [_Parts(parts, first + at) for at in range(count)]
        self._payloads[first : first + count] = equal_parts
        if not self.owed:
            self._complete()

    def _complete(self) -> None:
        region, payloads = self.region, self._payloads
        unflatten = partial(_unflatten, AnswerReader(self._target, region, self.endpoint))
        spawned = self._target.procs.extent
        self._futures[0].settle(
            lambda: ValueMesh.from_encoded(region, payloads, unflatten, spawned)
        )

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        if status == THROWN:
            self._settle(partial(_throw_as_it_is, payload))
        else:
            self._settle(self._failures.unpacked(status, payload))

    def on_lost(self, position: int, failure: RankFailure) -> None:
        error = self._failures.lost(self.region.global_rank(position), failure)

        def throw() -> Any:
            raise error

        self._settle(throw)

    def _settle(self, throw: Callable[[], Any]) -> None:
        self._failed = True
        self._payloads = []
        if self.owed and self._all_answered is None:
            self._all_answered = self._futures[0].all_answered = Waitable()
        if self._futures[0].unread is None:
            self._futures[0].unread = UnreadError(self._failures.list, self.origin)
        self._futures[0].settle(throw)
        self._note_answer()

    def _note_answer(self) -> None:
        if self._all_answered is not None and not self.owed:
            self._all_answered.finish()


class _Parts(list[Any]):
    """The parts of an answer that only one rank has given."""

    __slots__ = ("position",)

    def __init__(self, parts: tuple[Any, ...], position: int) -> None:
        super().__init__(parts)
        self.position = position


def _unflatten(reader: AnswerReader, parts: tuple[Any, ...] | list[Any]) -> Any:
    position = parts.position if isinstance(parts, _Parts) else 0  # an atom can always be unpickled
    return reader.read(position, Payload(parts[0], parts[1:]))


class StreamCall(PendingCall):
    """`stream`: the nth answer settles the nth future."""

    __slots__ = ("_failed", "_futures", "_next", "_target", "_unread")
    streams_answers = True

    def __init__(self, target: Target, region: Region, futures: Sequence[Future[Any]]) -> None:
        super().__init__(target.procs.uid, target, region)
        self._target = target
        self._futures = futures
        self._next = iter(futures)
        # The failures of all ranks. Each future has an error of its own, and all share `_unread`.
        self._failed: list[RankFailure] = []
        self._unread: UnreadError | None = None

    def futures_of(self) -> Sequence[Future[Any]]:
        return self._futures

    def release(self) -> None:
        self._futures = ()
        self._next = iter(())

    def on_answer(self, position: int, payload: Payload) -> None:
        read = AnswerReader(self._target, self.region, self.endpoint).read
        next(self._next).settle(partial(read, position, payload))

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        future = next(self._next)
        if status == THROWN:
            future.settle(partial(_throw_as_it_is, payload))
            return
        failures = _Failures(self._target)
        throw = failures.unpacked(status, payload)
        self._failed += failures.list
        if self._unread is None:
            self._unread = UnreadError(self._failed, self.origin)
        future.unread = self._unread
        future.settle(throw)

    def on_lost(self, position: int, failure: RankFailure) -> None:
        rank = self.region.global_rank(position)
        next(self._next).fail(_Failures(self._target).lost(rank, failure))
