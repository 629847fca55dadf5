"""The iterators of a map: which result comes next, and when an error does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from monarch._src.errors import ItemError
from monarch._src.mesh.map.driver import Failed, MapRun, Result
from monarch._src.mesh.map.results import MapResults, OrderedMapResults


class FakeRun:
    """Gives batches of results; `news` first, if there are any when a result is yielded."""

    def __init__(self, *batches: Sequence[Result] | Exception) -> None:
        self.batches = list(batches)
        self.has_news = False
        self.error: Exception | None = None
        self.yielded = 0
        self.cuts: list[int] = []
        self.ends: list[bool] = []

    @property
    def is_complete(self) -> bool:
        return not self.batches

    def next_results(self) -> Sequence[Result]:
        batch = self.batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch

    news = next_results

    def on_yielded(self) -> None:
        self.yielded += 1

    def cut(self, index: int) -> None:
        self.cuts.append(index)

    def drop_items(self) -> None:
        pass

    def end(self, *, cancel: bool) -> None:
        self.ends.append(cancel)


def results_of(run: FakeRun, *, ordered: bool = False) -> MapResults:
    return (OrderedMapResults if ordered else MapResults)(cast(MapRun, run))


def failed(index: int) -> Result:
    return index, Failed(ItemError(ValueError("bad"), "bad", (), index, "x"))


def test_results_come_as_they_arrive_or_in_the_order_of_the_items() -> None:
    batches: list[list[Result]] = [[(2, "c"), (3, "d")], [], [(1, "b")], [(0, "a"), (4, "e")]]
    for ordered, found in ((False, "cdbae"), (True, "abcde")):
        run = FakeRun(*batches)
        assert "".join(results_of(run, ordered=ordered)) == found
        assert (run.yielded, run.ends) == (5, [False])


def test_no_items_have_no_results() -> None:
    assert list(MapResults(None)) == []


def test_an_error_comes_after_the_results_that_arrived_before_it_and_ends_the_map() -> None:
    run = FakeRun([(5, "f"), failed(3), (1, "b")], [(2, "c")])
    results = results_of(run)
    assert next(results) == "f"
    assert run.ends == [True], "what still runs is cancelled at once"
    with pytest.raises(ItemError):
        next(results)
    assert list(results) == []


def test_an_ordered_error_waits_for_the_items_before_it() -> None:
    run = FakeRun([failed(3), (4, "e"), (1, "b")], [failed(2)], [(0, "a")], [(9, "never")])
    results = results_of(run, ordered=True)
    assert [next(results), next(results)] == ["a", "b"]
    assert (run.cuts, run.ends) == ([3, 2], [])
    with pytest.raises(ItemError) as raised:
        next(results)
    assert raised.value.index == 2
    assert run.ends == [True]
    assert list(results) == []


def test_the_error_of_the_iterable_comes_last_and_once() -> None:
    run = FakeRun([(1, "b"), (0, "a")])
    run.error = LookupError("broken")
    results = results_of(run, ordered=True)
    assert [next(results), next(results)] == ["a", "b"]
    with pytest.raises(LookupError):
        next(results)
    assert run.ends == [False]
    assert list(results) == []


def test_what_arrives_while_results_are_there_is_taken_and_its_errors_come_after_them() -> None:
    run = FakeRun([(0, "a"), (1, "b")], [(2, "c")], RuntimeError("no rank is left"))
    run.has_news = True
    results = results_of(run)
    assert next(results) == "a"
    assert len(run.batches) == 1
    assert next(results) == "b"
    assert run.ends == [True]
    assert next(results) == "c"
    with pytest.raises(RuntimeError, match="no rank is left"):
        next(results)
    assert list(results) == []


def test_an_error_while_nothing_is_there_ends_the_map() -> None:
    run = FakeRun(TimeoutError("late"))
    results = results_of(run)
    with pytest.raises(TimeoutError):
        next(results)
    assert (run.ends, list(results)) == ([True], [])


@pytest.mark.parametrize("ordered", [False, True])
def test_after_close_there_are_no_results(ordered: bool) -> None:
    run = FakeRun([(0, "a"), (1, "b"), (3, "d")], [(2, "c")])
    results: Any = results_of(run, ordered=ordered)
    assert next(results) == "a"
    results.close()
    results.close()
    assert (list(results), run.ends) == ([], [True])
