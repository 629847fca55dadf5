"""`mesh.submit` calls a function on the rank that is free first, and returns a future."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from monarch import frontend, observe
from monarch.actor import (
    Actor,
    ActorError,
    CallCancelled,
    ItemError,
    ItemLostError,
    MeshStoppedError,
    ProcMesh,
    SupervisionError,
    as_completed,
    endpoint,
    this_host,
)
from tests.integration import mapped
from tests.integration.gates import Gate, GateKeeper
from tests.integration.maps.test_maps_beside_the_caller import Unread, join_work, unread
from tests.integration.maps.test_names_on_ranks import Main

__all__ = ["unread"]


def scaled(x: float, *, by: float = 1.0) -> float:
    return x * by


def divide(x: float, y: float) -> float:
    return x / y


def pid_behind(gate: Gate) -> int:
    gate.pass_through()
    return mapped.pid(None)


# --- values ---------------------------------------------------------------------------------------


def test_a_function_is_called_with_its_arguments_on_one_rank(four: ProcMesh) -> None:
    future = four.submit(scaled, 3, by=2)
    assert future.get(60) == 6
    assert repr(future) == "<Future done: scaled on workers>"
    assert four.submit(lambda: 7).get(60) == 7
    assert four.submit(mapped.square_later, 3).get(60) == 9
    assert asyncio.run(awaited(four)) == [0, 1, 4]


async def awaited(mesh: ProcMesh) -> list[int]:
    return await asyncio.gather(*(mesh.submit(mapped.square, n) for n in range(3)))


def test_functions_spread_over_the_ranks_that_are_idle(four: ProcMesh, gate: GateKeeper) -> None:
    futures = [four.submit(pid_behind, gate.gate) for _ in range(4)]
    gate.wait_entered(4)  # though none of them has ended
    gate.open(4)
    assert len({future.get(60) for future in futures}) == 4
    one = four.slice(gpus=2)
    assert len({one.submit(mapped.pid, n).get(60) for n in range(3)}) == 1


def test_what_waits_goes_to_the_rank_that_is_free_first(four: ProcMesh, gate: GateKeeper) -> None:
    two = four.slice(gpus=slice(0, 2))
    held = [two.submit(mapped.pass_gate, (gate.gate, n)) for n in range(2)]
    gate.wait_entered(2)
    later = [two.submit(mapped.pid, n) for n in range(6)]
    gate.open()
    free = {future.get(60) for future in later}  # one rank runs all of them
    assert len(free) == 1
    assert sum(future.done for future in held) == 1
    gate.open()
    assert [future.get(60) for future in held] == [0, 1]


def test_futures_are_taken_as_they_are_done(four: ProcMesh, gate: GateKeeper) -> None:
    late = four.submit(mapped.pass_gate, (gate.gate, 1))
    gate.wait_entered()
    early = four.submit(mapped.square, 3)
    completed = as_completed([late, early], timeout=60)
    assert next(completed) is early
    gate.open()
    assert next(completed).get() == 1


def test_a_function_runs_once(four: ProcMesh, tmp_path: Path) -> None:
    counted = tmp_path / "counted"

    def count(number: int) -> None:
        with counted.open("a") as file:
            file.write(f"{number}\n")

    futures = [four.submit(count, number) for number in range(40)]
    assert [future.get(60) for future in futures] == [None] * 40
    assert sorted(map(int, counted.read_text().split())) == list(range(40))


def test_the_main_thread_is_free_for_the_next_actor(four: ProcMesh) -> None:
    for _ in range(20):
        assert four.submit(mapped.square, 2).get(60) == 4
        main = four.spawn("main", Main)
        assert all(main.is_on_main_thread.call().get().values())
        main.stop().get()


def test_large_arguments_and_values_arrive_whole(four: ProcMesh) -> None:
    import numpy

    large = numpy.full(1 << 18, 3)
    assert four.submit(mapped.total, large).get(60) == 3.0 * (1 << 18)
    assert int(four.submit(mapped.grow, 5).get(60)[-1]) == 5


class Submits(Actor):
    """Submits to a mesh of its own."""

    @endpoint
    def run(self) -> list[int]:
        with this_host().spawn_procs({"gpus": 2}) as mesh:
            futures = [mesh.submit(mapped.square, n) for n in range(8)]
            return [future.get(60) for future in futures]


def test_an_actor_submits_to_its_own_mesh(four: ProcMesh) -> None:
    submits = four.slice(gpus=0).spawn("submits", Submits)
    assert submits.run.call_one().get(60) == [n * n for n in range(8)]
    submits.stop().get()


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_names_the_function_with_its_arguments_and_the_others_go_on(
    four: ProcMesh,
) -> None:
    futures = [four.submit(divide, 1, y=y) for y in (4, 0, 2)]
    assert [futures[0].get(60), futures[2].get(60)] == [0.25, 0.5]
    with pytest.raises(ItemError, match=r"^divide\(1, y=0\) on workers\[gpus=\d\] raised ZeroDivi"):
        futures[1].get(60)
    error = futures[1].exception()
    assert isinstance(error, ItemError)
    assert isinstance(error.exception, ZeroDivisionError)


def test_what_cannot_be_submitted_is_refused_by_the_call(four: ProcMesh) -> None:
    with pytest.raises(TypeError, match=r"^submit: the first argument has to be a function"):
        four.submit(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^scaled: argument 'x' of type lock cannot be sent"):
        four.submit(scaled, threading.Lock())  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"^submit: the function <lambda>, a function, cannot be s"):
        four.submit(lambda: lock)
    assert frontend.work_under_way() == []


def test_a_value_that_cannot_come_back_is_an_error_of_its_function(four: ProcMesh) -> None:
    with pytest.raises(ItemError, match=r"lock"):
        four.submit(mapped.return_a_lock, 2).get(60)
    assert four.submit(mapped.return_a_lock, 1).get(60) == 1


def test_a_function_whose_rank_dies_is_run_on_another(tmp_path: Path) -> None:
    with this_host().spawn_procs({"gpus": 3}) as mesh:
        items = [(str(tmp_path), number) for number in range(12)]
        futures = [mesh.submit(mapped.kill_the_first, item) for item in items]
        assert [future.get(60) for future in futures] == list(range(12))
        assert mesh.submit(mapped.square, 3).get(60) == 9


def test_a_function_that_ends_every_rank_is_given_up_after_three() -> None:
    with this_host().spawn_procs({"gpus": 4}, name="workers") as mesh:
        with pytest.raises(ItemLostError, match=r"kill_always\(3\), so that item is not tried"):
            mesh.submit(mapped.kill_always, 3).get(60)
        assert mesh.submit(mapped.square, 3).get(60) == 9


def test_without_a_rank_left_every_future_fails() -> None:
    mesh = this_host().spawn_procs({"gpus": 1}, name="workers")
    futures = [mesh.submit(mapped.kill_always, n) for n in range(3)]
    for future in futures:
        with pytest.raises(SupervisionError, match=r"no rank of workers is left for the submitted"):
            future.get(60)
    with pytest.raises(SupervisionError, match=r"the submit has not begun: spawn others"):
        mesh.submit(mapped.square, 3)
    mesh.stop().get(60)
    with pytest.raises(MeshStoppedError):
        mesh.submit(mapped.square, 3)


# --- its end --------------------------------------------------------------------------------------


def test_a_cancelled_function_ends_and_one_that_waits_is_not_begun(
    four: ProcMesh, gate: GateKeeper, tmp_path: Path
) -> None:
    one = four.slice(gpus=0)
    running = one.submit(mapped.pass_gate, (gate.gate, 1))
    gate.wait_entered()
    waiting = one.submit(mapped.note_begin, (str(tmp_path), 1))
    assert waiting.cancel()
    assert running.cancel()
    for future in (running, waiting):
        with pytest.raises(ActorError, match=r"was cancelled$") as raised:
            future.get(60)
        assert isinstance(raised.value.exception, CallCancelled)
        assert future.cancelled
        assert not future.cancel()
    assert one.submit(mapped.square, 3).get(60) == 9
    assert not (tmp_path / "1").exists()
    join_work()
    assert (observe.open_maps(), observe.open_calls(), four.actor_names) == ([], [], ())


def test_functions_end_with_their_mesh(gate: GateKeeper) -> None:
    mesh = this_host().spawn_procs({"gpus": 2})
    futures = [mesh.submit(mapped.pass_gate, (gate.gate, number)) for number in range(5)]
    gate.wait_entered(2)
    mesh.stop().get(60)
    assert all(future.cancelled for future in futures)
    join_work()
    assert frontend.work_under_way() == []


# --- unread errors --------------------------------------------------------------------------------


def test_the_error_of_a_function_whose_future_is_dropped_is_reported(
    four: ProcMesh, unread: Unread
) -> None:
    four.submit(divide, 1, 0)
    (failure,) = unread().failures
    assert failure.actor_class == "divide(1, 0)"
