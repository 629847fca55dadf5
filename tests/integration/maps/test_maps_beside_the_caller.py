"""`map_async` gives what `map` gives, while the caller does something else; its future ends it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch import frontend, observe
from monarch._src.actor.work import THREAD
from monarch.actor import (
    Actor,
    ActorError,
    CallCancelled,
    ItemError,
    ItemLostError,
    ProcMesh,
    as_completed,
    endpoint,
    this_host,
)
from monarch.observe import UnreadError
from tests.integration import mapped
from tests.integration.gates import Gate, GateKeeper

Unread = Callable[[], UnreadError]


@pytest.fixture
def unread() -> Iterator[Unread]:
    found: queue.SimpleQueue[UnreadError] = queue.SimpleQueue()
    observe.on_unread_error(found.put)
    yield lambda: found.get(timeout=60)
    observe.on_unread_error(None)
    assert found.empty()


def join_work() -> None:
    """Return when the threads that drive work have ended."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(60)


# --- results --------------------------------------------------------------------------------------


def test_the_caller_goes_on_while_items_run(four: ProcMesh, gate: GateKeeper) -> None:
    future = four.map_async(mapped.pass_gate, [(gate.gate, number) for number in range(12)])
    assert not future.done
    gate.wait_entered(4)
    gate.open(8)
    gate.wait_entered(8)  # further items are handed out while this thread waits at the gate
    assert repr(future).startswith("<Future pending: map of pass_gate on workers, ")
    gate.open(4)
    assert future.get(60) == list(range(12))
    assert repr(future) == "<Future done: map of pass_gate on workers>"


def test_values_and_errors_are_those_of_map(four: ProcMesh) -> None:
    assert four.map_async(mapped.square, range(1000)).get(60) == [n * n for n in range(1000)]
    assert four.map_async(mapped.square, []).get(0) == []
    results = four.map_async(mapped.raise_on_sevens, range(10), on_error="collect").get(60)
    assert isinstance(results[7], ItemError)
    with pytest.raises(ItemError) as raised:
        four.map_async(mapped.raise_on_sevens, [1, 7]).get(60)
    assert (raised.value.index, type(raised.value.exception)) == (1, ValueError)
    with pytest.raises(TimeoutError, match=r"^map: 0 of 4 items are done within 0.1 s; the others"):
        four.map_async(mapped.pid_after, [600.0] * 4, timeout=0.1).get(60)


def test_bad_arguments_are_refused_by_the_call(four: ProcMesh) -> None:
    with pytest.raises(ValueError, match=r"^map_async: chunk_size=0: a chunk has at least"):
        four.map_async(mapped.square, [1], chunk_size=0)
    with pytest.raises(TypeError, match=r"^map_async: item 1, a lock, cannot be sent to another"):
        four.map_async(str, [1, threading.Lock()])
    assert frontend.work_under_way() == []


def test_several_iterables_give_an_item_each_up_to_the_end_of_the_shortest(four: ProcMesh) -> None:
    bases, exponents = [2, 3, 4], itertools.repeat(2)
    assert four.map(pow, bases, exponents) == [4, 9, 16]
    assert four.map_async(pow, bases, [1, 2]).get(60) == [2, 9]
    assert list(four.imap(pow, itertools.count(), [1, 1])) == [0, 1]
    assert sorted(four.imap_unordered(pow, bases, exponents)) == [4, 9, 16]
    with pytest.raises(ItemError) as raised:
        four.map(lambda x, y: x / y, [1, 1], [1, 0])
    (failure,) = raised.value.failures
    assert failure.actor_class == "<lambda>(item 1: (1, 0))"


def test_a_function_and_its_variables_are_taken_by_the_call(
    four: ProcMesh, gate: GateKeeper
) -> None:
    factor = 2
    items = [1, 2, 3]

    def scaled(item: int) -> int:
        gate_of_all.pass_through()
        return factor * item

    gate_of_all = gate.gate
    future = four.slice(gpus=0).map_async(scaled, items, chunk_size=1)
    gate.wait_entered()
    factor = 10
    items.clear()
    gate.open(3)
    assert future.get(60) == [2, 4, 6]
    gate.wait_entered(2)


def test_futures_of_maps_and_of_calls_are_taken_as_they_are_done(
    four: ProcMesh, gate: GateKeeper
) -> None:
    late = four.map_async(mapped.pass_gate, [(gate.gate, 1)])
    early = four.slice(gpus=3).map_async(mapped.square, [3])
    gate.wait_entered()
    completed = as_completed([late, early], timeout=60)
    assert next(completed).get() == [9]
    gate.open()
    assert next(completed).get() == [1]


def test_a_coroutine_awaits_several_maps(four: ProcMesh) -> None:
    async def main() -> list[list[int]]:
        maps = [four.map_async(mapped.square, range(n)) for n in range(1, 5)]
        return await asyncio.gather(*maps)

    assert asyncio.run(main()) == [[k * k for k in range(n)] for n in range(1, 5)]


class MapsBeside(Actor):
    """Maps over a mesh of its own while it does something else."""

    @endpoint
    def block(self, gate: Gate) -> list[list[int]]:
        with this_host().spawn_procs({"gpus": 2}) as mesh:
            future = mesh.map_async(mapped.pass_gate, [(gate, n) for n in range(4)])
            first = mesh.map(mapped.square, range(4))
            return [first, future.get(60)]


class AwaitsMaps(Actor):
    """Awaits a map over a mesh of its own."""

    @endpoint
    async def run(self) -> list[list[int]]:
        mesh = this_host().spawn_procs({"gpus": 2})
        maps = [mesh.map_async(mapped.square, range(4)) for _ in range(3)]
        values = [await future async for future in as_completed(maps)]
        await mesh.stop()
        return values


def test_endpoints_map_beside_their_own_work(four: ProcMesh, gate: GateKeeper) -> None:
    one = four.slice(gpus=0)
    blocks, awaits = one.spawn("blocks", MapsBeside), one.spawn("awaits", AwaitsMaps)
    future = blocks.block.call_one(gate.gate)
    gate.wait_entered(2)
    gate.open(4)
    assert future.get(60) == [[0, 1, 4, 9], [0, 1, 2, 3]]
    gate.wait_entered(2)
    assert awaits.run.call_one().get(60) == [[0, 1, 4, 9]] * 3
    blocks.stop().get()
    awaits.stop().get()


# --- its end --------------------------------------------------------------------------------------


def test_a_cancelled_map_ends_what_runs_and_says_how_far_it_came(
    four: ProcMesh, gate: GateKeeper
) -> None:
    future = four.map_async(mapped.pass_gate, [(gate.gate, number) for number in range(50)])
    gate.wait_entered(4)
    assert len(future.calls) >= 4
    assert future.cancel()
    with pytest.raises(ActorError) as raised:
        future.get(60)
    assert str(raised.value) == (
        "the map of pass_gate on workers was cancelled; 0 of 50 items are done"
    )
    assert isinstance(raised.value.exception, CallCancelled)
    assert future.cancelled
    assert not future.cancel()
    join_work()
    assert (observe.open_maps(), frontend.work_under_way(), four.actor_names) == ([], [], ())
    assert four.map(mapped.square, range(8)) == [n * n for n in range(8)]


def test_a_map_that_is_done_cannot_be_cancelled(four: ProcMesh) -> None:
    future = four.map_async(mapped.square, [3])
    assert future.get(60) == [9]
    assert (future.cancel(), future.cancelled, future.get()) == (False, False, [9])


def test_a_map_goes_on_without_its_future(four: ProcMesh, tmp_path: Path) -> None:
    four.map_async(mapped.note_begin, [(str(tmp_path), number) for number in range(1, 9)])
    join_work()
    assert {path.name for path in tmp_path.iterdir()} == {str(number) for number in range(1, 9)}


def test_a_map_ends_with_its_mesh(gate: GateKeeper) -> None:
    mesh = this_host().spawn_procs({"gpus": 2})
    future = mesh.map_async(mapped.pass_gate, [(gate.gate, number) for number in range(9)])
    gate.wait_entered(2)
    mesh.stop()
    with pytest.raises(ActorError, match=r"was cancelled; 0 of 9 items are done$"):
        future.get(60)
    mesh.stop().get(60)
    assert observe.open_calls() == []
    join_work()
    assert frontend.work_under_way() == []


PROGRAM = """
import threading
from monarch import frontend
from monarch.actor import shutdown_context, this_host
from tests.integration import mapped

mesh = this_host().spawn_procs({"gpus": 2})
future = mesh.map_async(mapped.pid_after, [600.0] * 9)
shutdown_context()
for thread in threading.enumerate():
    if thread.name == "monarch-work":
        thread.join()
print(future.done, frontend.work_under_way())
"""


def test_a_map_ends_with_the_session(run_python: Callable[..., str]) -> None:
    assert run_python(PROGRAM) == "True []\n"


def test_the_items_of_a_rank_that_dies_are_run_on_others(tmp_path: Path) -> None:
    with this_host().spawn_procs({"gpus": 3}) as mesh:
        items = [(str(tmp_path), number) for number in range(20)]
        assert mesh.map_async(mapped.kill_the_first, items).get(60) == list(range(20))


# --- unread errors --------------------------------------------------------------------------------


def test_the_error_of_a_map_whose_future_is_dropped_is_reported(
    four: ProcMesh, unread: Unread
) -> None:
    four.map_async(mapped.raise_on_sevens, [1, 7])
    (failure,) = unread().failures
    assert failure.actor_class == "raise_on_sevens(item 1: 7)"
    four.map_async(mapped.pid_after, [600.0], timeout=0.1)
    assert unread().text.startswith("TimeoutError: map: 0 of 1 items are done within 0.1 s")


def test_deaths_that_a_map_keeps_from_the_owner_are_reported(unread: Unread) -> None:
    with this_host().spawn_procs({"gpus": 4}, name="workers") as mesh:
        mesh.map_async(mapped.kill_on_three, range(5))
        found = unread()
        assert found.text.startswith(f"{ItemLostError.__name__}: ")
        assert "kill_on_three(item 3: 3)" in found.text


def test_a_read_error_and_a_cancelled_map_are_not_reported(
    four: ProcMesh, unread: Unread, gate: GateKeeper
) -> None:
    future: Any = four.map_async(mapped.raise_on_sevens, [7])
    assert isinstance(future.exception(60), ItemError)
    cancelled = four.map_async(mapped.pass_gate, [(gate.gate, 1)])
    gate.wait_entered()
    cancelled.cancel()
    join_work()
    assert cancelled.done
    del future, cancelled
    gc.collect()
