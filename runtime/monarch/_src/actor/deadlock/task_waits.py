"""Finds out whether a task cannot go on before a future is done, from asyncio's internals.

Runs in: a process with actors, on any thread, and only during a long wait.

The callbacks of a future wake the task that awaits it, or the futures that `gather`, `shield`,
`wait` and `TaskGroup` make of several. These are followed from the awaited future to the task. They
are internals of asyncio, so an unknown kind of callback counts as independent: a cycle of waits may
be missed, but none is reported wrongly.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

from monarch._src.actor.future import Future

# Closures of these modules wake each future that they hold; those of others are unknown.
_CLOSURES_OF = ("asyncio.tasks", Future.__module__)
_RUN_MAIN = "_run_until_complete_cb"  # ends `run_until_complete`, and so `asyncio.run`


def needs(task: asyncio.Task[Any] | None, future: asyncio.Future[Any]) -> bool:
    """Whether the task (None: the main task of `asyncio.run`) goes on only after the future.

    False if a time-out would wake one of the tasks in between.
    """
    seen: set[int] = set()
    todo: list[asyncio.Future[Any]] = [future]
    while todo:
        found = todo.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, asyncio.Task) and _has_deadline(found):
            continue
        if found is task:
            return True
        for callback in _callbacks(found):
            if task is None and getattr(callback, "__name__", "") == _RUN_MAIN:
                return True
            todo += _woken_by(callback)
    return False


def _callbacks(future: asyncio.Future[Any]) -> list[Any]:
    found: Any = getattr(future, "_callbacks", None) or ()
    return [entry[0] if isinstance(entry, tuple) else entry for entry in list(found)]


def _woken_by(callback: Any) -> Iterator[asyncio.Future[Any]]:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        yield owner
        return
    parent = getattr(owner, "_parent_task", None)  # of a TaskGroup
    if isinstance(parent, asyncio.Task):
        yield parent
        return
    if not inspect.isfunction(callback) or callback.__module__ not in _CLOSURES_OF:
        return
    held = inspect.getclosurevars(callback).nonlocals
    if held.get("return_when", asyncio.ALL_COMPLETED) != asyncio.ALL_COMPLETED:
        return  # `wait` for the first of several
    if held.get("timeout_handle") is not None:
        return
    for value in held.values():
        if isinstance(value, asyncio.Future):
            yield value


def _has_deadline(task: asyncio.Task[Any]) -> bool:
    """Whether the task is inside an `asyncio.timeout`."""
    scheduled: Any = getattr(task.get_loop(), "_scheduled", ())
    owners = (
        getattr(getattr(handle, "_callback", None), "__self__", None)
        for handle in list(scheduled)
        if not handle.cancelled()
    )
    return any(getattr(owner, "_task", None) is task for owner in owners)
