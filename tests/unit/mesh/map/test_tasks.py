"""Tasks wait in order, and a stream that has none left takes no further one."""

from __future__ import annotations

from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

from monarch._src.mesh.map.tasks import Task, TaskStream


def task(*args: Any, **kwargs: Any) -> Task:
    future: Any = SimpleNamespace(context=copy_context)
    return Task(future, max, args, kwargs)


def test_tasks_are_taken_in_the_order_in_which_they_were_added() -> None:
    stream, tasks = TaskStream(), [task(n) for n in range(3)]
    assert all(stream.add(one) for one in tasks)
    assert (stream.take(2), len(stream), stream.at_end) == (2, 2, False)
    assert [stream[0], stream[1]] == tasks[:2]
    assert stream.tasks == tasks
    assert stream.done(0) is tasks[0]
    assert stream.tasks == tasks[1:]


def test_a_stream_ends_when_its_last_task_is_done_and_then_refuses_others() -> None:
    stream = TaskStream()
    stream.add(task(1))
    stream.take(5)
    assert (stream.take(5), stream.at_end) == (0, False)
    stream.done(0)
    assert stream.add(task(2))  # in time
    assert (stream.take(5), stream.at_end) == (1, False)
    stream.done(1)
    assert (stream.take(5), stream.at_end) == (0, True)
    assert not stream.add(task(3))


def test_a_closed_stream_keeps_what_is_not_done() -> None:
    stream, last = TaskStream(), task(1)
    stream.add(last)
    stream.close()
    assert not stream.add(task(2))
    assert stream.tasks == [last]


def test_a_task_is_named_as_the_program_wrote_it() -> None:
    found = task(3, "x", default=[1])
    assert (found.name, found.text) == ("max", "3, 'x', default=[1]")
