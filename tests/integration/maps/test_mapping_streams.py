"""`imap` and `imap_unordered` take items as their results are yielded, and hold few of either."""

from __future__ import annotations

import collections
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch import frontend, observe
from monarch._src.mesh.map import driver, items
from monarch._src.mesh.map.results import ENDING
from monarch._src.mesh.map.state.schedule import MOST_ITEMS, WINDOW_BYTES
from monarch.actor import ItemError, ItemLostError, ProcMesh, SupervisionError, this_host
from tests.integration import mapped
from tests.integration.gates import GateKeeper

Spawn = Callable[..., ProcMesh]
METHODS = pytest.mark.parametrize("method", ["imap", "imap_unordered"])


class Source:
    """An iterable that counts the items that it has given, and knows the threads that took them."""

    def __init__(self, of: Callable[[int], Any] = int, *, end: int | None = None) -> None:
        self.taken = 0
        self.threads: set[int] = set()
        self._of = of
        self._end = end

    def __iter__(self) -> Iterator[Any]:
        for number in itertools.count():
            if number == self._end:
                return
            self.taken = number + 1
            self.threads.add(threading.get_ident())
            yield self._of(number)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    meshes: list[ProcMesh] = []

    def spawned(ranks: int, **options: Any) -> ProcMesh:
        meshes.append(this_host().spawn_procs({"gpus": ranks}, name="workers", **options))
        return meshes[-1]

    yield spawned
    for mesh in meshes:
        mesh.stop().get(timeout=60)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """All items that are wanted are taken, however long this machine needs for that."""
    monkeypatch.setattr(items, "TAKE_S", 3600.0)
    monkeypatch.setattr(items, "SLOW_S", 3600.0)


def assert_nothing_is_left(mesh: ProcMesh) -> None:
    for thread in threading.enumerate():
        if thread.name == ENDING:
            thread.join()
    assert observe.open_maps() == []
    assert mesh.actor_names == ()


# --- items that are taken -------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("buffersize", [1, 4, 30])
def test_no_more_items_are_taken_than_the_buffer_has_room_for(
    four: ProcMesh, method: str, buffersize: int
) -> None:
    source, found = Source(), set[int]()
    results = getattr(four, method)(mapped.square, source, buffersize=buffersize)
    for count in range(1, 301):
        found.add(next(results))
        assert source.taken - count <= buffersize
    results.close()
    assert len(found) == 300
    assert found <= {number * number for number in range(300 + buffersize)}
    assert source.threads == {threading.get_ident()}
    assert_nothing_is_left(four)


@METHODS
def test_without_a_size_the_buffer_has_a_limit_too(four: ProcMesh, method: str) -> None:
    source = Source()
    results = getattr(four, method)(mapped.square, source)
    for count in range(1, 3001):
        next(results)
        assert source.taken - count <= 4 * MOST_ITEMS
    results.close()


@pytest.mark.usefixtures("unhurried")
def test_a_caller_that_asks_for_nothing_takes_no_item(four: ProcMesh, gate: GateKeeper) -> None:
    source = Source(lambda number: (gate.gate, number))
    results = four.imap(mapped.pass_gate, source, buffersize=6, chunk_size=1)
    gate.wait_entered(4)
    taken = source.taken
    gate.open(4)
    assert four.map(mapped.square, [3]) == [9]
    assert source.taken == taken <= 6
    gate.open(100)
    assert [next(results) for _ in range(20)] == list(range(20))
    results.close()


def test_a_late_result_holds_back_those_after_it_and_further_items(
    four: ProcMesh, gate: GateKeeper
) -> None:
    def item(number: int) -> Any:
        if number == 7:  # the last one that the buffer has room for
            gate.open(1)
        return gate.gate, number

    source = Source(item, end=100)
    results = four.imap(mapped.pass_gate_at_zero, source, buffersize=8, chunk_size=1)
    assert next(results) == 0
    assert source.taken <= 9
    assert list(results) == list(range(1, 100))
    assert_nothing_is_left(four)


def test_a_result_of_a_slow_iterable_does_not_wait_for_the_next_item(
    four: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "SLOW_S", -1.0)  # each iterable is
    monkeypatch.setattr(items, "TAKE_S", -1.0)
    monkeypatch.setattr(driver, "PATIENCE", 1e12)
    source = Source(end=10)
    results = four.imap(mapped.square, source)
    for number in range(10):
        assert next(results) == number * number
        assert source.taken == number + 1
    assert list(results) == []


@pytest.mark.usefixtures("unhurried")
def test_an_iterator_may_be_dropped_or_closed_amid_endless_items(
    four: ProcMesh, gate: GateKeeper
) -> None:
    generator = ((gate.gate, number) for number in itertools.count())
    for end in ("close", "drop"):
        results = four.imap(mapped.pass_gate, generator)
        gate.wait_entered(4)
        (running,) = observe.open_maps()
        assert (running.done, running.total, running.late) == (0, None, ())
        if end == "close":
            results.close()  # pyright: ignore[reportAttributeAccessIssue]
            assert list(results) == []
        del results
        assert_nothing_is_left(four)
        assert inspect.getgeneratorstate(generator) == inspect.GEN_SUSPENDED


@METHODS
def test_the_number_of_items_is_shown_if_it_is_known(
    four: ProcMesh, gate: GateKeeper, method: str
) -> None:
    results = getattr(four, method)(mapped.pass_gate, [(gate.gate, n) for n in range(50)])
    gate.wait_entered(4)
    assert [one.total for one in observe.open_maps()] == [50]
    gate.open(50)
    assert sorted(results) == list(range(50))


# --- memory ---------------------------------------------------------------------------------------


@METHODS
def test_results_are_freed_as_they_are_yielded(four: ProcMesh, method: str) -> None:
    source = Source(lambda number: (number, 1 << 20), end=200)
    results = getattr(four, method)(mapped.counted, source, buffersize=16)
    alive = [len(mapped.Counted.alive) for _ in results]
    assert (len(alive), 1 <= max(alive) <= 18) == (200, True)  # two are of the loop itself
    assert len(mapped.Counted.alive) == 0


@METHODS
def test_large_results_make_the_buffer_smaller(four: ProcMesh, method: str) -> None:
    source = Source(lambda number: (number, WINDOW_BYTES // 8), end=40)
    for count, _ in enumerate(getattr(four, method)(mapped.counted, source), 1):
        assert source.taken - count <= (16 if count <= 16 else 8)
        assert len(mapped.Counted.alive) <= 18


# --- order and errors -----------------------------------------------------------------------------


def test_ordered_results_come_in_the_order_of_the_items(four: ProcMesh) -> None:
    generator = (number for number in range(2000))
    assert list(four.imap(mapped.square, generator)) == [n * n for n in range(2000)]
    assert list(four.imap(mapped.square, iter(()))) == []
    assert list(four.imap(mapped.square, range(7), chunk_size=3)) == [n * n for n in range(7)]
    assert list(four.imap(mapped.square, {2: "a", 3: "b"})) == [4, 9]


def test_an_ordered_error_comes_after_the_values_before_it(four: ProcMesh) -> None:
    for size in (None, 1, 5, 30):
        results = four.imap(mapped.raise_on_sevens, itertools.count(), chunk_size=size)
        found: list[int] = []
        with pytest.raises(ItemError) as raised:
            found.extend(results)
        assert found == list(range(7))
        assert raised.value.index == 7
        assert list(results) == []
        results = four.imap(mapped.raise_on_sevens, range(100), chunk_size=size)
        assert [next(results) for _ in range(7)] == list(range(7))
        with pytest.raises(ItemError, match=r"raise_on_sevens\(item 7: 7\)"):
            next(results)
        assert_nothing_is_left(four)


def test_errors_can_be_collected_from_endless_items(four: ProcMesh) -> None:
    results = four.imap(mapped.raise_on_sevens, itertools.count(), on_error="collect")
    found = [next(results) for _ in range(20)]
    assert [at for at, one in enumerate(found) if isinstance(one, ItemError)] == [7, 17]
    error = found[17]
    assert isinstance(error, ItemError)
    assert (error.index, error.item) == (17, "17")


def test_an_unordered_error_ends_the_map(four: ProcMesh) -> None:
    results = four.imap_unordered(mapped.raise_on_sevens, itertools.count(), chunk_size=1)
    with pytest.raises(ItemError) as raised:
        collections.deque(results, 0)
    assert raised.value.index % 10 == 7
    assert_nothing_is_left(four)


@METHODS
@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_what_the_iterable_raises_comes_after_the_results_of_its_items(
    four: ProcMesh, method: str, on_error: str
) -> None:
    def broken() -> Iterator[int]:
        yield from range(50)
        raise LookupError("no more")

    results = getattr(four, method)(mapped.square, broken(), on_error=on_error)
    assert sorted(next(results) for _ in range(50)) == [n * n for n in range(50)]
    with pytest.raises(LookupError, match="no more"):
        next(results)
    assert list(results) == []
    assert_nothing_is_left(four)


@METHODS
def test_what_the_iterable_raises_first_is_raised_by_the_call(four: ProcMesh, method: str) -> None:
    before = frontend.newest_call()
    with pytest.raises(ZeroDivisionError):
        getattr(four, method)(mapped.square, (1 // number for number in range(3)))
    assert frontend.newest_call() == before + 1


@METHODS
def test_an_interrupt_within_the_iterable_ends_the_map_at_once(four: ProcMesh, method: str) -> None:
    def interrupted() -> Iterator[int]:
        yield from range(500)
        raise KeyboardInterrupt

    results = getattr(four, method)(mapped.square, interrupted(), buffersize=20)
    with pytest.raises(KeyboardInterrupt):
        collections.deque(results, 0)
    assert list(results) == []
    assert_nothing_is_left(four)


def test_a_later_item_that_cannot_be_pickled_is_an_error_of_that_item(four: ProcMesh) -> None:
    given: list[Any] = [1, 2, threading.Lock(), 4]
    results = list(four.imap(mapped.same, iter(given), on_error="collect", chunk_size=2))
    error = results.pop(2)
    assert results == [1, 2, 4]
    assert isinstance(error, ItemError)
    assert "item 2, a lock, cannot be sent to another process" in str(error)


def test_a_map_over_endless_items_has_a_time_limit(four: ProcMesh) -> None:
    results = four.imap(mapped.wait_for_ever, itertools.count(), timeout=0.05)
    with pytest.raises(TimeoutError) as raised:
        next(results)
    assert str(raised.value) == (
        "map: 0 items are done within 0.05 s; the others have been cancelled"
    )
    assert_nothing_is_left(four)


@pytest.mark.parametrize(
    ("size", "kind", "text"),
    [
        (0, ValueError, "imap: buffersize=0: a buffer has at least one item"),
        (2.5, TypeError, "imap: buffersize=2.5: give a whole number, or None"),
        (True, TypeError, "imap: buffersize=True: give a whole number, or None"),
    ],
)
def test_a_bad_size_of_the_buffer_is_refused(
    four: ProcMesh, size: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as raised:
        four.imap(mapped.square, [1], buffersize=size)
    assert str(raised.value) == text


# --- deaths ---------------------------------------------------------------------------------------


@METHODS
def test_the_items_of_a_rank_that_dies_are_run_on_others_within_the_buffer(
    spawn: Spawn, tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    mesh = spawn(4)
    source = Source(lambda number: (str(tmp_path), number), end=300)
    found: list[int] = []
    with caplog.at_level(logging.WARNING, "monarch.map"):
        for value in getattr(mesh, method)(mapped.kill_the_first, source, buffersize=32):
            found.append(value)
            assert source.taken - len(found) <= 32
    assert sorted(found) == list(range(300))
    assert found == list(range(300)) or method == "imap_unordered"
    (record,) = [one for one in caplog.records if one.name == "monarch.map"]
    assert record.getMessage().endswith("on the other ranks, of which 3 are left")


def test_an_item_that_ends_every_rank_stands_in_its_place(spawn: Spawn) -> None:
    mesh = spawn(5)
    given = (number for number in range(40))
    results = list(mesh.imap(mapped.kill_on_three, given, on_error="collect"))
    lost = results.pop(3)
    assert results == [number for number in range(40) if number != 3]
    assert isinstance(lost, ItemLostError)
    assert (lost.index, lost.item) == (3, "3")


def test_without_a_rank_left_no_further_item_is_taken(spawn: Spawn) -> None:
    mesh = spawn(2)
    source = Source()
    results = mesh.imap(mapped.kill_always, source, on_error="collect")
    with pytest.raises(SupervisionError, match="is left for the map, and 0 items are done"):
        next(results)
    assert source.taken <= 8
    assert list(results) == []
    assert observe.open_maps() == []
