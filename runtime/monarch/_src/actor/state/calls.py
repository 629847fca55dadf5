"""The table of open calls: the ranks that owe answers, and the handlers of answers. No I/O.

A call is *open* from its sending until its last rank has answered or died; a first error may settle
its future earlier. There is no index by process: the death of a process scans the table, since
deaths are rare and calls are frequent.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from monarch._src.actor.state.endpoint_metrics import EndpointCounts
from monarch._src.actor.state.history import HISTORY
from monarch._src.failures.report import RankFailure
from monarch._src.shape import Extent, Region
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import OK


class CalledProcs(Protocol):
    """The procs of the called actors; see `actor.refs.ProcsRef`."""

    @property
    def uid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def extent(self) -> Extent: ...


class CalledActors(Protocol):
    """The actors that a call goes to; see `actor.call.target.Target`."""

    @property
    def procs(self) -> CalledProcs: ...
    @property
    def uid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def class_name(self) -> str: ...


class PendingCall(ABC):
    """One call that has been sent.

    `region` holds the called ranks of the proc mesh; an answer carries a *position* in it. `owed`:
    bit p is set while, and only while, position p owes an answer. `counts`: the metrics of the
    call, if it is instrumented; it began at `begun_ns` of the table's clock. `sent_by`: the uid of
    the calling actor, if there is one and history is kept.
    """

    __slots__ = (
        "actor_mesh",
        "after_output",
        "begun_ns",
        "counts",
        "endpoint",
        "failed",
        "mesh",
        "number",
        "origin",
        "owed",
        "region",
        "sent_by",
    )
    accepts_runs: ClassVar[bool] = False
    streams_answers: ClassVar[bool] = False  # whether each answer is used as it arrives

    def __init__(
        self,
        mesh: int,
        actor_mesh: CalledActors | None,
        region: Region,
        ranks: int | None = None,
    ) -> None:
        """`actor_mesh`: None for a question to procs. `ranks`: the size of the region, if known."""
        self.number = 0  # its number in the table, once it is open
        self.endpoint = ""  # the name of the called endpoint, if any
        self.origin = 0  # the cell that called, if a front end numbers them
        self.mesh = mesh
        self.actor_mesh = actor_mesh
        self.region = region
        self.owed = (1 << (len(region) if ranks is None else ranks)) - 1
        self.counts: EndpointCounts | None = None
        self.begun_ns = 0
        self.sent_by = 0
        self.failed = False  # whether the metrics count it as failed
        # Set if output precedes an answer: calls its argument once that output is shown.
        self.after_output: Callable[[Callable[[], None]], None] | None = None

    def owing(self) -> list[int]:
        """The positions that owe an answer."""
        return [position for position in range(len(self.region)) if self.owed >> position & 1]

    def futures_of(self) -> Sequence[Any]:
        """The futures that the answers settle; none if nothing can wait for them."""
        return ()

    @abstractmethod
    def on_answer(self, position: int, payload: Payload) -> None:
        """A rank's endpoint has returned."""

    def on_equal_answers(self, first: int, count: int, payload: Payload) -> None:
        """Consecutive ranks have returned equal values. Called only if `accepts_runs`."""
        for position in range(first, first + count):
            self.on_answer(position, payload)

    @abstractmethod
    def on_error(self, position: int, status: int, payload: Payload) -> None:
        """A rank's endpoint has raised, or its actor has failed, as the payload describes."""

    @abstractmethod
    def on_lost(self, position: int, failure: RankFailure) -> None:
        """A rank's process is gone."""

    def release(self) -> None:  # noqa: B027  optional
        """No more answers come: drop the references to the futures, which refer to this call."""


def _no_clock() -> int:
    raise RuntimeError("an instrumented call needs a table with a clock")


class CallTable:
    """All open calls of one process. Answers and deaths are entered one at a time.

    `clock`: returns nanoseconds, for the metrics.
    """

    def __init__(self, clock: Callable[[], int] = _no_clock) -> None:
        self._clock = clock
        self._ids = itertools.count(1)
        self._open: dict[int, PendingCall] = {}
        # Numbers of calls whose caller hands an interrupt on to the ranks.
        self.handed_on: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, call: PendingCall) -> int:
        """Register a call that is about to be sent; returns its number, which is never 0."""
        number = call.number = next(self._ids)
        self._open[number] = call
        return number

    def is_open(self, number: int) -> bool:
        """Whether that call is open."""
        return number in self._open

    def new_number(self) -> int:
        """A number that no call has, for a port."""
        return next(self._ids)

    def answer(self, number: int, position: int, status: int, payload: Payload) -> None:
        """Enter an answer. Answers to closed calls, and second answers of a rank, are ignored."""
        call = self._open.get(number)
        if call is None or position < 0 or not call.owed >> position & 1:
            return
        owed = call.owed = call.owed ^ (1 << position)
        if not owed:
            del self._open[number]
        counts = call.counts
        if counts is not None:
            if status != OK or not owed:
                self._count(call, counts, payload, failed=status != OK)
            else:
                counts.bytes_in += payload.nbytes if payload.buffers else len(payload.body)
        try:
            if status == OK:
                call.on_answer(position, payload)
            else:
                call.on_error(position, status, payload)
        except Exception as error:
            call.on_lost(position, _unreadable_answer(position, error))
            raise
        finally:
            if not call.owed:
                call.release()

    def answer_run(
        self, number: int, first: int, count: int, status: int, payload: Payload
    ) -> None:
        """Enter the equal answers of consecutive ranks, like `answer` for each of them."""
        call = self._open.get(number)
        if call is None or first < 0:
            return
        count = min(count, len(call.region) - first)
        if count < 1:
            return
        run = ((1 << count) - 1) << first
        if status != OK or not call.accepts_runs or call.owed & run != run:
            for position in range(first, first + count):
                self.answer(number, position, status, payload)
            return
        call.owed ^= run
        if not call.owed:
            del self._open[number]
        if call.counts is not None:
            self._count(call, call.counts, payload, count)
        try:
            call.on_equal_answers(first, count, payload)
        except Exception as error:
            call.on_lost(first, _unreadable_answer(first, error))
            raise
        finally:
            if not call.owed:
                call.release()

    def on_proc_lost(self, mesh: int, rank: int, failure: RankFailure) -> None:
        """A process is gone: fail it in every call that waits for it."""
        for number, position in self.waiting_for(mesh, rank):
            self.on_rank_lost(number, position, failure)

    def waiting_for(self, mesh: int, rank: int) -> list[tuple[int, int]]:
        """The calls that wait for a process, each with the position of its rank."""
        return [
            (number, call.region.position(rank))
            for number, call in list(self._open.items())
            if call.mesh == mesh and rank in call.region
        ]

    def on_rank_lost(self, number: int, position: int, failure: RankFailure) -> None:
        """A rank of a call cannot answer. Ignored if it has answered, or the call is closed."""
        call = self._open.get(number)
        if call is None or position < 0 or not call.owed >> position & 1:
            return
        call.owed ^= 1 << position
        if not call.owed:
            del self._open[number]
        if call.counts is not None:
            self._count(call, call.counts, NO_PAYLOAD, failed=True)
        call.on_lost(position, failure)
        if not call.owed:
            call.release()

    def drop(self, number: int) -> None:
        """Forget a call whose answers are no longer wanted. Ignored if it is closed."""
        self._open.pop(number, None)

    def _count(
        self,
        call: PendingCall,
        counts: EndpointCounts,
        payload: Payload,
        ranks: int = 1,
        *,
        failed: bool = False,
    ) -> None:
        # Before the answer is handed over, so that its reader finds it counted.
        if failed and not call.failed:
            call.failed = True
            counts.errors += 1
        counts.bytes_in += ranks * (payload.nbytes if payload.buffers else len(payload.body))
        if not call.owed:
            now_ns = self._clock()
            counts.ended(now_ns - call.begun_ns)
            if HISTORY.sent is not None and call.actor_mesh is not None:
                target = call.actor_mesh
                HISTORY.sent.add(
                    (
                        now_ns, call.begun_ns, call.number, call.sent_by, target.uid, call.mesh,
                        target.name, call.region, call.endpoint, call.failed,
                    )
                )  # fmt: skip

    def calls(self) -> list[PendingCall]:
        """All open calls, oldest first. Any thread."""
        return list(self._open.values())

    def get(self, number: int) -> PendingCall | None:
        """The call of that number, while it is open. Any thread."""
        return self._open.get(number)


def _unreadable_answer(position: int, error: Exception) -> RankFailure:
    # A caller must not wait for ever because an answer could not be read.
    return RankFailure(
        "the called mesh", position, {}, "its answer", None, "", None, "endpoint",
        type(error).__name__, f"it could not be read here: {error}",
    )  # fmt: skip
