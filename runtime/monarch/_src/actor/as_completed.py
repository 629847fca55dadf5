"""`as_completed`: futures in the order in which they are done.

Runs in: any process, on the calling thread, or in a task that iterates with `async for`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime_or_none

R = TypeVar("R")


class CompletedFutures(Generic[R]):
    """The iterator of `as_completed`, for `for` and for `async for`."""

    def __init__(self, futures: list[Future[R]], timeout: float | None) -> None:
        self._left = len(futures)
        self._total = len(futures)
        self._timeout = timeout
        self._until = None if timeout is None else monotonic() + timeout
        self._done: deque[Future[R]] = deque()
        self._next = _new_future()  # settled when the next one is done
        for future in futures:
            future.on_done(partial(self._on_done, future), receives=True)

    def __iter__(self) -> CompletedFutures[R]:
        return self

    def __aiter__(self) -> CompletedFutures[R]:
        return self

    def __next__(self) -> Future[R]:
        if not self._left:
            raise StopIteration
        while not self._done:
            self._renew()
            if not self._done:
                left = None if self._until is None else max(0.0, self._until - monotonic())
                try:
                    self._next.get(left)
                except TimeoutError:
                    raise self._out_of_time() from None
        return self._take()

    async def __anext__(self) -> Future[R]:
        import asyncio  # loaded by the caller's loop

        if not self._left:
            raise StopAsyncIteration
        while not self._done:
            self._renew()
            if not self._done:
                left = None if self._until is None else max(0.0, self._until - monotonic())
                try:
                    await asyncio.wait_for(self._next.as_asyncio(), left)
                except asyncio.TimeoutError:
                    raise self._out_of_time() from None
        return self._take()

    def _renew(self) -> None:
        # Replaced before the caller checks `_done` again, so that no arrival is missed.
        if self._next.done:
            self._next = _new_future()

    def _take(self) -> Future[R]:
        self._left -= 1
        return self._done.popleft()

    def _on_done(self, future: Future[R]) -> None:
        self._done.append(future)
        self._next.settle(_nothing)

    def _out_of_time(self) -> TimeoutError:
        return TimeoutError(
            f"as_completed: {self._left:,} of {self._total:,} futures are not done within "
            f"{self._timeout:g} s; their calls go on"
        )


def as_completed(futures: Iterable[Future[R]], timeout: float | None = None) -> CompletedFutures[R]:
    """Futures of calls in the order in which they are done, for `for` and for `async for`.

    Futures that are done come first. A future that is given twice comes once. Each is yielded
    whether it has a value or an error; its `get()` returns at once.

    Args:
        timeout: seconds for all of them, from this call on; None: no limit.

    Raises:
        TypeError: one of `futures` is no `Future`.
        ValueError: a time-out that is not above 0.
        TimeoutError: raised by the iteration when the time is up. The calls go on.
    """
    timeout_s = positive_seconds("as_completed", timeout)
    found: dict[int, Future[R]] = {}
    for at, future in enumerate(futures):
        if not isinstance(future, Future):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"as_completed: number {at} is of type {type(future).__name__}; give the futures "
                "that calls return"
            )
        found[id(future)] = future
    return CompletedFutures(list(found.values()), timeout_s)


def positive_seconds(method: str, timeout: Any) -> float | None:
    """A time-out in seconds, or None.

    Raises:
        TypeError: it is no number. ValueError: it is not above 0.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"{method}: timeout={timeout!r}: give seconds, or None for no limit")
    if not timeout > 0:  # NaN is not
        raise ValueError(f"{method}: timeout={timeout}: give seconds above 0, or None for no limit")
    return float(timeout)


def _new_future() -> Future[None]:
    running = runtime_or_none()
    return Future.unmanaged() if running is None else running.new_future()


def _nothing() -> None:
    pass
