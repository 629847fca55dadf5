"""The calls of a map: one for each chunk, whose answers the driver takes in order of arrival.

Runs in: the calling process. The receiving thread hands the answers over; the thread that drives
the map takes them and unpickles them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from monarch._src.actor.call.target import Target
from monarch._src.actor.errors.remote import error_for, unpack_failure
from monarch._src.actor.future import Future
from monarch._src.actor.serialize import AnswerReader
from monarch._src.actor.state.calls import PendingCall
from monarch._src.errors import ActorError, SupervisionError, death_error
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.map.state.schedule import Chunk
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload


class ChunkAnswered(msgspec.Struct, frozen=True):
    """A rank has answered; `read` unpickles the answer, or raises the error of the call."""

    chunk: Chunk
    read: Callable[[], Any]
    nbytes: int  # of the answer


class ChunkUnsent(msgspec.Struct, frozen=True):
    """The items of a chunk could not be pickled together. No rank has been told of it."""

    chunk: Chunk
    error: Exception


class RankLost(msgspec.Struct, frozen=True):
    """A rank is gone, or its actor is, and with it all chunks that it had."""

    chunk: Chunk
    error: SupervisionError


class Woken(msgspec.Struct, frozen=True):
    """The thread that drives the map is to look for items, or (`error`) to end the map."""

    error: Exception | None = None


Arrival: TypeAlias = "ChunkAnswered | ChunkUnsent | RankLost | Woken"


class ChunkAnswers:
    """The answers of a map that are not taken yet."""

    def __init__(
        self, new_future: Callable[[], Future[None]], note_lost: Callable[[RankFailure], None]
    ) -> None:
        """`note_lost`: called on the receiving thread with the failure of a process."""
        self._new_future = new_future
        self.note_lost = note_lost
        self._reader: Future[Any] | None = None
        self._arrived: deque[Arrival] = deque()
        # Settled by the next arrival. Replaced before the thread that waits checks `_arrived`.
        self.next: Future[None] = new_future()

    def wait_for(self, reader: Future[Any] | None) -> None:
        """From now on, the thread that takes answers does so in order to settle that future."""
        self._reader = self.next.reader = reader

    def put(self, answer: Arrival) -> None:
        """An answer has arrived. Any thread."""
        self._arrived.append(answer)
        self.next.settle(_nothing)

    def put_first(self, answer: Arrival) -> None:
        """Have the driver take this before all that has arrived. Any thread."""
        self._arrived.appendleft(answer)
        self.next.settle(_nothing)

    @property
    def any_arrived(self) -> bool:
        """Whether `take` has an answer at once."""
        return bool(self._arrived)

    def take(self, timeout_s: float | None) -> Arrival:
        """The next answer; waits for it. TimeoutError if none arrives in time."""
        while not self._arrived:
            if self.next.done:
                fresh = self._new_future()
                fresh.reader = self._reader
                self.next = fresh
            if not self._arrived:
                self.next.get(timeout_s)
        return self._arrived.popleft()


class ChunkCall(PendingCall):
    """The call of one chunk on one rank."""

    __slots__ = ("_answers", "_chunk", "_reader", "_target")

    def __init__(
        self, target: Target, region: Region, chunk: Chunk, answers: ChunkAnswers,
        reader: Future[Any] | None = None,
    ) -> None:  # fmt: skip
        """`reader`: the future that waits for this chunk alone, if any."""
        super().__init__(target.procs.uid, target, region, 1)
        self._reader = reader
        self._target = target
        self._chunk = chunk
        self._answers = answers

    def futures_of(self) -> Sequence[Any]:
        return (self._reader or self._answers.next,)

    def on_answer(self, position: int, payload: Payload) -> None:
        read = partial(
            AnswerReader(self._target, self.region, self.endpoint).read, position, payload
        )
        self._put(ChunkAnswered(self._chunk, read, payload.nbytes))

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        failure, exception = unpack_failure(payload)
        error = error_for(status, [failure], None)
        if isinstance(error, ActorError) and not isinstance(error, SupervisionError):
            self._put(ChunkAnswered(self._chunk, partial(_throw, status, failure, exception), 0))
        else:
            self._put(RankLost(self._chunk, error))

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self._answers.note_lost(failure)
        found = self._target.describe_as_actor(failure, self.region.global_rank(position))
        self._put(RankLost(self._chunk, death_error([found])))

    def _put(self, answer: ChunkAnswered | RankLost) -> None:
        if self.after_output is None:
            self._answers.put(answer)
        else:  # lines that the rank wrote before come first
            self.after_output(partial(self._answers.put, answer))


def _throw(
    status: int, failure: RankFailure, exception: Callable[[], BaseException | None]
) -> None:
    raise error_for(status, [failure], exception())


def _nothing() -> None:
    pass
