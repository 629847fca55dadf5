"""Seeds and states of random numbers on ranks, and the remote functions that come with us."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import monarch
import monarch.random
from monarch._src.tensor.ranks.worker import SEED
from monarch.actor import Actor, ProcMesh, current_rank, endpoint
from monarch.builtins import log_remote, set_logging_level_remote
from monarch.builtins.random import (
    get_rng_state_remote,
    seed_remote,
    set_manual_seed_remote,
    set_rng_state_remote,
)
from monarch.observe import OutputLine, flush_output, on_output
from tests.integration.tensor.conftest import TORCH
from tests.integration.tensor.test_operations import values

pytestmark = pytest.mark.slow


def numbers() -> list[Any]:
    """The next random numbers of both ranks."""
    return values(torch.rand(3))


def here(seed: int) -> list[float]:
    """The random numbers of a seed in this process."""
    return torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()


def test_a_number_seeds_all_ranks_alike_and_a_tensor_each_with_its_own(pair: ProcMesh) -> None:
    with monarch.no_mesh.activate():
        seven, eight = here(7), here(8)
    with pair.activate():
        monarch.random.manual_seed(7)
        assert numbers() == [seven, seven]
        monarch.random.manual_seed(7 + pair.rank_tensor("gpus"))
        assert numbers() == [seven, eight]


def test_all_ranks_begin_with_the_same_numbers_unless_the_program_has_seeded_them(
    spawn_procs: Callable[..., ProcMesh],
) -> None:
    with monarch.no_mesh.activate():
        first, seven, eight = here(SEED), here(7), here(8)
    for _ in range(2):
        procs = spawn_procs({"gpus": 2}, name="fresh", preload=TORCH)
        with procs.activate():
            assert numbers() == [first, first]
    seeded = spawn_procs({"gpus": 2}, name="seeded", preload=TORCH)
    seeded.spawn("seeder", Seeder).seed.call(7).get()
    with seeded.activate():
        assert numbers() == [seven, eight]


class Seeder(Actor):
    """An actor that draws random numbers before there are tensors."""

    @endpoint
    def seed(self, number: int) -> None:
        """Seed torch."""
        torch.manual_seed(number + current_rank().rank)


def test_a_state_is_kept_and_set_again(pair: ProcMesh) -> None:
    with pair.activate():
        state = monarch.random.get_state()
        first = numbers()
        assert numbers() != first
        monarch.random.set_state(state)
        assert numbers() == first
    assert type(state.cpu) is monarch.Tensor
    assert state.cuda.numel() == 0


def test_a_new_state_leaves_the_generators_as_they_are(pair: ProcMesh) -> None:
    with pair.activate():
        before = monarch.random.get_state()
        unseeded = numbers()
        monarch.random.set_state(before)
        made = monarch.random.new_state(7)
        assert numbers() == unseeded
        monarch.random.set_state(made)
        seeded = numbers()
    with monarch.no_mesh.activate():
        assert seeded == [here(7)] * 2


def test_ranks_use_deterministic_algorithms(pair: ProcMesh) -> None:
    @monarch.remote(propagate=lambda _on: torch.zeros(()))
    def set_and_tell(on: bool) -> Any:
        was = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(on)
        return torch.tensor(float(was and torch.backends.cudnn.deterministic))

    with pair.activate():
        monarch.random.make_deterministic()
        assert values(set_and_tell(False)) == [1.0, 1.0]


def test_without_a_mesh_the_error_says_what_to_activate() -> None:
    with pytest.raises(ValueError, match=r"no device mesh is active: call .* within `with mesh"):
        monarch.random.manual_seed(7)


def test_monarchs_functions_seed_and_restore(pair: ProcMesh) -> None:
    with monarch.no_mesh.activate():
        expected = here(6 ^ 1)
    with pair.activate():
        set_manual_seed_remote(6, 1)
        state = get_rng_state_remote()
        assert numbers() == [expected] * 2
        seed_remote()
        first, second = numbers()
        assert first != second
        set_rng_state_remote(state)
        assert numbers() == [expected] * 2


def test_every_rank_logs_with_its_own_values(pair: ProcMesh) -> None:
    lines: list[OutputLine] = []
    end = on_output(lines.extend)
    try:
        with pair.activate():
            rank = pair.rank_tensor("gpus")
            log_remote("rank %s is here", rank)
            set_logging_level_remote(logging.ERROR)
            log_remote("nobody reads %s", "this")
            log_remote("but this", level=logging.ERROR)
            set_logging_level_remote(logging.NOTSET)
            assert values(rank) == [0, 1]  # both have run all that was issued before
        flush_output()
    finally:
        end()
    texts = sorted(line.text for line in lines)
    name = "monarch.builtins.log"
    assert texts == [
        *[f"{name} ERROR but this"] * 2,
        *[f"{name} WARNING rank tensor({rank}) is here" for rank in range(2)],
    ]
