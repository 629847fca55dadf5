"""Which instructions wait, and when a batch is full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.tensor.state.instructions import (
    MANY,
    MOST_BYTES,
    MOST_INSTRUCTIONS,
    NOTHING,
    ONE,
    Batches,
    Kind,
)

ADD = Kind(1, "aten::add.Tensor")
MUL = Kind(2, "aten::mul.Tensor")


def test_ranks_are_told_of_a_kind_once() -> None:
    batches = Batches()
    batches.add(ADD, (1, 2), 3, (), 0)
    batches.add(ADD, (3, 2), 4, (), 0)
    assert [kind.number for kind in batches.take().kinds] == [1]
    batches.add(ADD, (4, 2), 5, (), 0)
    batches.add(MUL, (4, 2), 6, (), 0)
    assert [kind.number for kind in batches.take().kinds] == [2]


def test_a_batch_is_full_by_its_instructions_or_its_bytes() -> None:
    batches = Batches()
    full = [batches.add(ADD, (), 1, (), 0) for _ in range(MOST_INSTRUCTIONS)]
    assert full == [False] * (MOST_INSTRUCTIONS - 1) + [True]
    batches.take()
    assert not batches.add(ADD, (), 1, (), 0, MOST_BYTES - 1)
    assert batches.add(ADD, (), 1, (), 0, 1)
    batches.take()
    assert not batches.add(ADD, (), 1, (), 0, 1)


def test_a_tensor_that_is_gone_is_freed_behind_what_uses_it() -> None:
    batches = Batches()
    assert not batches.has_work
    batches.add(ADD, (1,), 2, (), 0)
    batches.free(1)
    batch = batches.take()
    assert (len(batch.code), batch.dead) == (1, [1])
    assert not batches.has_work
    batches.free(2)
    assert batches.has_work
    assert batches.has_dead
    assert batches.take().dead == [2]
    assert not batches.has_dead


@given(st.lists(st.sampled_from(["add", "mul", "free", "take"])))
def test_everything_is_sent_once_and_in_order(steps: list[str]) -> None:
    batches, sent, freed = Batches(), list[int](), list[int]()
    for number, step in enumerate([*steps, "take"]):
        if step == "free":
            batches.free(number)
        elif step == "take":
            batch = batches.take()
            sent += [first for _, _, first, _, _ in batch.code]
            freed += batch.dead
        else:
            batches.add(ADD if step == "add" else MUL, (), number, (), 0)
    assert sent == [n for n, step in enumerate(steps) if step in ("add", "mul")]
    assert freed == [n for n, step in enumerate(steps) if step == "free"]


def test_a_kind_knows_how_many_numbers_it_takes() -> None:
    assert Kind(1, "a", stores=NOTHING).outputs == 0
    assert Kind(1, "a", stores=ONE).outputs == 1
    assert Kind(1, "a", stores=MANY, kept=(0, 2)).outputs == 2
