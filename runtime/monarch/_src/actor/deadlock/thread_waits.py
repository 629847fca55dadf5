"""Finds the threads that cannot go on before another thread has finished, from their frames.

Runs in: a process with actors, on any thread, and only during a long wait.

A thread in `Thread.join`, or in `Future.result` of an executor's job, without a time-out, goes on
only when the other thread has finished. Other waits (for a lock, a queue, an event) do not show
which thread will end them, so they count as independent: a cycle of waits may be missed, but none
is reported wrongly.
"""

from __future__ import annotations

import inspect
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio

# The functions in which a thread waits for another one, or for an executor's job.
_JOIN = threading.Thread.join.__code__
# The function in which `join` waits before Python 3.13.
_JOINS: Any = getattr(getattr(threading.Thread, "_wait_for_tstate_lock", None), "__code__", None)
_WAIT = threading.Condition.wait.__code__


class BlockedByThread(NamedTuple):
    """The threads, and asyncio futures of an executor's jobs, that a thread blocks."""

    threads: frozenset[int]
    awaited: tuple[asyncio.Future[Any], ...]


def blocked_by_thread(thread: int) -> BlockedByThread:
    """The threads and futures that a waiting thread blocks."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    try:
        return _blocked_by_thread(thread, frames)
    finally:
        frames.clear()  # this function's own frame is among them


def _blocked_by_thread(thread: int, frames: dict[int, FrameType]) -> BlockedByThread:
    threads: set[int] = set()
    jobs: list[Any] = []  # the executor jobs of these threads, as futures of `concurrent.futures`
    todo = [thread]
    while todo:
        held = todo.pop()
        threads.add(held)
        jobs += _jobs_on(frames.get(held))
        for other, frame in frames.items():
            if other not in threads and _depends(frame, threads, jobs):
                todo.append(other)
    awaited = (mirror for job in jobs for mirror in _mirrors(job))
    return BlockedByThread(frozenset(threads), tuple(awaited))


def _depends(top: FrameType, threads: set[int], jobs: list[Any]) -> bool:
    frame = top.f_back if top.f_code in (_JOINS, _WAIT) else top
    if frame is None or frame.f_code not in (_JOIN, _result()):
        return False
    held = frame.f_locals  # the thread is waiting, and may go on at any time
    if held.get("timeout", 0) is not None:
        return False
    waited_for = held.get("self")
    if frame.f_code is _JOIN:
        return getattr(waited_for, "ident", None) in threads
    return any(waited_for is job for job in jobs)


def _result() -> Any:
    module = sys.modules.get("concurrent.futures._base")
    return None if module is None else module.Future.result.__code__


def _jobs_on(frame: FrameType | None) -> list[Any]:
    """The futures of the executor jobs that a thread runs."""
    module = sys.modules.get("concurrent.futures.thread")
    if module is None:
        return []
    run = module._WorkItem.run.__code__
    found: list[Any] = []
    while frame is not None:
        item = frame.f_locals.get("self") if frame.f_code is run else None
        if item is not None:
            found.append(item.future)
        frame = frame.f_back
    return found


def _mirrors(job: Any) -> list[asyncio.Future[Any]]:
    """The asyncio futures of a job (`run_in_executor`, `to_thread`)."""
    found: list[asyncio.Future[Any]] = []
    for callback in list(getattr(job, "_done_callbacks", ())):
        if inspect.isfunction(callback) and callback.__module__ == "asyncio.futures":
            mirror = inspect.getclosurevars(callback).nonlocals.get("destination")
            if mirror is not None:
                found.append(mirror)
    return found
