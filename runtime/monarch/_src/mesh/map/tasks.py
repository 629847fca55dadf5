"""The functions that `submit` has been given: each goes to the rank that is free first.

Runs in: the calling process. Any thread adds tasks. The functions that are submitted to the same
ranks, until none is left, are one run, with a thread of its own, which takes the tasks, and actors
of its own on these ranks.
Owns: the runs of this process, by the ranks of a mesh; the thread of each.
Invariants: a rank has one function at a time. Each future is done when the run has ended, whatever
ended it. A future that was cancelled is done at once, and its function is not sent any more. A
stream that is at its end takes no further task, so that none is forgotten.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, TypeAlias

from monarch._src.actor.call.pickling_errors import unpicklable, unpicklable_item
from monarch._src.actor.future import Future
from monarch._src.actor.inspect.safe_repr import live_text
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.serialize import pack_value
from monarch._src.actor.work import THREAD, WorkFuture, cancelled_error
from monarch._src.errors import ActorError, SupervisionError
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.map.arguments import MapArguments, name_of
from monarch._src.mesh.map.calls import ChunkAnswered, ChunkUnsent, Woken
from monarch._src.mesh.map.driver import Failed, MapRun, Result, short_text
from monarch._src.mesh.map.items import ItemStream
from monarch._src.mesh.map.parcels import Parcel, wrapped
from monarch._src.mesh.map.state.schedule import Chunk
from monarch._src.net.local.interrupt import GuardedLock

Ranks: TypeAlias = "tuple[int, tuple[int, ...]]"
"""The uid of the procs, and the ranks of the mesh or slice."""


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


# --- the run that drives them ---------------------------------------------------------------------


class TaskRun(MapRun):
    """The functions that are submitted to some ranks, until none is left."""

    UNIT = ("submitted function", "submitted functions")
    WHAT = "submitted functions"
    MOST_IN_FLIGHT = 1

    def __init__(self, runtime: Runtime, actors: ActorMesh, tasks: TaskStream) -> None:
        arguments = MapArguments(
            function=_never, name="submit", call=_never, items=tasks, chunk_size=1,
            on_error="raise", timeout=None, progress=True,
        )  # fmt: skip
        super().__init__(runtime, actors, arguments)
        self._tasks = tasks

    # --- from any thread --------------------------------------------------------------------------

    def add(self, task: Task) -> bool:
        """Add a function; False: this run ends."""
        if not self._tasks.add(task):
            return False
        self._follow(task)
        self._answers.put(Woken())
        return True

    def begin(self) -> None:
        """Send the first functions, and drive the run from a thread of its own."""
        for task in self._tasks.tasks:
            self._follow(task)
        super().begin()
        threading.Thread(target=self._drive, name=THREAD, daemon=True).start()

    def _follow(self, task: Task) -> None:
        task.future.set_under_way(partial(self._cancel, task), partial(self._calls_of, task))

    def _cancel(self, task: Task) -> None:
        error = cancelled_error(f"{self._task_text(task)} was cancelled")
        task.future.end_failed(error)
        self._cancel_call(task)

    def _cancel_call(self, task: Task) -> None:
        call = self._calls.get(task.chunk)
        if call is not None:
            self._runtime.cancel(call)

    def _calls_of(self, task: Task) -> Sequence[int]:
        call = self._calls.get(task.chunk)
        return () if call is None else (call.number,)

    @property
    def _is_awaited(self) -> bool:
        return any(task.future.awaited for task in self._tasks.tasks)

    # --- on the thread that drives it -------------------------------------------------------------

    def _drive(self) -> None:
        error: Exception | None = None
        try:
            while not self.is_complete:
                self._step()
        except Exception as raised:
            error = raised
        self._tasks.close()
        for task in self._tasks.tasks:
            task.future.end_failed(error or RuntimeError("the run of this function has ended"))
        self.end(cancel=True)

    def _step(self) -> None:
        """Wait for results, and settle their futures."""
        results = [(self._tasks.done(at).future, value) for at, value in self.next_results()]
        try:
            for _ in results:
                self.on_yielded()
            self._feed(waiting=True)
            if self.is_complete:  # first, so that the main threads of the ranks are free again
                self.end(cancel=False)
        finally:
            for future, value in results:
                if isinstance(value, Failed):
                    future.end_failed(value.error)
                else:
                    future.end_with(value)

    def _patience(self) -> float | None:
        return None  # a new task wakes this thread

    def _send(self, chunk: Chunk) -> None:
        task = self._tasks[chunk.items[0]]
        task.chunk = chunk.number
        if task.future.done:
            self._answers.put(ChunkUnsent(chunk, cancelled_error("it was cancelled")))
            return
        task.context.run(super()._send, chunk)
        if task.future.done:  # it was cancelled meanwhile
            self._cancel_call(task)

    def _given(self, items: list[Any]) -> tuple[Any, ...]:
        return None, items[0].parcel

    def _reader_of(self, chunk: Chunk) -> Future[Any] | None:
        return self._tasks[chunk.items[0]].future

    def _function_of(self, chunk: Chunk) -> str:
        return self._tasks[chunk.items[0]].name

    def _on_unsent(self, unsent: ChunkUnsent) -> Sequence[Result]:
        return self._failed_alone(unsent.chunk, unsent.error)

    def _on_answered(self, answer: ChunkAnswered) -> Sequence[Result]:
        try:
            return super()._on_answered(answer)
        except ActorError as error:  # the call was cancelled
            return self._failed_alone(answer.chunk, error)

    def _failed_alone(self, chunk: Chunk, error: Exception) -> Sequence[Result]:
        self._schedule.on_done(chunk, 0.0)
        return [(chunk.items[0], Failed(error))]

    def _item_text(self, index: int) -> str:
        return short_text(self._tasks[index].text)

    def _call_text(self, index: int, item: str) -> str:
        return f"{self._tasks[index].name}({item})"

    def _task_text(self, task: Task) -> str:
        return f"{task.name}({short_text(task.text)})"


def submit(ranks: Ranks, task: Task, begin: Callable[[TaskStream], TaskRun]) -> None:
    """Add a task to the run on these ranks, or to one that `begin` makes. Any thread.

    Raises whatever `begin` raises; the task's future is not used then.
    """
    with _changing:
        run = _runs.get(ranks)
        if run is not None and run.add(task):
            return
        tasks = TaskStream()
        tasks.add(task)
        run = begin(tasks)
        try:
            run.begin()
        except BaseException:  # also an interrupt: its actors would stay, without a future
            run.end(cancel=True)
            raise
        for ended in [one for one, other in _runs.items() if other.is_complete]:
            del _runs[ended]
        _runs[ranks] = run


_runs: dict[Ranks, TaskRun] = {}
_changing = GuardedLock()


def _never(_item: object) -> Any:
    raise SupervisionError("each task has a function of its own")
