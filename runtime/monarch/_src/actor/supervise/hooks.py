"""How an actor is asked about what has failed: its hooks, and what follows from their answers.

Runs in: a proc, or a client that hosts controllers, on the actor's own thread. `__supervise__` is
called at *safe points*: between two messages, and in the middle of one where the actor itself says
that others may go on: an `await` of an async actor, a blocking `.get()` of a sync one. See
docs/design.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from monarch._src.actor.context import current
from monarch._src.actor.run.mailbox import CHECK_FAILURES
from monarch._src.errors import ActorError, SupervisionError
from monarch._src.failures.report import MeshFailure, RankFailure, Undeliverable, as_causes
from monarch._src.net.local.waitable import Waitable
from monarch._src.wire.messages import Undelivered

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell

UNDELIVERABLE = "_handle_undeliverable_message"


class Supervision:
    """The hooks of one actor."""

    def __init__(self, cell: ActorCell) -> None:
        self._cell = cell
        # Done while something is to be judged: a sync actor that blocks looks at it.
        self._check_due = Waitable()

    # --- a sync actor -----------------------------------------------------------------------------

    def watch_blocking_waits(self) -> None:
        """From here on the actor may be asked while it blocks."""
        instance = self._cell.instance
        instance.check_due, instance.check_failures = self._check_due, self._check_while_blocked

    def request_check(self) -> None:
        """Something is to be judged. Any thread."""
        cell = self._cell
        self._check_due.done = True  # before the look at what it is blocked on
        cell.mailbox.put_first(CHECK_FAILURES)
        blocked_on = cell.instance.blocked_on
        if blocked_on is not None:
            blocked_on.stir()

    def check_failures(self) -> bool:
        """Ask about the next failure, and do what follows; False: there is none."""
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
        """Have a sync actor that blocks come to its safe point. Any thread."""
        self._check_due.done = True
        blocked_on = self._cell.instance.blocked_on
        if blocked_on is not None:
            blocked_on.stir()

    def _check_while_blocked(self) -> None:
        pause, self._cell.pause_at_safe_point = self._cell.pause_at_safe_point, None
        self.check_failures()
        dead = self._cell.dead
        if dead is not None:  # what it waits for may never come, and nobody wants its answer
            raise SupervisionError(failures=[dead])
        if pause is not None:
            pause()

    # --- any actor --------------------------------------------------------------------------------

    def call_supervise(self, fault: MeshFailure) -> Any:
        """What `__supervise__` says: truthy, falsy, an awaitable, what it raised; None: no hook."""
        hook = getattr(self._cell.instance_object, "__supervise__", None)
        if hook is None:
            return None
        try:
            return hook(fault)
        except BaseException as error:
            return error

    def on_supervised(self, fault: MeshFailure, answer: Any) -> None:
        """The supervisor has answered; a failure that it has not handled is the actor's own."""
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
            said = f"its __supervise__ returned {answer!r:.80}" if has_hook else ""
            failure = self._not_handled(said or "it has no __supervise__")
            cause = None
        failure = _with_causes(failure, fault.failures)
        cell.fail(failure, cause or SupervisionError(failures=[failure]))

    def _not_handled(self, why: str) -> RankFailure:
        cell = self._cell
        spec = cell.spec
        return RankFailure(
            spec.mesh_name, cell.rank, cell.point, spec.class_name, None,
            cell.runtime.host, os.getpid(), "not handled", "", why,
        )  # fmt: skip

    # --- messages that came back ------------------------------------------------------------------

    def call_undeliverable_hook(self, message: Undelivered) -> Any:
        """What `_handle_undeliverable_message` says to a message of this actor that came back."""
        hook = getattr(self._cell.instance_object, UNDELIVERABLE)
        try:
            return hook(undeliverable(self._cell.instance.actor_id, message))
        except BaseException as error:
            return error

    def on_undeliverable_answered(self, message: Undelivered, answer: Any) -> None:
        """It has answered. Not handled, that is a failure, but for one that it is told of anyway.

        That is: its receiver has failed, and belongs to this very actor.
        """
        cell = self._cell
        if isinstance(answer, BaseException):
            failure = cell.describe(answer, "actor died", UNDELIVERABLE)
            cause: BaseException | None = answer
        elif answer or (message.failure.causes and message.receiver in cell.supervisor.meshes):
            return
        else:
            failure, cause = self._not_handled("it does not handle undeliverable messages"), None
        failure = _with_causes(failure, (message.failure,))
        cell.fail(failure, cause or SupervisionError(failures=[failure]))


def undeliverable(sender: object, message: Undelivered) -> Undeliverable:
    """What the hook is given."""
    return Undeliverable(str(sender), message.to, message.failure)


def _with_causes(failure: RankFailure, causes: tuple[RankFailure, ...]) -> RankFailure:
    return replace(failure, causes=as_causes([*causes, *failure.causes]))


def _add_context(error: BaseException, first: BaseException) -> None:
    """Put `first` at the beginning of what `error` came of."""
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
    """The failures that an error of this package carries."""
    if isinstance(error, (SupervisionError, ActorError)):
        return as_causes(error.failures)
    return ()
