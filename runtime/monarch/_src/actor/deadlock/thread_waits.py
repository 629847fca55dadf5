"""Which threads can't go on before another one has ended what it does, as far as frames show that.

Runs in: a process with actors, on any thread, and only when somebody has waited for long.

A thread that stands in `Thread.join`, or in `result` of what a thread of an executor runs, goes on
when that thread has come to an end, if it has given no time-out; no other thread can change that.
Whatever else a thread may wait with (a lock, a queue, an event) says not who is to end it, so it is
taken not to depend: a cycle of waits is then not found, and none is ever made up.
"""

from __future__ import annotations

import inspect
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio

_JOIN = threading.Thread.join.__code__
# Where Python before 3.13 waits in it.
_JOINS: Any = getattr(getattr(threading.Thread, "_wait_for_tstate_lock", None), "__code__", None)
_WAIT = threading.Condition.wait.__code__


class BlockedByThread(NamedTuple):
    """What goes on only after a thread does: threads, and what tasks await of an executor."""

    threads: frozenset[int]
    awaited: tuple[asyncio.Future[Any], ...]


def held_up_by(thread: int) -> BlockedByThread:
    """What can't go on before that thread, which waits, has ended what it does."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    try:
        return _held_up_by(thread, frames)
    finally:
        frames.clear()  # our own is among them


def _held_up_by(thread: int, frames: dict[int, FrameType]) -> BlockedByThread:
    threads: set[int] = set()
    jobs: list[Any] = []  # what these threads run for executors: futures of `concurrent.futures`
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
    held = frame.f_locals  # of a thread that stands still, if not for long
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
    """What a thread runs for an executor."""
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
    """The futures of asyncio that become done with it (`run_in_executor`, `to_thread`)."""
    found: list[asyncio.Future[Any]] = []
    for callback in list(getattr(job, "_done_callbacks", ())):
        if inspect.isfunction(callback) and callback.__module__ == "asyncio.futures":
            mirror = inspect.getclosurevars(callback).nonlocals.get("destination")
            if mirror is not None:
                found.append(mirror)
    return found
