"""`returns_future`, and the event loop of the runtime's own coroutines.

Runs in: any process. The first wait for the future of a `returns_future` function runs the body: on
the awaiting loop, or on a new loop in the blocking thread. If the blocking thread runs an event
loop itself, as a notebook's kernel does, the body runs on the shared loop, which has one daemon
thread, started by its first use.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime, runtime
from monarch._src.net.local.interrupt import GuardedLock

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("monarch.actor")


class BackgroundLoop:
    """An event loop on its own thread, from the first use to `close`."""

    def __init__(self) -> None:
        self._lock = GuardedLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_current_thread(self) -> bool:
        """Whether this thread is the loop's own."""
        return self._thread is threading.current_thread()

    def submit(
        self,
        coroutine: Coroutine[Any, Any, None],
        context: contextvars.Context | None = None,
        on_end: Callable[[object], None] | None = None,
    ) -> Callable[[], None]:
        """Run a coroutine, in `context` or a copy of the caller's; returns a function to cancel it.

        `on_end` is called on the loop's thread, even if the task was cancelled before it began.
        """
        loop = self._running()
        context = contextvars.copy_context() if context is None else context
        begun: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = context.run(loop.create_task, coroutine)
            begun.append(task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if on_end is not None:
                task.add_done_callback(on_end)

        def end() -> None:
            begun[0].cancel()  # `begin` has run before

        def cancel() -> None:
            try:
                loop.call_soon_threadsafe(end)
            except RuntimeError:
                pass  # the loop was closed, with all its tasks

        loop.call_soon_threadsafe(begin)
        return cancel

    def close(self) -> None:
        """Cancel all tasks and end the thread. Idempotent; the next `submit` starts a new loop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return

        async def cancel() -> None:
            import asyncio

            tasks = [task for task in self._tasks if not task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            loop.stop()

        loop.call_soon_threadsafe(lambda: loop.create_task(cancel()))
        thread.join()
        loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        import asyncio  # takes 13 ms to load, and few programs need it here

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="monarch-background", daemon=True
                )
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped. An exception of one callback must not end other tasks."""
    while True:
        try:
            loop.run_forever()
            return
        except BaseException:
            log.warning(
                "a callback on the runtime's event loop raised; the loop goes on", exc_info=True
            )


background = BackgroundLoop()


class _Deferred(Future[R]):
    """The future of a `returns_future` function; the first wait for it runs the body.

    `_body` is None once the body has begun; `_thread` is the thread whose loop runs it.
    """

    __slots__ = ("_body", "_context", "_thread")

    def __init__(self, run: Runtime, body: Coroutine[Any, Any, R]) -> None:
        super().__init__(*run.future_parts())
        self._body: Coroutine[Any, Any, R] | None = body
        self._context = contextvars.copy_context()
        self._thread = 0

    def get(self, timeout: float | None = None) -> R:
        """Run the body here unless it has begun; returns its value, or raises its exception.

        A time-out, or an exception that interrupts this thread, cancels the body.

        Raises:
            TimeoutError: not done in time. The future has failed with it.
            RuntimeError: the body runs on this thread's loop, which would wait for itself.
            ValueError: a negative or NaN time-out.
        """
        if not self.done and (timeout is None or timeout >= 0):
            here = threading.get_ident()
            if self._thread == here or background.is_current_thread:
                raise RuntimeError(
                    "get() would block the event loop on which the function has to run, and never "
                    "return: `await` the future instead"
                )
            body = self._take_body()
            if body is not None and _runs_a_loop():
                return self._get_from_shared_loop(body, timeout)
            if body is not None:
                self._thread = here
                self._run_on_this_thread(body, timeout)
        return super().get(timeout)

    def __await__(self) -> Generator[Any, None, R]:
        body = self._take_body()
        if body is None:
            return (yield from super().__await__())
        # Cancelling this `await` cancels the task, and then waits for its end.
        yield from self._begin(body).__await__()
        return self._result()

    def as_asyncio(self) -> asyncio.Future[R]:
        """An asyncio future of the running loop with the same outcome.

        If this call starts the body, cancelling the asyncio future cancels the body.
        """
        body = self._take_body()
        if body is None:
            return super().as_asyncio()
        task = self._begin(body)
        mirror = super().as_asyncio()
        mirror.add_done_callback(lambda done: done.cancelled() and task.cancel())
        return mirror

    def on_done(self, callback: Callable[[], None], *, receives: bool = False) -> None:
        body = self._take_body()
        if body is not None:
            self._begin_on_shared_loop(body)
        super().on_done(callback, receives=receives)

    # --- running the body ------------------------------------------------------------------

    def _take_body(self) -> Coroutine[Any, Any, R] | None:
        """Take the body in order to run it; None if it has begun."""
        with _taking:
            body, self._body = self._body, None
        return body

    async def _settled_by(self, body: Coroutine[Any, Any, R]) -> None:
        try:
            value = await body
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise  # the loop must see a cancellation, or the end of the program
        else:
            self.settle(lambda: value)

    def _begin(self, body: Coroutine[Any, Any, R]) -> asyncio.Task[None]:
        """Run the body as a task of the running loop, in the context of the call."""
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._body = body
            raise
        self._thread = threading.get_ident()
        return self._task_on(loop, body)

    def _task_on(
        self, loop: asyncio.AbstractEventLoop, body: Coroutine[Any, Any, R]
    ) -> asyncio.Task[None]:
        task = self._context.run(loop.create_task, self._settled_by(body))
        task.add_done_callback(partial(self._on_end, body))
        return task

    def _begin_on_shared_loop(self, body: Coroutine[Any, Any, R]) -> Callable[[], None]:
        """Run the body on the shared loop; returns a function to cancel it."""
        return background.submit(self._settled_by(body), self._context, partial(self._on_end, body))

    def _on_end(self, body: Coroutine[Any, Any, R], _task: object) -> None:
        import asyncio

        if not self.done:  # the task was cancelled before its first step
            body.close()
            self.fail(asyncio.CancelledError())

    def _run_on_this_thread(self, body: Coroutine[Any, Any, R], timeout: float | None) -> None:
        """Run the body on a new loop on this thread, until the future is settled.

        The loop sleeps like a blocking wait, so the same signals interrupt it.
        """
        import asyncio

        from monarch._src.actor.run.event_loop import new_loop  # loads asyncio

        loop = new_loop(self._receive_leader)
        task = self._task_on(loop, body)
        try:
            try:
                loop.run_until_complete(asyncio.wait([task], timeout=timeout))
            except BaseException:
                if not self.done:
                    self.fail(asyncio.CancelledError("the wait that ran it was interrupted"))
                raise
            if not task.done():
                self.fail(_too_late(timeout))
        finally:
            try:
                _wind_up(loop, task)
            finally:
                loop.close()

    def _get_from_shared_loop(self, body: Coroutine[Any, Any, R], timeout: float | None) -> R:
        """Block this thread, which runs a loop, while the shared loop runs the body."""
        cancel = self._begin_on_shared_loop(body)
        try:
            return super().get(timeout)
        except TimeoutError:
            if self.done:
                raise
            self.fail(_too_late(timeout))
            raise self._error or _too_late(timeout) from None
        finally:
            cancel()  # no effect if the body has ended


_taking = GuardedLock()


def _too_late(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"no result within {timeout} s; the function was cancelled")


def _runs_a_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _wind_up(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Cancel the remaining tasks of a loop and wait for their end, as `asyncio.run` does."""
    import asyncio

    left = asyncio.all_tasks(loop)
    for one in left:
        one.cancel()
    loop.run_until_complete(asyncio.gather(*left, task, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())


def deferred(body: Coroutine[Any, Any, R]) -> Future[R]:
    """A future for a coroutine, which the first wait for it runs."""
    try:
        return _Deferred(runtime(), body)
    except BaseException:
        body.close()
        raise


def returns_future(function: Callable[P, Awaitable[R]]) -> Callable[P, Future[R]]:
    """Make an `async def` return a `Future`, which can be awaited or read by `get()`.

    The body runs once, in the context of the call, when the future is first waited for: with
    `await` or `as_asyncio()` as a task of that event loop; with `get()` on the calling thread, or
    on the runtime's own loop if the calling thread runs an event loop. A time-out or cancellation
    of the first wait cancels the body and fails the future; later waits only observe it.

    Raises:
        TypeError: `function` is no `async def`.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@returns_future needs an `async def`; {function!r} is none")

    # Pickled by value with classes of `__main__` and of notebook cells, and with every global that
    # it uses. So it uses one global only: a function that the other process can import.
    @functools.wraps(function)
    def start(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return deferred(function(*args, **kwargs))

    return start
