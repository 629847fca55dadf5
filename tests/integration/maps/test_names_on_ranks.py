"""`push`, `scatter` and `pull`: values in the `__main__` of ranks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from monarch.actor import Actor, ActorError, ProcMesh, SupervisionError, endpoint, this_host
from monarch.observe import payload_counts


class Main(Actor):
    """Reads and binds names of `__main__`, as a cell does."""

    @endpoint
    def names(self) -> list[str]:
        return sorted(n for n in vars(sys.modules["__main__"]) if not n.startswith("_"))

    @endpoint
    def bind(self, name: str) -> None:
        vars(sys.modules["__main__"])[name] = (n for n in range(3))

    @endpoint
    def is_on_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    @endpoint
    def die(self) -> None:
        import os

        os._exit(1)


@pytest.fixture
def workers() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 4}, name="workers")
    yield mesh
    mesh.stop().get(timeout=60)


def names(mesh: ProcMesh) -> list[list[str]]:
    main = mesh.spawn("main", Main)
    found = list(main.names.call().get().values())
    main.stop().get()
    return found


def test_a_value_that_is_pushed_is_there_under_its_name(workers: ProcMesh) -> None:
    workers.push(x=3, text="abc")
    assert list(workers.pull("x").values()) == [3] * 4
    assert names(workers) == [["text", "x"]] * 4


def test_values_come_back_with_the_points_of_their_ranks(workers: ProcMesh) -> None:
    for rank in range(4):
        workers.slice(gpus=rank).push(x=10 * rank)
    assert workers.pull("x").item(gpus=2) == 20
    assert list(workers.slice(gpus=slice(1, 3)).pull("x").values()) == [10, 20]
    assert workers.slice(gpus=3).pull("x").item() == 30


def test_a_scattered_value_is_cut_in_the_order_of_ranks_and_joined_again(workers: ProcMesh) -> None:
    batch = numpy.arange(16.0).reshape(8, 2)
    workers.scatter(batch=batch, labels=list("abcdefgh"))
    assert [found.tolist() for found in workers.pull("batch").values()] == [
        batch[at : at + 2].tolist() for at in (0, 2, 4, 6)
    ]
    assert workers.pull("batch", join=True).tolist() == batch.tolist()
    assert workers.pull("labels", join=True) == list("abcdefgh")


def test_a_scatter_goes_over_the_ranks_of_a_slice(workers: ProcMesh) -> None:
    workers.slice(gpus=slice(2, 4)).scatter(part=[1, 2, 3, 4])
    assert names(workers) == [[], [], ["part"], ["part"]]


def test_a_large_value_lies_in_shared_memory_once(workers: ProcMesh) -> None:
    workers.push(warm=1)
    before = payload_counts()
    workers.push(large=numpy.ones(1 << 20))
    after = payload_counts()
    assert after.segments - before.segments == 1
    assert [float(found.sum()) for found in workers.pull("large").values()] == [1 << 20] * 4


def test_the_main_thread_is_free_for_the_next_actor(workers: ProcMesh) -> None:
    """Though the end of the one before is told before its thread has left it."""
    for _ in range(20):
        workers.push(x=1)
        workers.pull("x")
        main = workers.spawn("main", Main)
        assert all(main.is_on_main_thread.call().get().values())
        main.stop().get()


def test_a_mapped_function_uses_what_was_pushed(workers: ProcMesh) -> None:
    workers.push(offset=100)
    program = "def add(item):\n    return offset + item\n"
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(program, scope)
    assert workers.map(scope["add"], [1, 2]) == [101, 102]


WRAPPED = """
import contextlib, functools
def decorated(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
@decorated
def under_a_decorator(item): return offset + item
@functools.lru_cache
def cached(item): return offset + item
@functools.singledispatch
def dispatched(item): return offset + item
class Adds:
    def __init__(self, item): self.item = offset + item
    @staticmethod
    def static(item): return Adds(item).item
    @property
    def sum(self): return offset
    @classmethod
    def by_property(cls, item): return cls(0).sum + item
@contextlib.contextmanager
def managed(item): yield offset + item
def with_managed(item):
    with managed(item) as found: return found
static, by_property, partial = Adds.static, Adds.by_property, functools.partial(cached)
def uses_functools(item):
    made = functools.singledispatch(lambda item: "other")
    made.register(int)(lambda item: "int")
    return made(item)
"""


def test_pushed_names_reach_wrapped_functions_and_change_no_library(workers: ProcMesh) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(WRAPPED, scope)
    names = ["under_a_decorator", "cached", "dispatched", "with_managed", "static", "by_property",
             "partial"]  # fmt: skip
    workers.push(offset=100, type="resnet")
    found = {name: workers.map(scope[name], [1, 2]) for name in names}
    assert found == {name: [101, 102] for name in names}
    workers.push(offset=200)
    found = {name: workers.map(scope[name], [1, 2]) for name in names}
    assert found == {name: [201, 202] for name in names}
    assert workers.map(scope["uses_functools"], [1] * 8) == ["int"] * 8


# --- bad input ------------------------------------------------------------------------------------


def one_line(call: Callable[[], object], kind: type[Exception]) -> str:
    with pytest.raises(kind) as raised:
        call()
    text = str(raised.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("rows", "sizes", "text"),
    [
        (10, [3, 3, 2, 2], "10 rows for 4 ranks of workers: 3 on gpus=0..1, and 2 on gpus=2..3"),
        (3, [1, 1, 1, 0], "3 rows for 4 ranks of workers: 1 on gpus=0..2, and none on gpus=3"),
    ],
)
def test_rows_that_do_not_divide_are_shared_and_the_shares_are_said(
    workers: ProcMesh,
    caplog: pytest.LogCaptureFixture,
    rows: int,
    sizes: list[int],
    text: str,
) -> None:
    value = list(range(rows))
    workers.scatter(even=[1, 2, 3, 4], batch=value)
    assert [len(part) for part in workers.pull("batch").values()] == sizes
    assert workers.pull("batch", join=True) == value
    (record,) = caplog.records
    assert record.getMessage() == f"scatter: batch has {text}"


def test_a_value_that_cannot_be_pickled_is_named_and_nothing_is_bound(workers: ProcMesh) -> None:
    lock = threading.Lock()
    text = one_line(lambda: workers.push(x=1, lock=lock), TypeError)
    assert text.startswith("push: lock, a lock, cannot be sent to another process: ")
    text = one_line(lambda: workers.scatter(x=[1, 2, 3, [lock]]), TypeError)
    assert text.startswith(
        "scatter: x, a list, cannot be sent to another process, because of it[3][0], a lock: "
    )
    assert names(workers) == [[]] * 4


def test_a_name_that_ranks_lack_is_told(workers: ProcMesh) -> None:
    workers.push(losses=1)
    workers.slice(gpus=1).push(only=1)
    assert one_line(lambda: workers.pull("loss"), NameError) == (
        "pull: no rank of workers has a name 'loss'; did you mean 'losses'?"
    )
    assert one_line(lambda: workers.slice(gpus=2).pull("zzz"), NameError) == (
        "pull: no rank of workers[gpus=2] has a name 'zzz'; a cell on the ranks, or push, binds one"
    )
    assert one_line(lambda: workers.pull("only"), NameError) == (
        "pull: gpus=0, gpus=2..3 of workers have no name 'only'; pull it from a slice"
    )
    assert one_line(lambda: workers.pull(3), TypeError) == (  # pyright: ignore[reportArgumentType]
        'pull: give a name, such as "loss"; 3 is none'
    )


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({}, TypeError, "push: give at least one value, as in push(x=x)"),
        ({"a b": 1}, ValueError, "push: 'a b' cannot be the name of a variable"),
        ({"class": 1}, ValueError, "push: 'class' cannot be the name of a variable"),
        ({"rank": 1}, ValueError, "push: each rank has a 'rank' of its own; choose another name"),
        ({"__name__": 1}, ValueError,
         "push: each rank has a '__name__' of its own; choose another name"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_bound_are_refused(
    workers: ProcMesh, values: dict[str, Any], kind: type[Exception], text: str
) -> None:
    assert one_line(lambda: workers.push(**values), kind) == text


def test_a_value_that_cannot_leave_its_rank_is_named_with_the_rank(workers: ProcMesh) -> None:
    main = workers.spawn("main", Main)
    main.slice(gpus=3).bind.call_one("loss").get()
    with pytest.raises(ActorError, match=r"workers\[gpus=3\] raised TypeError: pull: loss, a ge"):
        workers.slice(gpus=3).pull("loss")
    assert workers.actor_names == ("main",)


@pytest.mark.usefixtures("faults")
def test_a_dead_rank_is_named_and_a_slice_without_it_works(workers: ProcMesh) -> None:
    main = workers.spawn("main", Main)
    with pytest.raises(SupervisionError):
        main.slice(gpus=0).die.call_one().get()
    main.stop().get()
    with pytest.raises(SupervisionError, match=r"workers\[gpus=0\]"):
        workers.push(x=1)
    left = workers.slice(gpus=slice(1, 4))
    left.push(x=1)
    assert list(left.pull("x").values()) == [1, 1, 1]
