"""`returns_future`, and the event loop of the runtime's own coroutines.

Runs in: any process. The body of a `returns_future` function runs where its future is first waited
for: on the loop that awaits, or on a loop of its own in the thread that blocks. The shared loop has
one daemon thread, made by the first use; it takes a body only from a thread that blocks although it
runs a loop itself, as that of a notebook's kernel does.
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
    """An event loop on a thread of its own, from first use to `close`."""

    def __init__(self) -> None:
        self._lock = GuardedLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_here(self) -> bool:
        """Whether this thread is the loop's own."""
        return self._thread is threading.current_thread()

    def submit(
        self,
        coroutine: Coroutine[Any, Any, None],
        context: contextvars.Context | None = None,
        on_end: Callable[[object], None] | None = None,
    ) -> Callable[[], None]:
        """Run a coroutine, in that context or a copy of the caller's; returns what cancels it.

        `on_end` is called on the loop's thread, also if it was cancelled before it began.
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
                pass  # the loop was closed, with all that ran on it

        loop.call_soon_threadsafe(begin)
        return cancel

    def close(self) -> None:
        """Cancel what runs and end the thread. Idempotent; the next `submit` starts anew."""
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
        import asyncio  # 13 ms to load, and few programs come here

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="monarch-background", daemon=True
                )
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped: what a callback raises must not end what others wait for."""
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
    """The future of a `returns_future` function, whose body the first wait for it runs.

    `_body` is None once it runs, or has run; `_thread` is the one on whose loop it does.
    """

    __slots__ = ("_body", "_context", "_thread")

    def __init__(self, run: Runtime, body: Coroutine[Any, Any, R]) -> None:
        super().__init__(*run.future_parts())
        self._body: Coroutine[Any, Any, R] | None = body
        self._context = contextvars.copy_context()
        self._thread = 0

    def get(self, timeout: float | None = None) -> R:
        """Run the body here unless it runs already; its value, or what it raised.

        A time-out, or an exception that interrupts this thread, cancels the body.

        Raises:
            TimeoutError: not done in time. The future has failed with it.
            RuntimeError: the body runs on a loop of this thread, which would wait for itself.
            ValueError: a negative or NaN time-out.
        """
        if not self.done and (timeout is None or timeout >= 0):
            here = threading.get_ident()
            if self._thread == here or background.is_here:
                raise RuntimeError(
                    "get() would block the event loop on which the function has to run, and never "
                    "return: `await` the future instead"
                )
            body = self._take()
            if body is not None and _runs_a_loop():
                return self._get_from_shared_loop(body, timeout)
            if body is not None:
                self._thread = here
                self._run_here(body, timeout)
        return super().get(timeout)

    def __await__(self) -> Generator[Any, None, R]:
        body = self._take()
        if body is None:
            return (yield from super().__await__())
        # A cancelled `await` of a task cancels that, and goes on once it has ended.
        yield from self._begin(body).__await__()
        return self._result()

    def as_asyncio(self) -> asyncio.Future[R]:
        """An asyncio future of the running loop with the same outcome.

        If it begins the body, cancelling it cancels that.
        """
        body = self._take()
        if body is None:
            return super().as_asyncio()
        task = self._begin(body)
        mirror = super().as_asyncio()
        mirror.add_done_callback(lambda done: done.cancelled() and task.cancel())
        return mirror

    def on_done(self, callback: Callable[[], None], *, receives: bool = False) -> None:
        body = self._take()
        if body is not None:
            self._begin_on_shared_loop(body)
        super().on_done(callback, receives=receives)

    # --- where the body runs ------------------------------------------------------------------

    def _take(self) -> Coroutine[Any, Any, R] | None:
        """The body, for the one that runs it."""
        with _taking:
            body, self._body = self._body, None
        return body

    async def _settled_by(self, body: Coroutine[Any, Any, R]) -> None:
        try:
            value = await body
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise  # cancelled, or the end of the program: the loop has to know
        else:
            self.settle(lambda: value)

    def _begin(self, body: Coroutine[Any, Any, R]) -> asyncio.Task[None]:
        """As a task of the running loop, in the context of the call."""
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
        """On the shared loop; returns what cancels it."""
        return background.submit(self._settled_by(body), self._context, partial(self._on_end, body))

    def _on_end(self, body: Coroutine[Any, Any, R], _task: object) -> None:
        import asyncio

        if not self.done:  # the task was cancelled before its first step
            body.close()
            self.fail(asyncio.CancelledError())

    def _run_here(self, body: Coroutine[Any, Any, R], timeout: float | None) -> None:
        """On a loop of its own, on this thread, until it is settled.

        It sleeps as a blocking wait does, so what would interrupt that ends this, too.
        """
        import asyncio

        from monarch._src.actor.run.event_loop import new_loop  # which loads asyncio

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
        """On the shared loop, while this thread, which runs another one, is blocked."""
        cancel = self._begin_on_shared_loop(body)
        try:
            return super().get(timeout)
        except TimeoutError:
            if self.done:
                raise
            self.fail(_too_late(timeout))
            raise self._error or _too_late(timeout) from None
        finally:
            cancel()  # nothing, if it has ended


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
    """Cancel what is left on a loop, as `asyncio.run` does, and wait for its end."""
    import asyncio

    left = asyncio.all_tasks(loop)
    for one in left:
        one.cancel()
    loop.run_until_complete(asyncio.gather(*left, task, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())


def deferred(body: Coroutine[Any, Any, R]) -> Future[R]:
    """The future of a coroutine that runs where it is first waited for."""
    try:
        return _Deferred(runtime(), body)
    except BaseException:
        body.close()
        raise


def returns_future(function: Callable[P, Awaitable[R]]) -> Callable[P, Future[R]]:
    """Make an `async def` return a `Future`, which can be awaited, or be got by blocking.

    The body runs once, when the future is first waited for, in the context of the call: by `await`
    (or `as_asyncio()`) as a task of that event loop; by `get()` on the thread that calls it, or, if
    that thread runs an event loop, on one of the runtime's. A time-out or cancellation of that
    first wait cancels the body, and the future has failed with it; others that wait only observe.

    Raises:
        TypeError: it is no `async def`.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@returns_future needs an `async def`; {function!r} is none")

    # It travels by value with classes of `__main__` and of cells, and so does all that it names:
    # nothing but a function that the other side can import.
    @functools.wraps(function)
    def start(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return deferred(function(*args, **kwargs))

    return start
