"""The supervision hooks of an actor, and the consequences of their results.

Runs in: a proc, or a client that hosts controllers, on the actor's own thread. `__supervise__` is
called at *safe points*: between two messages, at an `await` of an async actor, and in a blocking
`.get()` of a sync actor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from monarch._src.actor.context import current
from monarch._src.actor.run.mailbox import CHECK_FAILURES
from monarch._src.errors import ActorError, SupervisionError
from monarch._src.failures.report import MeshFailure, RankFailure, Undeliverable, as_causes
from monarch._src.net.local.waitable import Waitable
from monarch._src.wire.messages import Undelivered

if TYPE_CHECKING:
    from monarch._src.actor.run.cell_protocol import Cell

# The method of an actor that may handle undeliverable messages.
UNDELIVERABLE = "_handle_undeliverable_message"


class Supervision:
    """The supervision hooks of one actor."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        # Done while a failure is to be checked: interrupts the blocking wait of a sync actor.
        self._check_due = Waitable()

    # --- a sync actor -----------------------------------------------------------------------------

    def watch_blocking_waits(self) -> None:
        """From here on, check failures in blocking waits too."""
        instance = self._cell.instance
        instance.check_due, instance.check_failures = self._check_due, self._check_while_blocked

    def request_check(self) -> None:
        """Request a check of pending failures at the next safe point. Any thread."""
        cell = self._cell
        self._check_due.done = True  # before `blocked_on` is read
        cell.mailbox.put_first(CHECK_FAILURES)
        blocked_on = cell.instance.blocked_on
        if blocked_on is not None:
            blocked_on.recheck()

    def check_failures(self) -> bool:
        """Handle the next pending failure; False if there is none."""
        self._check_due.done = False
        fault = self._cell.supervisor.next_failure()
        if fault is None:
            return False
        before = current.set(self._cell.idle_context)
        try:
            answer = self.call_supervise(fault)
        finally:
            current.reset(before)
        self.on_supervised(fault, answer)
        return True

    def reach_safe_point(self) -> None:
        """Bring a blocked sync actor to its safe point. Any thread."""
        self._check_due.done = True
        blocked_on = self._cell.instance.blocked_on
        if blocked_on is not None:
            blocked_on.recheck()

    def _check_while_blocked(self) -> None:
        pause, self._cell.pause_at_safe_point = self._cell.pause_at_safe_point, None
        self.check_failures()
        dead = self._cell.dead
        if dead is not None:  # the awaited answer may never come, and the call has been answered
            raise SupervisionError(failures=[dead])
        if pause is not None:
            pause()

    # --- any actor --------------------------------------------------------------------------------

    def call_supervise(self, fault: MeshFailure) -> Any:
        """Call `__supervise__`; returns its result or its exception, or None without a hook."""
        hook = getattr(self._cell.instance_object, "__supervise__", None)
        if hook is None:
            return None
        try:
            return hook(fault)
        except BaseException as error:
            return error

    def on_supervised(self, fault: MeshFailure, answer: Any) -> None:
        """Apply the result of `__supervise__`: an unhandled failure fails the actor."""
        cell = self._cell
        if isinstance(answer, BaseException):
            _add_context(answer, SupervisionError(failures=fault.failures))
            failure = cell.describe(answer, "actor died", "__supervise__")
            cause = answer
        elif answer:
            cell.supervisor.on_handled()
            return
        else:
            has_hook = hasattr(cell.instance_object, "__supervise__")
            why = (
                f"its __supervise__ returned {answer!r:.80}"
                if has_hook
                else "it has no __supervise__"
            )
            failure = cell.failure_of_kind("not handled", why)
            cause = None
        failure = _with_causes(failure, fault.failures)
        cell.fail(failure, cause or SupervisionError(failures=[failure]))

    # --- undeliverable messages ------------------------------------------------------------------

    def call_undeliverable_hook(self, message: Undelivered) -> Any:
        """Call `_handle_undeliverable_message`; returns its result or its exception."""
        hook = getattr(self._cell.instance_object, UNDELIVERABLE)
        try:
            return hook(undeliverable(self._cell.instance.actor_id, message))
        except BaseException as error:
            return error

    def on_undeliverable_answered(self, message: Undelivered, answer: Any) -> None:
        """Apply the result of `_handle_undeliverable_message`.

        An unhandled message fails this actor, unless its receiver has failed and is owned by this
        actor, to which that failure is reported anyway.
        """
        cell = self._cell
        if isinstance(answer, BaseException):
            failure = cell.describe(answer, "actor died", UNDELIVERABLE)
            cause: BaseException | None = answer
        elif answer or (message.failure.causes and message.receiver in cell.supervisor.meshes):
            return
        else:
            why = "it does not handle undeliverable messages"
            failure, cause = cell.failure_of_kind("not handled", why), None
        failure = _with_causes(failure, (message.failure,))
        cell.fail(failure, cause or SupervisionError(failures=[failure]))


def undeliverable(sender: object, message: Undelivered) -> Undeliverable:
    """The argument of `_handle_undeliverable_message`."""
    return Undeliverable(str(sender), message.to, message.failure)


def _with_causes(failure: RankFailure, causes: tuple[RankFailure, ...]) -> RankFailure:
    return replace(failure, causes=as_causes([*causes, *failure.causes]))


def _add_context(error: BaseException, first: BaseException) -> None:
    """Put `first` at the start of the exception chain of `error`."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        before = error.__cause__ or error.__context__
        if before is None:
            error.__context__ = first
            error.__suppress_context__ = False
            return
        error = before


def causes_of(error: BaseException) -> tuple[RankFailure, ...]:
    """The failures that an error of this package carries, or none."""
    if isinstance(error, (SupervisionError, ActorError)):
        return as_causes(error.failures)
    return ()
