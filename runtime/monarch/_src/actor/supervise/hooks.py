"""How an actor is asked about what has failed: its hooks, and what follows from their answers.

Runs in: a proc, or a client that hosts controllers, on the actor's own thread. `__supervise__` is
called at *safe points*: between two messages, and in the middle of one where the actor itself says
that others may go on: an `await` of an async actor, a blocking `.get()` of a sync one. See
docs/explanation/supervision.md.
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
    from monarch._src.actor.run.cell_protocol import Cell

UNDELIVERABLE = "_handle_undeliverable_message"


class Supervision:
    """The hooks of one actor."""

    def __init__(self, worker: Cell) -> None:
        self._worker = worker
        # Done while something is to be judged: a sync actor that blocks looks at it.
        self._asked = Waitable()

    # --- a sync actor -----------------------------------------------------------------------------

    def watch_waits(self) -> None:
        """From here on the actor may be asked while it blocks."""
        instance = self._worker.instance
        instance.asked, instance.judge = self._asked, self._judge_while_blocked

    def ask(self) -> None:
        """Something is to be judged. Any thread."""
        worker = self._worker
        self._asked.done = True  # before the look at what it is blocked on
        worker.mailbox.put_first(CHECK_FAILURES)
        blocked_on = worker.instance.blocked_on
        if blocked_on is not None:
            blocked_on.recheck()

    def judge(self) -> bool:
        """Ask about the next failure, and do what follows; False: there is none."""
        self._asked.done = False
        fault = self._worker.keeper.judge()
        if fault is None:
            return False
        before = current.set(self._worker.at_home)
        try:
            answer = self.call(fault)
        finally:
            current.reset(before)
        self.answered(fault, answer)
        return True

    def look_soon(self) -> None:
        """Have a sync actor that blocks come to its safe point. Any thread."""
        self._asked.done = True
        blocked_on = self._worker.instance.blocked_on
        if blocked_on is not None:
            blocked_on.recheck()

    def _judge_while_blocked(self) -> None:
        pause, self._worker.pause_soon = self._worker.pause_soon, None
        self.judge()
        dead = self._worker.dead
        if dead is not None:  # what it waits for may never come, and nobody wants its answer
            raise SupervisionError(failures=[dead])
        if pause is not None:
            pause()

    # --- any actor --------------------------------------------------------------------------------

    def call(self, fault: MeshFailure) -> Any:
        """What `__supervise__` says: truthy, falsy, an awaitable, what it raised; None: no hook."""
        hook = getattr(self._worker.instance_object, "__supervise__", None)
        if hook is None:
            return None
        try:
            return hook(fault)
        except BaseException as error:
            return error

    def answered(self, fault: MeshFailure, answer: Any) -> None:
        """The supervisor has answered; a failure that it has not handled is the actor's own."""
        worker = self._worker
        if isinstance(answer, BaseException):
            _add_context(answer, SupervisionError(failures=fault.failures))
            failure = worker.describe(answer, "actor died", "__supervise__")
            cause = answer
        elif answer:
            worker.keeper.handled()
            return
        else:
            has_hook = hasattr(worker.instance_object, "__supervise__")
            said = f"its __supervise__ returned {answer!r:.80}" if has_hook else ""
            failure = self._not_handled(said or "it has no __supervise__")
            cause = None
        failure = _came_of(failure, fault.failures)
        worker.condemn(failure, cause or SupervisionError(failures=[failure]))

    def _not_handled(self, why: str) -> RankFailure:
        worker = self._worker
        spec = worker.spec
        return RankFailure(
            spec.mesh_name, worker.rank, worker.point, spec.class_name, None,
            worker.runtime.host, os.getpid(), "not handled", "", why,
        )  # fmt: skip

    # --- messages that came back ------------------------------------------------------------------

    def returned(self, message: Undelivered) -> Any:
        """What `_handle_undeliverable_message` says to a message of this actor that came back."""
        hook = getattr(self._worker.instance_object, UNDELIVERABLE)
        try:
            return hook(undeliverable(self._worker.instance.actor_id, message))
        except BaseException as error:
            return error

    def settled(self, message: Undelivered, answer: Any) -> None:
        """It has answered. Not handled, that is a failure, but for one that it is told of anyway.

        That is: its receiver has failed, and belongs to this very actor.
        """
        worker = self._worker
        if isinstance(answer, BaseException):
            failure = worker.describe(answer, "actor died", UNDELIVERABLE)
            cause: BaseException | None = answer
        elif answer or (message.failure.causes and message.receiver in worker.keeper.meshes):
            return
        else:
            failure, cause = self._not_handled("it does not handle undeliverable messages"), None
        failure = _came_of(failure, (message.failure,))
        worker.condemn(failure, cause or SupervisionError(failures=[failure]))


def undeliverable(sender: object, message: Undelivered) -> Undeliverable:
    """What the hook is given."""
    return Undeliverable(str(sender), message.to, message.failure)


def _came_of(failure: RankFailure, causes: tuple[RankFailure, ...]) -> RankFailure:
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
