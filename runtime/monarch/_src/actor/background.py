"""`returns_future`, and the event loop on which such functions run.

Runs in: any process; one daemon thread, made by the first call. Whoever observes the future may
block or await, in any thread, and none of it stands in the way of the coroutine.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime
from monarch._src.net.interrupt import GuardedLock

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
R = TypeVar("R")


class BackgroundLoop:
    """An event loop on a thread of its own, from first use to `close`."""

    def __init__(self) -> None:
        self._lock = GuardedLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, coroutine: Coroutine[Any, Any, R], future: Future[R]) -> None:
        """Run a coroutine, in the caller's context; the future gets what becomes of it."""
        loop = self._running()
        context = contextvars.copy_context()

        async def settle() -> None:
            try:
                value = await coroutine
            except BaseException as error:
                future.fail(error)
            else:
                future.settle(lambda: value)

        def begin() -> None:
            task = context.run(loop.create_task, settle())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        loop.call_soon_threadsafe(begin)

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
                    target=self._loop.run_forever, name="monarch-background", daemon=True
                )
                self._thread.start()
            return self._loop


background = BackgroundLoop()


def begun(coroutine: Coroutine[Any, Any, R]) -> Future[R]:
    """Run a coroutine on the background loop; what becomes of it."""
    future: Future[R] = runtime().new_future()
    background.submit(coroutine, future)
    return future


def returns_future(function: Callable[P, Awaitable[R]]) -> Callable[P, Future[R]]:
    """Make an `async def` return a `Future`: it runs at once, and can be waited for anywhere.

    It runs on a loop of the runtime, so it must not use objects that are bound to another loop.

    Raises:
        TypeError: it is no `async def`.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@returns_future needs an `async def`; {function!r} is none")

    # It travels by value with classes of `__main__` and of cells, and so does all that it names:
    # nothing but a function that the other side can import.
    @functools.wraps(function)
    def start(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return begun(function(*args, **kwargs))

    return start
