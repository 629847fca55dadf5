"""Recordings: references in place of numbers, what is freed when, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.tensor.state.instructions import MANY, NOTHING, Kind, Value
from monarch._src.tensor.state.regions import CHUNK, RecordedRegion, Recording

ADD = Kind(1, "add")
FILL = Kind(2, "fill_", args=(Value(0),), stores=NOTHING, mutated=(0,))
SPLIT = Kind(3, "split", stores=MANY, kept=(0, 1))


def replay(region: RecordedRegion, bound: Sequence[Any]) -> list[Any]:
    """As a rank does, with sums in place of operations."""
    values: dict[int, Any] = dict(zip(region.bound, bound, strict=True))
    for chunk in region.chunks:
        for kind, inputs, first, scalars, _ in chunk.code:
            values[first] = (kind, tuple(values[one] for one in inputs), scalars)
        for register in chunk.dead:
            del values[register]
    return [values[one] for one in region.outputs]


def test_inputs_are_bound_by_place_and_captured_tensors_after_them() -> None:
    recording = Recording([70, 80])
    recording.add(ADD, (70, 99), 100, (), 5)
    recording.add(ADD, (100, 80), 101, (), 6)
    assert recording.captured == [99]
    region = recording.finish([101])
    assert replay(region, ["x", "y", "w"]) == [(1, ((1, ("x", "w"), ()), "y"), ())]


def test_an_argument_that_is_given_twice_is_read_from_its_first_place() -> None:
    recording = Recording([7, 7])
    recording.add(ADD, (7, 7), 8, (), 0)
    assert replay(recording.finish([8]), ["x", "x"]) == [(1, ("x", "x"), ())]


def test_it_knows_which_tensors_it_has_made() -> None:
    recording = Recording([1])
    recording.add(SPLIT, (1,), 2, (), 0)
    recording.add(FILL, (2,), 9, (1.0,), 0)
    assert [recording.has_made(number) for number in (1, 2, 3, 9)] == [False, True, True, False]


def test_what_no_later_operation_reads_is_freed_and_results_are_kept() -> None:
    recording = Recording([0])
    for number in range(1, 3 * CHUNK):
        recording.add(ADD, (number - 1,), number, (), 0)
    region = recording.finish([3, 3 * CHUNK - 1])
    freed = [register for chunk in region.chunks for register in chunk.dead]
    assert sorted(freed) == [n for n in range(1, 3 * CHUNK) if n not in (3, 3 * CHUNK - 1)]
    assert len(region.chunks) == 3
    assert set(region.chunks[0].dead) == {*range(1, CHUNK)} - {3}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=60))
def test_a_replay_reads_what_the_program_read(steps: list[tuple[int, int]]) -> None:
    """Numbers of tensors from 1000 on; operands by place among all that there are so far."""
    tensors = [1000, 1001, 2000]  # two inputs, and one that is captured
    values: dict[int, Any] = {1000: "x", 1001: "y", 2000: "w"}
    recording = Recording([1000, 1001])
    for place, (first, second) in enumerate(steps):
        numbers = (tensors[first % len(tensors)], tensors[second % len(tensors)])
        made = 3000 + place
        recording.add(ADD, numbers, made, (place,), 0)
        values[made] = (1, tuple(values[one] for one in numbers), (place,))
        tensors.append(made)
    outputs = [tensors[-1], tensors[len(tensors) // 2 + 1]]
    outputs = [one for one in outputs if recording.has_made(one)]
    bound = ["x", "y", *["w" for _ in recording.captured]]
    assert replay(recording.finish(outputs), bound) == [values[one] for one in outputs]


def recorded(change: Callable[[list[Any]], None] = lambda steps: None) -> Recording:
    steps: list[Any] = [
        (ADD, (5, 6), 10, (), 1), (FILL, (10,), 0, (float("nan"),), 2), (ADD, (10, 5), 11, (), 3)
    ]  # fmt: skip
    change(steps)
    recording = Recording([5])
    for step in steps:
        recording.add(*step)
    return recording


def test_the_first_operation_that_differs_is_found() -> None:
    changes: list[tuple[int, Callable[[list[Any]], None]]] = [
        (0, lambda steps: steps.__setitem__(0, (SPLIT, (5,), 10, (), 1))),
        (1, lambda steps: steps.__setitem__(1, (FILL, (10,), 0, (2.0,), 2))),
        (2, lambda steps: steps.__setitem__(2, (ADD, (5, 10), 11, (), 3))),
        (2, lambda steps: steps.pop()),
        (3, lambda steps: steps.append((ADD, (11, 11), 12, (), 4))),
    ]
    for place, change in changes:
        assert recorded().difference(recorded(change)) == place


def test_numbers_of_kinds_lines_and_nan_make_no_difference() -> None:
    def change(steps: list[Any]) -> None:
        steps[0] = (Kind(44, "add"), (5, 6), 20, (), 9)
        steps[1] = (FILL, (20,), 0, (float("nan"),), 2)
        steps[2] = (ADD, (20, 5), 21, (), 3)

    assert recorded().difference(recorded(change)) == -1


def test_another_captured_tensor_is_a_difference() -> None:
    def change(steps: list[Any]) -> None:
        steps[0] = (ADD, (5, 7), 10, (), 1)

    assert recorded().difference(recorded(change)) == 3
