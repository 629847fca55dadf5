"""Work that goes on beside its caller, and the futures that stand for it.

Runs in: any process. `begin` runs the work on a daemon thread of its own; other work is ended by
whatever thread does it. Owns: that thread, until the work returns, and the table of the work that
is under way.
Invariants: work is in the table from its begin until its future is done. A future that is done
refers to nothing of its work, and the error of one that is dropped unread is reported.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar, cast

from monarch._src.actor.call.unread import UnreadError, is_cancellation
from monarch._src.actor.context import origin_now, origin_of_work
from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime
from monarch._src.errors import ActorError, CallCancelled, MeshStoppedError, SupervisionError
from monarch._src.net.local.waitable import RuntimeEnded

R = TypeVar("R")
THREAD = "monarch-work"
"""The name of the threads that run work."""
_OF_MONARCH = (ActorError, SupervisionError, TimeoutError, RuntimeEnded)


def _no_calls() -> Collection[int]:
    return ()


def _no_text() -> str:
    return ""


class WorkFuture(Future[R]):
    """The result of work that goes on beside its caller: of `map_async` and `submit`, say.

    It can be read as any `Future`, and can be cancelled. Dropping it does not cancel the work.
    """

    __slots__ = ("_calls", "_canceller", "_origin", "_progress", "_told", "mesh", "number", "what")

    def __init__(self, run: Runtime, what: str, mesh: int, *, told: bool = False) -> None:
        """`what` names the work, as in `map of fit on workers`; `mesh`: the uid of its procs.

        `told`: its errors are told whether or not the future is read.
        """
        super().__init__(*run.future_parts())
        # Above the numbers of all calls that were made before the work began.
        self.number = run.calls.new_number()
        self.what = what
        self.mesh = mesh
        self._told = told
        self._canceller: Callable[[], None] | None = None
        self._calls: Callable[[], Collection[int]] = _no_calls
        self._progress: Callable[[], str] = _no_text
        self._origin = origin_now()

    def cancel(self) -> bool:
        """End the work: running items are cancelled, and the others are not begun.

        Returns at once. The future then fails with an `ActorError` whose `exception` is a
        `CallCancelled`. A function that cannot be interrupted goes on, and its value is dropped.

        Returns:
            Whether the work was still under way.
        """
        canceller = self._canceller
        if self.done or canceller is None:
            return False
        canceller()
        return True

    @property
    def cancelled(self) -> bool:
        """Whether the work has ended because it was cancelled."""
        return self.done and is_cancellation(self._error)

    @property
    def progress(self) -> str:
        """How far the work is, such as `12 of 1,000 items are done`; empty if it is done."""
        return self._progress()

    def __repr__(self) -> str:
        progress = f", {self.progress}" if self.progress else ""
        return f"{super().__repr__()[:-1]}: {self.what}{progress}>"

    # --- for the runtime ----------------------------------------------------------------------

    def context(self) -> contextvars.Context:
        """A copy of the caller's context, in which calls have the origin of this work."""
        context = contextvars.copy_context()
        context.run(origin_of_work.set, self._origin)
        return context

    @property
    def calls(self) -> Collection[int]:
        """The numbers of its calls that are open. Any thread."""
        return () if self.done else self._calls()

    def set_under_way(
        self, cancel: Callable[[], None], calls: Callable[[], Collection[int]],
        progress: Callable[[], str] = _no_text,
    ) -> None:  # fmt: skip
        """The work has begun. `calls` returns the numbers of its open calls. All: any thread."""
        self._canceller = cancel
        self._calls = calls
        self._progress = progress
        _under_way[self.number] = cast("WorkFuture[Any]", self)

    def end_with(self, value: R) -> None:
        """The work has returned a value."""
        self._let_go()
        self.settle(lambda: value)

    def end_failed(self, error: BaseException) -> None:
        """The work has raised. The first outcome wins."""
        self._let_go()
        if self.done:
            return
        if isinstance(error, _OF_MONARCH):
            # Its frames are all of the runtime, and say nothing about the program.
            error.with_traceback(None)
        self.unread = None if self._told else _unread(error, self._origin)
        self.fail(error)

    def _let_go(self) -> None:
        _under_way.pop(self.number, None)
        self._canceller = None
        self._calls = _no_calls
        self._progress = _no_text


def begin(future: WorkFuture[R], work: Callable[[], R]) -> None:
    """Run `work` on a thread of its own, in a copy of the caller's context; it settles `future`."""
    context = future.context()
    run = partial(_run, future, work)
    threading.Thread(target=context.run, args=(run,), name=THREAD, daemon=True).start()


def under_way() -> list[WorkFuture[Any]]:
    """The work of this process that is not done, oldest first. Any thread."""
    return [one for _, one in sorted(_under_way.copy().items())]


def cancel_on_mesh(mesh: int) -> None:
    """Cancel the work on the procs of that uid, which are about to end."""
    for one in under_way():
        if one.mesh == mesh:
            one.cancel()


def calls_of_others(since: int) -> frozenset[int]:
    """The open calls of work that began before `newest_call` returned that number.

    Work that a thread or task waits for now is left out.
    """
    others = [one for one in under_way() if one.number <= since and not one.awaited]
    return frozenset(number for one in others for number in one.calls)


def cancelled_error(text: str) -> ActorError:
    """The error of cancelled work; `text` names the work, and how many of its items were done."""
    return ActorError(CallCancelled(text), text)


_under_way: dict[int, WorkFuture[Any]] = {}


def _run(future: WorkFuture[R], work: Callable[[], R]) -> None:
    try:
        value = work()
    except BaseException as error:
        future.end_failed(error)
    else:
        future.end_with(value)
    # The traceback of an error keeps this frame, and the error must not keep its own future.
    del future


def _unread(error: BaseException, origin: int) -> UnreadError | None:
    """Reports the error if it is dropped; None: it was requested, or the session has ended."""
    if is_cancellation(error) or isinstance(error, (MeshStoppedError, RuntimeEnded)):
        return None
    failures = error.failures if isinstance(error, ActorError) else ()
    return UnreadError(failures, origin, f"{type(error).__name__}: {error}")
