"""The functions that `submit` has been given, until they are done.

Runs in: the calling process. Any thread adds tasks; the thread that drives them takes them.
Invariant: a stream that is at its end takes no further task, so that none is forgotten.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any

from monarch._src.actor.call.pickling_errors import unpicklable, unpicklable_item
from monarch._src.actor.inspect.safe_repr import live_text
from monarch._src.actor.serialize import pack_value
from monarch._src.actor.work import WorkFuture
from monarch._src.mesh.map.arguments import name_of
from monarch._src.mesh.map.items import ItemStream
from monarch._src.mesh.map.parcels import Parcel, wrapped
from monarch._src.net.local.interrupt import GuardedLock


class Task:
    """One function with its arguments, for one rank."""

    def __init__(
        self, future: WorkFuture[Any], function: Callable[..., Any], args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Pickles them.

        Raises:
            TypeError, or what a reduction of the user raises: one of them cannot be pickled.
        """
        self.future = future
        self.name = name_of(function)
        self.context: Context = future.context()
        self.chunk = 0  # the number of the last chunk that it was sent as
        self._args = args
        self._kwargs = kwargs
        self.parcel: Parcel = _packed(self.name, function, tuple(args), dict(kwargs))

    @property
    def text(self) -> str:
        """Its arguments, as the program wrote them."""
        named = [f"{name}={live_text(value)}" for name, value in self._kwargs.items()]
        return ", ".join([*map(live_text, self._args), *named])


def _packed(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Parcel:
    try:
        return wrapped([(function, args, kwargs)])
    except Exception as error:
        refusal, cause = _refusal(name, function, args, kwargs, error)
        raise refusal from cause


def _refusal(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    error: Exception,
) -> tuple[Exception, Exception | None]:  # fmt: skip
    try:
        pack_value(function, loose=True)
    except Exception as of_function:
        what = f"the function {name}"
        return unpicklable_item("submit", what, function, of_function), of_function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = None
    return unpicklable(name, signature, args, kwargs, error)


class TaskStream(ItemStream):
    """Tasks by their numbers, from 0, in the order in which they were added."""

    def __init__(self) -> None:
        super().__init__(())
        self.expected = None
        self._lock = GuardedLock()
        self._waiting: deque[Task] = deque()
        self._tasks: dict[int, Task] = {}  # that are taken, and not dropped

    def add(self, task: Task) -> bool:
        """Add a task; False: the stream is at its end. Any thread."""
        with self._lock:
            if not self.at_end:
                self._waiting.append(task)
            return not self.at_end

    def __getitem__(self, number: int) -> Task:
        """A task that has been taken and is not done."""
        return self._tasks[number]

    @property
    def tasks(self) -> list[Task]:
        """Those that are not done. Any thread."""
        with self._lock:
            return [*self._tasks.values(), *self._waiting]

    def take(self, most: int) -> int:
        """Take up to that many tasks; returns how many. At its end if all tasks are done."""
        count = 0
        with self._lock:
            while count < most and self._waiting:
                self._tasks[self.taken] = self._waiting.popleft()
                self.taken += 1
                count += 1
            self.at_end = self.at_end or not (self._tasks or self._waiting)
        return count

    def drop(self, numbers: Any) -> None:
        """Nothing: a task is dropped when its future is done."""

    def done(self, number: int) -> Task:
        """A task is done."""
        with self._lock:
            return self._tasks.pop(number)

    def close(self) -> None:
        """Take no others."""
        with self._lock:
            self.at_end = True
