"""`mesh.map` runs each item once on some rank, gives results in order, and outlives deaths."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

from monarch import frontend, observe
from monarch._src.mesh.map.results import ENDING
from monarch._src.mesh.map.state.schedule import LONGEST_S
from monarch.actor import (
    Actor,
    CallCancelled,
    ItemError,
    ItemLostError,
    ProcMesh,
    SupervisionError,
    endpoint,
    this_host,
)
from tests.integration import mapped
from tests.integration.gates import GateKeeper

Spawn = Callable[..., ProcMesh]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    meshes: list[ProcMesh] = []

    def spawned(ranks: int, **options: Any) -> ProcMesh:
        meshes.append(this_host().spawn_procs({"gpus": ranks}, name="workers", **options))
        return meshes[-1]

    yield spawned
    for mesh in meshes:
        mesh.stop().get(timeout=60)


# --- results --------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_items(four: ProcMesh) -> None:
    assert four.map(mapped.square, range(1000)) == [n * n for n in range(1000)]


def test_every_rank_takes_part_and_of_a_slice_only_its_ranks(four: ProcMesh) -> None:
    assert len(set(four.map(mapped.pid, range(200), chunk_size=1))) == 4
    assert len(set(four.slice(gpus=slice(1, 3)).map(mapped.pid, range(200), chunk_size=1))) == 2
    assert len(set(four.slice(gpus=3).map(mapped.pid, range(20)))) == 1


def test_a_rank_that_is_held_up_holds_up_no_other(four: ProcMesh, gate: GateKeeper) -> None:
    found: list[list[int]] = []
    items = [(gate.gate, number) for number in range(8)]
    thread = threading.Thread(
        target=lambda: found.append(four.map(mapped.pass_gate, items, chunk_size=1))
    )
    thread.start()
    gate.wait_entered(4)
    gate.open(1)
    gate.wait_entered(1)  # the rank that was let through has the next item
    gate.open(7)
    gate.wait_entered(3)
    thread.join()
    assert found == [list(range(8))]


def test_long_items_in_one_chunk_are_shared_out_again(four: ProcMesh) -> None:
    items = [0.0] * 600 + [4 * LONGEST_S] * 4 + [0.0] * 600
    found = four.map(mapped.pid_after, items)
    assert len(found) == len(items)
    assert len(set(found[600:604])) > 1


def test_a_function_may_be_a_closure_a_partial_a_method_or_async(four: ProcMesh) -> None:
    offset = 7
    assert four.map(lambda item: item + offset, [1, 2]) == [8, 9]
    assert four.map(partial(pow, 2), [3, 4]) == [8, 16]
    assert four.map("abc".__contains__, ["a", "x"]) == [True, False]
    assert four.map(mapped.square_later, [3]) == [9]


def test_large_items_and_results_arrive_whole(four: ProcMesh) -> None:
    large = [numpy.full(1 << 18, number) for number in range(6)]
    assert four.map(mapped.total, large) == [float(number << 18) for number in range(6)]
    assert [int(found[-1]) for found in four.map(mapped.grow, range(6))] == list(range(6))


def test_no_items_have_no_results_and_are_told_to_no_rank(four: ProcMesh) -> None:
    before = frontend.newest_call()
    assert four.map(mapped.square, []) == []
    assert list(four.imap_unordered(mapped.square, iter(()))) == []
    assert frontend.newest_call() == before + 1


def test_a_map_leaves_no_actor_and_no_call_behind(four: ProcMesh) -> None:
    four.map(mapped.square, range(100))
    assert four.actor_names == ()
    assert observe.open_calls() == []
    assert observe.open_maps() == []


def test_results_can_be_taken_as_they_arrive(four: ProcMesh, gate: GateKeeper) -> None:
    results = four.imap_unordered(
        mapped.pass_gate, [(gate.gate, number) for number in range(4)], chunk_size=1
    )
    gate.wait_entered(4)
    gate.open(1)
    first = next(results)
    gate.open(3)
    assert sorted([first, *results]) == [0, 1, 2, 3]


@pytest.mark.parametrize("chunk_size", [1, 3, None])
def test_no_item_waits_behind_a_long_one_while_a_rank_is_idle(
    four: ProcMesh, gate: GateKeeper, chunk_size: int | None
) -> None:
    alone = chunk_size or 1  # items that are in the chunk of the first one
    results = four.imap_unordered(
        mapped.pass_gate_at_zero, [(gate.gate, n) for n in range(60)],
        chunk_size=chunk_size, timeout=60,
    )  # fmt: skip
    others = sorted(next(results) for _ in range(60 - alone))
    assert others == list(range(alone, 60))
    gate.open()
    assert sorted(results) == list(range(alone))


def test_an_iterator_that_is_dropped_ends_its_map(four: ProcMesh, gate: GateKeeper) -> None:
    results = four.imap_unordered(mapped.pass_gate, [(gate.gate, n) for n in range(50)])
    gate.wait_entered(4)
    (running,) = observe.open_maps()
    assert (running.function, running.done, running.total) == ("pass_gate", 0, 50)
    del results
    for thread in threading.enumerate():
        if thread.name == ENDING:
            thread.join()
    assert observe.open_maps() == []
    assert four.actor_names == ()


# --- errors ---------------------------------------------------------------------------------------


def test_the_error_of_an_item_names_the_item_and_the_rank(four: ProcMesh) -> None:
    with pytest.raises(ItemError) as raised:
        four.map(mapped.raise_on_sevens, range(5, 9), chunk_size=1)
    error = raised.value
    assert (error.index, error.item) == (2, "7")
    assert isinstance(error.exception, ValueError)
    (failure,) = error.failures
    first, *rest = str(error).splitlines()
    assert first == (
        f"raise_on_sevens(item 2: 7) on workers[gpus={failure.rank}] raised ValueError: "
        "7 is not for me"
    )
    assert "mapped.py" in rest[0]
    assert not any("_src" in line for line in rest)


def test_a_long_item_is_named_by_a_short_text(four: ProcMesh) -> None:
    with pytest.raises(ItemError) as raised:
        four.map(int, ["x" * 5000])
    assert raised.value.item == "'" + "x" * 56 + "..."


def test_an_error_ends_the_map_with_most_items_undone(four: ProcMesh, tmp_path: Path) -> None:
    items = [(str(tmp_path), number) for number in range(2000)]
    with pytest.raises(ItemError, match="the first item"):
        four.map(mapped.note_begin, items, chunk_size=1)
    assert four.map(mapped.square, [1]) == [1]
    assert len(list(tmp_path.iterdir())) < 2000


def test_errors_can_be_collected_in_the_places_of_the_values(four: ProcMesh) -> None:
    results = four.map(mapped.raise_on_sevens, range(20), on_error="collect", chunk_size=5)
    errors = {at: found for at, found in enumerate(results) if isinstance(found, ItemError)}
    assert {at: error.index for at, error in errors.items()} == {7: 7, 17: 17}
    assert [found for found in results if not isinstance(found, ItemError)] == [
        number for number in range(20) if number % 10 != 7
    ]
    kinds = [
        type(found)
        for found in four.imap_unordered(mapped.raise_on_sevens, [6, 7, 8], on_error="collect")
    ]
    assert sorted(kind.__name__ for kind in kinds) == ["ItemError", "int", "int"]


def test_an_item_error_survives_pickling() -> None:
    import pickle

    error = ItemError(ValueError("a"), "text", (), 3, "'x'")
    again = pickle.loads(pickle.dumps(error))
    assert (again.index, again.item, str(again)) == (3, "'x'", "text")
    lost = pickle.loads(pickle.dumps(ItemLostError("text", (), "remedy", 4, "'y'")))
    assert (lost.index, lost.item, lost.remedy) == (4, "'y'", "remedy")


def test_a_function_that_exits_is_an_error_of_its_item(four: ProcMesh) -> None:
    (error,) = four.map(mapped.leave, [3], on_error="collect")
    assert "RuntimeError: the function asked its rank to exit (3)" in str(error)


def test_a_value_that_cannot_be_pickled_is_an_error_of_its_item(four: ProcMesh) -> None:
    results = four.map(mapped.return_a_lock, range(4), on_error="collect", chunk_size=4)
    assert [results[0], results[1], results[3]] == [0, 1, 3]
    assert "return_a_lock(item 2: 2)" in str(results[2])
    assert "the value that it returned, a lock, cannot be sent" in str(results[2])


def test_a_map_out_of_time_cancels_what_runs(four: ProcMesh) -> None:
    with pytest.raises(TimeoutError) as raised:
        four.map(mapped.wait_for_ever, range(6), timeout=0.05)
    assert str(raised.value) == (
        "map: 0 of 6 items are done within 0.05 s; the others have been cancelled"
    )
    assert four.map(mapped.square, [2]) == [4]


@pytest.mark.parametrize(
    "kind",
    [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, mapped.Skipped, CallCancelled],
)
def test_every_exception_of_a_function_is_the_error_of_its_item(
    four: ProcMesh, kind: type[BaseException]
) -> None:
    items = [(kind, number) for number in range(6)]
    pids = set(four.map(mapped.pid, range(100), chunk_size=1))
    results = four.map(mapped.raise_on_two, items, on_error="collect", chunk_size=3)
    error = results.pop(2)
    assert results == [0, 1, 3, 4, 5]
    assert isinstance(error, ItemError)
    assert (error.index, type(error.exception)) == (2, kind)
    assert f"raised {kind.__name__}: of item 2" in str(error)
    with pytest.raises(ItemError) as raised:
        four.map(mapped.raise_on_two, items)
    assert raised.value.index == 2
    assert set(four.map(mapped.pid, range(100), chunk_size=1)) == pids


def test_a_task_that_an_async_function_cancels_is_an_error_of_its_item(four: ProcMesh) -> None:
    mesh = four.slice(gpus=0)
    results = mesh.map(mapped.await_what_is_cancelled, range(6), on_error="collect", chunk_size=6)
    error = results.pop(2)
    assert results == [0, 1, 3, 4, 5]
    assert isinstance(error, ItemError)
    assert isinstance(error.exception, asyncio.CancelledError)


def test_a_cancelled_map_ends_also_where_the_function_changes_the_error(
    four: ProcMesh, gate: GateKeeper, tmp_path: Path
) -> None:
    mesh, marks = four.slice(gpus=0), tmp_path / "marks"
    marks.mkdir()
    items = [(gate.gate, number, marks) for number in range(50)]
    results = mesh.imap_unordered(
        mapped.pass_gate_and_change_the_error, items, on_error="collect", chunk_size=50
    )
    gate.wait_entered()
    results.close()
    assert mesh.map(mapped.square, [3]) == [9]
    assert [path.name for path in marks.iterdir()] == ["0"]


# --- items and values that cannot be rebuilt ------------------------------------------------------


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt, SystemExit, mapped.Skipped])
def test_an_item_that_cannot_be_rebuilt_is_an_error_of_that_item(
    four: ProcMesh, tmp_path: Path, kind: type[BaseException]
) -> None:
    items: list[Any] = [(tmp_path, number, number) for number in range(9)]
    items[4] = (tmp_path, 4, mapped.Stays(kind))
    results = four.map(mapped.count_and_return, items, on_error="collect", chunk_size=9)
    error = results.pop(4)
    assert results == [0, 1, 2, 3, 5, 6, 7, 8]
    assert isinstance(error, ItemError)
    assert (error.index, error.failures[0].rank in range(4)) == (4, True)
    assert "cannot be rebuilt on this rank: " in str(error)
    assert f"{kind.__name__}: far from home" in str(error)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        str(number): "." for number in range(9) if number != 4
    }
    with pytest.raises(ItemError) as raised:
        four.map(mapped.count_and_return, items, chunk_size=9)
    assert raised.value.index == 4


def test_a_value_that_cannot_be_rebuilt_is_an_error_of_its_item_and_no_item_is_run_again(
    four: ProcMesh, tmp_path: Path
) -> None:
    items = [(tmp_path, number, mapped.Stays) for number in range(9)]
    results = four.map(mapped.make_on_two, items, on_error="collect", chunk_size=9)
    error = results.pop(2)
    assert results == [0, 1, 3, 4, 5, 6, 7, 8]
    assert isinstance(error, ItemError)
    assert (error.index, type(error.exception)) == (2, TypeError)
    first = str(error).splitlines()[0]
    assert first.startswith("make_on_two(item 2: ")
    assert "raised TypeError: the value that it returned, which holds " in first
    assert "cannot be rebuilt in this process: LookupError: far from home" in first
    assert {path.read_text() for path in tmp_path.iterdir()} == {"."}
    with pytest.raises(ItemError) as raised:
        four.map(mapped.make_on_two, items, chunk_size=9)
    assert raised.value.index == 2


def test_an_item_that_can_no_longer_be_pickled_is_an_error_of_that_item(four: ProcMesh) -> None:
    items = [1, mapped.Once(1), 3]
    results = four.map(mapped.same, items, on_error="collect", chunk_size=3)
    error = results.pop(1)
    assert results == [1, 3]
    assert isinstance(error, ItemError)
    assert "item 1, a Once, cannot be sent to another process: pickled too often" in str(error)
    with pytest.raises(ItemError):
        four.map(mapped.same, [1, mapped.Once(1), 3], chunk_size=3)


def test_a_class_that_cannot_be_sent_or_rebuilt_fails_its_own_items_only(four: ProcMesh) -> None:
    class Good:
        pass

    class Locked:
        lock: Any = None

    class Far:
        home: Any = None

    def made(item: int) -> Any:
        if item == 1:
            Locked.lock = threading.Lock()
            return Locked()
        if item == 2:
            Far.home = mapped.Stays()
            return Far()
        return Good()

    results = four.map(made, range(4), on_error="collect", chunk_size=4)
    assert [type(found).__name__ for found in results] == ["Good", "ItemError", "ItemError", "Good"]
    assert "Locked, cannot be sent to another process" in str(results[1])
    assert "cannot be rebuilt in this process: LookupError: far from home" in str(results[2])


def test_items_of_a_chunk_share_objects_and_values_share_their_classes(four: ProcMesh) -> None:
    class Pair:
        def __init__(self, left: object, right: list[object]) -> None:
            self.left, self.right = left, right

    shared = ["shared"]
    first, second = four.map(lambda item: Pair(item, [item]), [shared, shared], chunk_size=2)
    assert (type(first), type(second)) == (Pair, Pair)
    assert first.right[0] is first.left
    kept: list[int] = []

    def identity(item: list[str]) -> int:
        kept.append(id(item))
        return len(set(kept))

    assert four.map(identity, [shared, shared], chunk_size=2) == [1, 1]


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "text"),
    [
        ((3, [1]), {}, TypeError,
         "map: the first argument has to be a function, and is of type int"),
        ((mapped.square, [1], 2), {}, TypeError,
         ("map: argument 3 is of type int; give an iterable for each argument of the function, and "
          "options by name")),
        ((mapped.square, 3), {}, TypeError,
         "map: the items have to be iterable, such as a list, and are of type int"),
        ((mapped.square, [1]), {"chunk_size": 0}, ValueError,
         "map: chunk_size=0: a chunk has at least one item"),
        ((mapped.square, [1]), {"chunk_size": 2.5}, TypeError,
         "map: chunk_size=2.5: give a whole number, or None"),
        ((mapped.square, [1]), {"on_error": "ignore"}, ValueError,
         "map: on_error='ignore': give \"raise\" or \"collect\""),
        ((mapped.square, [1]), {"timeout": 0}, ValueError,
         "map: timeout=0: give seconds above 0, or None for no limit"),
        ((mapped.square, [1]), {"timeout": float("nan")}, ValueError,
         "map: timeout=nan: give seconds above 0, or None for no limit"),
        ((mapped.square, [1]), {"timeout": "5"}, TypeError,
         "map: timeout='5': give seconds, or None for no limit"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_in_one_line(
    four: ProcMesh, arguments: tuple[Any, ...], options: dict[str, Any], kind: type, text: str
) -> None:
    with pytest.raises(kind) as raised:
        four.map(*arguments, **options)
    assert str(raised.value) == text


def test_an_item_that_cannot_be_pickled_is_named_before_anything_is_sent(four: ProcMesh) -> None:
    items: list[Any] = [*range(1500), {"a": threading.Lock()}, threading.Lock()]
    before = frontend.newest_call()
    with pytest.raises(TypeError) as raised:
        four.map(mapped.pid, items)
    assert str(raised.value) == (
        "map: item 1500, a dict, cannot be sent to another process, because of it['a'], a lock: "
        "cannot pickle '_thread.lock' object; make it on the rank: in `__init__` of the actor, or "
        "where it is first used"
    )
    with pytest.raises(TypeError, match=r"^imap_unordered: item 0, a generator, cannot be sent"):
        four.imap_unordered(mapped.pid, [(n for n in range(3))])
    assert frontend.newest_call() == before + 1


def test_a_function_that_cannot_be_pickled_is_named(four: ProcMesh) -> None:
    lock = threading.Lock()

    def hold(item: int) -> int:
        with lock:
            return item

    with pytest.raises(TypeError, match=r"^map: the function .*hold, a function, cannot be sent"):
        four.map(hold, [1])


def test_a_stopped_mesh_is_told_to_be_so() -> None:
    mesh = this_host().spawn_procs({"gpus": 1})
    mesh.stop().get(timeout=60)
    with pytest.raises(SupervisionError, match="has been stopped"):
        mesh.map(mapped.square, [1])


# --- deaths: without the fixture `faults`, a fault that reaches the client's hook fails a test ---


def test_the_items_of_a_rank_that_dies_are_run_on_others(
    spawn: Spawn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = spawn(4)
    items = [(str(tmp_path), number) for number in range(300)]
    with caplog.at_level(logging.WARNING, "monarch.map"):
        assert mesh.map(mapped.kill_the_first, items) == list(range(300))
    (record,) = [found for found in caplog.records if found.name == "monarch.map"]
    assert "died while it ran the map: killed by SIGKILL" in record.getMessage()
    assert record.getMessage().endswith("on the other ranks, of which 3 are left")


def test_later_maps_use_the_ranks_that_are_left(spawn: Spawn, tmp_path: Path) -> None:
    mesh = spawn(3)
    mesh.map(mapped.kill_the_first, [(str(tmp_path), number) for number in range(10)])
    assert len(set(mesh.map(mapped.pid, range(200), chunk_size=1))) == 2


def test_an_item_that_ends_every_rank_is_given_up_after_three(spawn: Spawn) -> None:
    mesh = spawn(5)
    results = mesh.map(mapped.kill_on_three, range(40), on_error="collect")
    lost = results.pop(3)
    assert results == [number for number in range(40) if number != 3]
    assert isinstance(lost, ItemLostError)
    assert (lost.index, lost.item, len(lost.failures)) == (3, "3", 3)
    assert str(lost).splitlines()[-1] == (
        "each of these 3 times the rank ran kill_on_three(item 3: 3), so that item is not tried "
        "again: look for the cause in it"
    )


def test_without_a_rank_left_the_map_says_how_far_it_came(spawn: Spawn) -> None:
    mesh = spawn(2)
    with pytest.raises(SupervisionError) as raised:
        mesh.map(mapped.kill_always, range(40), on_error="collect")
    assert len(raised.value.failures) == 2
    assert str(raised.value).splitlines()[-1] == (
        "no rank of workers is left for the map, and 0 of 40 items are done: spawn the mesh again, "
        'or with restart="on-failure"'
    )
    with pytest.raises(SupervisionError, match="the map has not begun: spawn others"):
        mesh.map(mapped.square, [1])


def test_a_rank_that_restarts_goes_on_with_the_map(spawn: Spawn, tmp_path: Path) -> None:
    mesh = spawn(1, restart="on-failure")
    items = [(str(tmp_path), number) for number in range(20)]
    assert mesh.map(mapped.kill_the_first, items) == list(range(20))


class Maps(Actor):
    """Maps over a mesh of its own."""

    @endpoint
    def run(self, folder: str) -> bool:
        mesh = this_host().spawn_procs({"gpus": 2})
        items = [(folder, number) for number in range(20)]
        whole = mesh.map(mapped.kill_the_first, items) == list(range(20))
        mesh.stop().get()
        return whole


def test_an_actor_maps_over_its_own_mesh_and_outlives_a_death(
    four: ProcMesh, tmp_path: Path
) -> None:
    maps = four.slice(gpus=0).spawn("maps", Maps)
    assert maps.run.call_one(str(tmp_path)).get() is True
    maps.stop().get()


def test_ranks_that_died_before_the_map_noticed_cost_no_item_its_tries(spawn: Spawn) -> None:
    mesh = spawn(5)
    results = mesh.imap_unordered(mapped.square, range(200), chunk_size=1)
    first = next(results)
    observe.kill_procs(mesh, [1, 2, 3, 4])
    assert sorted([first, *results]) == [number * number for number in range(200)]


PROGRAM = """
import os, signal, sys
from monarch.actor import this_host

def step(item):
    if item == 5 and not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * item

if __name__ == "__main__":
    mesh = this_host().spawn_procs({"gpus": 2})
    print(sum(mesh.map(step, range(10))))
"""


def test_a_script_goes_on_after_the_death_of_a_rank(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = "import runpy, sys; runpy.run_path(sys.argv[2], run_name='__main__')"
    assert run_python(run, str(tmp_path / "killed"), str(program)) == "90\n"
