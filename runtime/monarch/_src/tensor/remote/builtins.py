"""Functions that are remote already: log on every rank, and torch's functions of random numbers.

The names are Monarch's. Runs in: the client; each rank runs the functions that the client sends.
"""

from __future__ import annotations

import logging
from typing import Any

from monarch._src.tensor.remote.functions import no_result, remote
from monarch._src.tensor.torch_modules import torch

LOGGER = "monarch.builtins.log"


@remote(propagate=no_result)
def log_remote(message: str, /, *args: Any, level: int = logging.WARNING, **options: Any) -> None:
    """Log a message on every rank; `args` may have tensors of the mesh, whose values are logged.

    Args:
        level: as in the module `logging`.
    """
    logging.getLogger(LOGGER).log(level, message, *args, **options)


@remote(propagate=no_result)
def set_logging_level_remote(level: int) -> None:
    """The least level that `log_remote` logs."""
    logging.getLogger(LOGGER).setLevel(level)


@remote(propagate=no_result)
def set_manual_seed_remote(seed: int, process_idx: int = 0) -> None:
    """Seed every rank with `seed ^ process_idx`. See also `monarch.random.manual_seed`."""
    torch.manual_seed(seed ^ process_idx)


@remote(propagate="cached")
def get_rng_state_remote() -> Any:
    """The state of the generator of the CPU, as a tensor on each rank."""
    return torch.get_rng_state()


@remote(propagate=no_result)
def set_rng_state_remote(new_state: Any) -> None:
    """Set the state of the generator of the CPU."""
    torch.set_rng_state(new_state.cpu())


@remote(propagate=no_result)
def seed_remote() -> None:
    """Seed every rank with a number that differs from rank to rank and from run to run."""
    torch.seed()


random_seed_remote = seed_remote


@remote(propagate=no_result)
def manual_seed_cuda_remote(seed: int) -> None:
    """Seed the generator of the current GPU of every rank."""
    torch.cuda.manual_seed(seed)


@remote(propagate=no_result)
def manual_seed_all_cuda_remote(seed: int) -> None:
    """Seed the generators of all GPUs of every rank."""
    torch.cuda.manual_seed_all(seed)


@remote(propagate="cached")
def get_rng_state_all_cuda_remote() -> list[Any]:
    """The states of the generators of all GPUs of every rank; all ranks must have as many."""
    return torch.cuda.get_rng_state_all()


@remote(propagate=no_result)
def set_rng_state_all_cuda_remote(states: list[Any]) -> None:
    """Set the states of the generators of all GPUs."""
    torch.cuda.set_rng_state_all([state.cpu() for state in states])
