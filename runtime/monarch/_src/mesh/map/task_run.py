"""Drives submitted functions: each goes to the rank that is free first.

Runs in: the calling process. The functions that are submitted to the same ranks, until none is
left, are one run, with a thread of its own and actors of its own on these ranks.
Owns: the runs of this process, by the ranks of a mesh; the thread of each.
Invariants: a rank has one function at a time. Each future is done when the run has ended, whatever
ended it. A future that was cancelled is done at once, and its function is not sent any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.work import THREAD, cancelled_error
from monarch._src.errors import ActorError, SupervisionError
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.map.arguments import MapArguments
from monarch._src.mesh.map.calls import ChunkAnswered, ChunkUnsent, Woken
from monarch._src.mesh.map.driver import Failed, MapRun, Result, short_text
from monarch._src.mesh.map.state.schedule import Chunk
from monarch._src.mesh.map.tasks import Task, TaskStream
from monarch._src.net.local.interrupt import GuardedLock

Ranks: TypeAlias = "tuple[int, tuple[int, ...]]"
"""The uid of the procs, and the ranks of the mesh or slice."""


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
