"""Which task can't go on before a future is done, as far as asyncio shows that.

Runs in: a process with actors, on any thread, and only when somebody has waited for long.

A future names what it wakes by its callbacks: a task that awaits it, what `gather`, `shield`,
`wait` and a `TaskGroup` make of several. These are followed from the awaited future to the task.
What asyncio keeps there is its own affair, so whatever looks different is taken not to depend: a
cycle of waits is then not found, and none is ever made up.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

# Whose closures wake each future that they hold; what others do with theirs nobody knows.
_CLOSURES_OF = ("asyncio.tasks", "monarch._src.actor.future")
_RUN_MAIN = "_run_until_complete_cb"  # what ends `run_until_complete`, and so `asyncio.run`


def needs(task: asyncio.Task[Any] | None, future: asyncio.Future[Any]) -> bool:
    """Whether that task, or what `asyncio.run` runs if there is none, goes on only after it.

    Not if one of the tasks in between would be woken by a time-out.
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
    """Whether `asyncio.timeout` is around what it does."""
    scheduled: Any = getattr(task.get_loop(), "_scheduled", ())
    owners = (
        getattr(getattr(handle, "_callback", None), "__self__", None)
        for handle in list(scheduled)
        if not handle.cancelled()
    )
    return any(getattr(owner, "_task", None) is task for owner in owners)
