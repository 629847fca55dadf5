"""The calls that an actor has accepted: their callers, their cancellation, their answers.

Runs in: a proc, or a client that hosts controllers. The actor's own thread accepts and completes
calls, the receiving thread cancels them, and the thread that ends the actor rejects them.
Owns: the table of the calls that are neither queued nor answered.
Invariant: the thread that removes a call from the table answers it, so each is answered once.

A cancellation and the beginning of its call may cross. Either side writes before it reads:

- The receiving thread enters the cancellation in `cancelled_early` and then looks for the call in
  `calls`; the actor's thread enters the call in `calls` and then looks into `cancelled_early`. The
  side that removes the entry of `cancelled_early` deals with the cancellation.
- The receiving thread marks the call in `cancelled` and then raises in it, which fails before the
  endpoint begins; the actor's thread lets others raise in the call and then looks for the mark
  (`raise_if_cancelled`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from monarch._src.actor import forked
from monarch._src.actor.call.pickling_errors import unpicklable_answer
from monarch._src.actor.deadlock.state.waits import Wait
from monarch._src.actor.errors.remote import ForwardedError, pack_failure
from monarch._src.actor.run.endpoint_table import BoundEndpoint
from monarch._src.actor.run.mailbox import caller_of
from monarch._src.actor.serialize import pack_value
from monarch._src.actor.state.endpoint_metrics import EndpointCounts
from monarch._src.actor.state.history import HISTORY
from monarch._src.errors import CallCancelled
from monarch._src.failures.report import FailureKind, RankFailure
from monarch._src.logs.line_origin import cut_off as cut_off_output
from monarch._src.logs.output_counters import LONG_NS
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import DIED, OK, RAISED, Call, StopActor

if TYPE_CHECKING:
    from monarch._src.actor.run.cell_protocol import Cell

_NONE = pack_value(None)  # the answer of most endpoints, pickled once
EARLY_CANCELS = 64  # how many cancellations of calls that have not arrived are kept


class CallAborted(BaseException):
    """Cancels a call because its actor ends; the call has not failed by itself.

    It is no Exception, so that retry loops and debuggers let it pass.
    """

    def __init__(self, why: RankFailure) -> None:
        super().__init__(why)
        self.why = why


class RunningCalls:
    """The accepted calls of one actor."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        # By `id` of the call; `cancelled` holds those that their callers have cancelled.
        self.calls: dict[int, tuple[str, Call, Payload, int]] = {}
        self.cancelled: dict[int, Call] = {}
        # Cancellations (caller, number) of calls that may not have arrived yet.
        self.cancelled_early: deque[tuple[str, int]] = deque(maxlen=EARLY_CANCELS)

    # --- cancellation: on the receiving thread ---------------------------------------------------

    def endpoints(self) -> tuple[str, ...]:
        """The names of the endpoints that run. Any thread."""
        return tuple(item[1].endpoint for item in list(self.calls.values()))

    def cancel(self, caller: str, number: int, *, queued_only: bool = False) -> None:
        """Cancel a call: a queued call is answered here, a running one is interrupted.

        The calls that its endpoint waits for are cancelled too. An unknown call has been answered
        already, or has not arrived yet. `queued_only`: a queued call has not failed, and is
        answered with None; a running one goes on.
        """
        cell = self._cell
        queued = cell.mailbox.withdraw(caller, number)
        if queued_only:
            if isinstance(queued, tuple):
                self._answer(queued[0], queued[1], OK, _NONE)
            return
        if isinstance(queued, tuple):
            self._remember(queued[0], queued[1], queued[3])
            self._answer_cancelled(queued[0], queued[1])
            return
        self.cancelled_early.append((caller, number))
        for item in list(self.calls.values()):
            if item[1].call == number and caller_of(item) == caller:
                if self._take_early(caller, number):
                    self._interrupt(item[1])
                return

    def _interrupt(self, call: Call) -> None:
        cell = self._cell
        runtime = cell.runtime
        self.cancelled[id(call)] = call
        if runtime.hooks.debugger.unpause(cell, call):
            return
        waits = self._waits_of(call)
        if cell.raise_in is None or not cell.raise_in(call):
            # It has not begun, and finds the mark when it does; or it has just ended.
            if id(call) not in self.calls:
                self.cancelled.pop(id(call), None)
            return
        runtime.node.leader.wake_all()
        for wait in waits:
            runtime.cancel(wait.future.pending)

    def _take_early(self, caller: str, number: int) -> bool:
        """Remove an early cancellation; False if the other thread has removed it."""
        try:
            self.cancelled_early.remove((caller, number))
        except ValueError:
            return False
        return True

    def raise_if_cancelled(self, call: Call) -> None:
        """Raise if the call was cancelled before its endpoint began. The actor's own thread."""
        if self.cancelled and id(call) in self.cancelled:
            raise CallCancelled

    def holds_cancelled(self) -> bool:
        """Whether a call that runs was cancelled by its caller. Any thread.

        A mark is set before the cancellation raises in the call, and the end of the call removes
        it. A mark of a call that has just ended may be left for a moment, and does not count.
        """
        return bool(self.cancelled) and any(one in self.calls for one in list(self.cancelled))

    def cancel_waits(self, call: Call) -> None:
        """Cancel the calls that a running call waits for. Any thread. Idempotent."""
        for wait in self._waits_of(call):
            self._cell.runtime.cancel(wait.future.pending)

    def _waits_of(self, call: Call) -> Sequence[Wait]:
        cell = self._cell
        # Waits are not recorded by call, so those of overlapping calls are unknown.
        overlaps = cell.endpoints is not None and cell.endpoints.is_concurrent(call.endpoint)
        return () if overlaps else tuple(cell.instance.waiting.waits.values())

    def owes(self, caller: str, number: int, *, overlapping: bool) -> bool:
        """Whether that call runs, and only the end of its endpoint answers it. Any thread.

        `overlapping`: whether to include calls that may overlap.
        """
        endpoints = self._cell.endpoints
        for item in list(self.calls.values()):
            call = item[1]
            if call.call == number and caller_of(item) == caller:
                overlaps = endpoints is not None and endpoints.is_concurrent(call.endpoint)
                return not call.by_port and (overlapping or not overlaps)
        return False

    # --- acceptance and completion: on the actor's own thread -------------------------------------

    def accept(self, peer: str, call: Call, payload: Payload, arrived_ns: int) -> bool:
        """Accept a call; False if it is not to run and has been answered already."""
        self.calls[id(call)] = (peer, call, payload, arrived_ns)
        # Checked after the insertion: `drain`, on the thread that ends the actor, sets `dead` first
        # and then empties the table. One of the two threads removes the call, and so answers it.
        if self._cell.dead is not None:
            if self.calls.pop(id(call), None) is not None:
                self.reject(peer, call)
            return False
        return not (self.cancelled_early and self._was_cancelled(peer, call, payload))

    def _was_cancelled(self, peer: str, call: Call, payload: Payload) -> bool:
        if call.call and self._take_early(caller_of((peer, call, payload)), call.call):
            if self.calls.pop(id(call), None) is not None:
                self._answer_cancelled(peer, call)
            return True
        return False

    def complete(
        self,
        peer: str,
        call: Call,
        value: Any,
        error: BaseException | None,
        bound: BoundEndpoint | None,
        ran_ns: int,
    ) -> None:
        """Answer a call. Fails the actor if the exception of its endpoint ends it."""
        if forked.is_fork and self._cell.runtime.node.is_fork:
            forked.end_fork(error)
        counts = None if bound is None else bound.counts
        # Before the answer, so that a caller that has the answer finds the call counted.
        if counts is not None:
            counts.ended(ran_ns)
        item = self.calls.pop(id(call), None)
        if item is None:
            return  # the actor has ended meanwhile, and the call is answered
        history = HISTORY.handled
        # As `_remember`, inlined: a function call costs time with each message.
        if history is not None and bound is not None and counts is not None:
            history.rows.append(
                (
                    monotonic_ns(), self._cell.spec.actor, call.reply_to or peer, call.sent_by,
                    call.call, bound.name, item[3], ran_ns, error is not None,
                )
            )  # fmt: skip
            history.added += 1
        cancelled = bool(self.cancelled) and self.cancelled.pop(id(call), None) is not None
        if error is None:
            if not call.call or call.by_port:
                return
            try:
                payload = _NONE if value is None else pack_value(value, loose=True)
            except Exception as why:
                error = unpicklable_answer(value, why)
            else:
                self._answer(peer, call, OK, payload, counts, ran_ns)
                return
        self._complete_raised(peer, call, error, counts, cancelled=cancelled)

    def _complete_raised(
        self,
        peer: str,
        call: Call,
        error: BaseException,
        counts: EndpointCounts | None,
        *,
        cancelled: bool,
    ) -> None:
        cell = self._cell
        cell.runtime.slot.failed()
        cut_off_output()
        if counts is not None:
            counts.errors += 1
        if isinstance(error, CallAborted):
            if call.call:
                self._answer_died(peer, call, error.why, counts)
            return
        error = cell.runtime.hooks.explainer.explain(cell, call.reply_to or peer, call, error)
        if (isinstance(error, Exception) or cancelled) and call.call and not call.by_port:
            if isinstance(error, ForwardedError):
                failed = pack_failure(error.failure, error.exception)
            else:
                failed = pack_failure(cell.describe(error, "endpoint", call.endpoint), error)
            self._answer(peer, call, RAISED, failed, counts)
            return
        unanswered = isinstance(error, Exception) and not call.call
        kind: FailureKind = "nobody waited" if unanswered else "actor died"
        failure = cell.describe(error, kind, call.endpoint)
        if call.call:
            self._answer_died(peer, call, failure, counts)
        cell.fail(failure, error)

    # --- rejection: on the thread that ends the actor --------------------------------------------

    def reject_all(self) -> None:
        """Answer all running calls with the reason of the actor's end."""
        for number in list(self.calls):
            item = self.calls.pop(number, None)
            if item is not None:
                peer, call, _, arrived_ns = item
                self._remember(peer, call, arrived_ns, 0)
                if call.call:
                    self._answer_died(peer, call, self._why_dead())

    def reject(self, peer: str, call: Call, arrived_ns: int | None = None) -> None:
        """Answer a call that was queued at the actor's end, or that arrived after it (None)."""
        why = self._why_dead()
        if HISTORY.handled is not None:
            self._remember(peer, call, monotonic_ns() if arrived_ns is None else arrived_ns)
        if call.call:
            self._answer_died(peer, call, why)
        else:
            cell = self._cell
            cell.runtime.undeliverable.return_to_sender(
                peer, call, str(cell.instance.actor_id), why
            )

    def _why_dead(self) -> RankFailure:
        assert self._cell.dead is not None
        return self._cell.dead

    def _remember(self, peer: str, call: Call, arrived_ns: int, ran_ns: int = -1) -> None:
        """Add a message that has failed to the history, if it is kept."""
        history = HISTORY.handled
        if history is not None:
            history.add(
                (
                    monotonic_ns(), self._cell.spec.actor, call.reply_to or peer, call.sent_by,
                    call.call, call.endpoint, arrived_ns, ran_ns, True,
                )
            )  # fmt: skip

    # --- answers ----------------------------------------------------------------------------------

    def _answer_cancelled(self, peer: str, call: Call) -> None:
        error = CallCancelled()
        failure = self._cell.describe(error, "endpoint", call.endpoint)
        self._answer(peer, call, RAISED, pack_failure(failure, error))

    def _answer_died(
        self, peer: str, call: Call, why: RankFailure, counts: EndpointCounts | None = None
    ) -> None:
        if not self._cell.is_fatal(why):  # otherwise callers receive the end of this process
            self._answer(peer, call, DIED, pack_failure(why, None), counts)

    def _answer(
        self,
        peer: str,
        call: Call | StopActor,
        status: int,
        payload: Payload,
        counts: EndpointCounts | None = None,
        ran_ns: int = LONG_NS,
    ) -> None:
        if counts is not None:
            counts.bytes_out += payload.nbytes if payload.buffers else len(payload.body)
        self._cell.runtime.routes.reply(peer, call, status, payload, ran_ns)
