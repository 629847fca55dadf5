"""Random programs on several streams: their values are those of one operation after another."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import monarch
from monarch.actor import ProcMesh

pytestmark = pytest.mark.slow

RANKS = 2
STREAMS = ("main", "first", "second")
RECENT = 8  # of these tensors a step takes two
Step = tuple[str, int, int, int]


def burn(tensor: Any, rounds: int) -> Any:
    """On a rank: take some time, so that streams run in many orders."""
    square = torch.ones(160, 160)
    for _ in range(rounds):
        square = square @ square / 160
    return tensor * 3 % 97


slow = monarch.remote(burn, propagate=lambda tensor, rounds: torch.empty_like(tensor))


class Made(NamedTuple):
    """A tensor of the mesh, and that of each rank in this process; borrowed ones share theirs."""

    there: Any
    here: list[Any]


class Program:
    """Runs each step on the mesh and, unless it is refused there, in this process."""

    def __init__(self, pair: ProcMesh) -> None:
        self.pair = pair
        self.made: list[Made] = []
        self.borrows: list[Any] = []
        self.refused = 0
        for name in STREAMS:
            self._factory(name)

    def _factory(self, stream: str) -> None:
        with self.pair.activate(), monarch.Stream(stream).activate():
            there = torch.ones(3) + self.pair.rank_tensor("gpus") * 5
        self.made.append(Made(there, [torch.ones(3) + rank * 5 for rank in range(RANKS)]))

    def step(self, name: str, first: int, second: int, n: int) -> None:
        recent = self.made[-RECENT:]
        one, other = recent[first % len(recent)], recent[second % len(recent)]
        try:
            getattr(self, name)(one, other, n)
        except ValueError:  # tensors of two streams, or a borrowed one that would be written
            self.refused += 1

    def factory(self, one: Made, other: Made, n: int) -> None:
        self._factory(STREAMS[n % 3])

    def combine(self, one: Made, other: Made, n: int) -> None:
        there = (one.there * 2 + other.there) % 97
        pairs = zip(one.here, other.here, strict=True)
        self.made.append(Made(there, [(a * 2 + b) % 97 for a, b in pairs]))

    def write(self, one: Made, other: Made, n: int) -> None:
        one.there.add_(n)
        for here in one.here:
            here.add_(n)

    def copy(self, one: Made, other: Made, n: int) -> None:
        one.there.copy_(other.there)
        for here, value in zip(one.here, other.here, strict=True):
            here.copy_(value)

    def slow(self, one: Made, other: Made, n: int) -> None:
        there = slow(one.there, n * 20)
        self.made.append(Made(there, [here * 3 % 97 for here in one.here]))

    def view(self, one: Made, other: Made, n: int) -> None:
        there = one.there.flip(0) if n % 2 else one.there[:3]
        self.made.append(Made(there, [h.flip(0) if n % 2 else h[:3] for h in one.here]))

    def reduce(self, one: Made, other: Made, n: int) -> None:
        there = one.there.reduce("gpus") % 97
        total: Any = sum(one.here) % 97
        self.made.append(Made(there, [total.clone() for _ in range(RANKS)]))

    def borrow(self, one: Made, other: Made, n: int) -> None:
        there, borrow = monarch.Stream(STREAMS[n % 3]).borrow(one.there, mutable=n % 2 == 0)
        self.borrows.append(borrow)
        self.made.append(Made(there, one.here))

    def drop(self, one: Made, other: Made, n: int) -> None:
        if self.borrows:
            self.borrows.pop(n % len(self.borrows)).drop()

    def lend_for_long(self, one: Made, other: Made, n: int) -> None:
        """Borrow, use the tensor for some time, drop, and write to it."""
        self.borrow(one, other, n)
        borrowed = self.made[-1]
        self.slow(borrowed, other, 5)
        if n % 2 == 0:
            self.copy(borrowed, self.made[-1], n)
        self.borrows.pop().drop()
        self.write(one, other, n + 1)

    def move(self, one: Made, other: Made, n: int) -> None:
        there = one.there.to_mesh(self.pair, stream=monarch.Stream(STREAMS[n % 3]))
        same = there is one.there
        self.made.append(Made(there, one.here if same else [h.clone() for h in one.here]))

    def spread(self, one: Made, other: Made, n: int) -> None:
        stream = monarch.Stream(STREAMS[n % 3])
        there = one.there.slice_mesh(gpus=n % 2).to_mesh(self.pair, stream=stream)
        self.made.append(Made(there, [one.here[n % 2].clone() for _ in range(RANKS)]))

    def check(self) -> None:
        """Compare all tensors that may still be used."""
        for borrow in self.borrows:
            borrow.drop()
        compared = 0
        for one in self.made:
            if one.there.monarch_handle.storage.unusable:
                continue
            found = [monarch.inspect(one.there, gpus=rank).tolist() for rank in range(RANKS)]
            assert found == [here.tolist() for here in one.here]
            compared += 1
        assert compared >= len(STREAMS)


NAMES = (
    "factory", "combine", "write", "copy", "slow", "view", "reduce", "borrow", "drop", "move",
    "spread", "lend_for_long",
)  # fmt: skip


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(NAMES), st.integers(0, 7), st.integers(0, 7), st.integers(0, 5)
        ),
        min_size=5, max_size=40,
    )
)  # fmt: skip
def test_streams_give_the_values_of_one_operation_after_another(
    pair: ProcMesh, steps: list[Step]
) -> None:
    program = Program(pair)
    for step in steps:
        program.step(*step)
    program.check()
