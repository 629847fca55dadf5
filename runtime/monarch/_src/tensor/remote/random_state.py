"""The random numbers of ranks: their seeds, and states that the client keeps and sets.

Runs in: the client; ranks run the functions that the client sends, in the order of the program.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, cast

from monarch._src.tensor.remote.functions import no_result, remote
from monarch._src.tensor.tensor import Tensor
from monarch._src.tensor.torch_modules import torch

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


class State(NamedTuple):
    """The state of torch's generators on each rank of a mesh, which stays on the ranks.

    `cpu` is of the generator of the CPU, `cuda` of that of the rank's GPU; `cuda` has no elements
    where a rank has no GPU.
    """

    cpu: Tensor
    cuda: Tensor


@remote(propagate="cached")
def _get_state() -> tuple[Any, Any]:
    on_gpu = torch.cuda.is_available()
    return torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else torch.empty(0)


@remote(propagate=no_result)
def _set_state(cpu: Any, cuda: Any) -> None:
    torch.set_rng_state(cpu.cpu())
    if len(cuda):
        torch.cuda.set_rng_state(cuda.cpu())


@remote(propagate=no_result)
def _manual_seed(seed: Any) -> None:
    torch.manual_seed(int(seed))


@remote(propagate=no_result)
def _make_deterministic() -> None:
    os.environ[CUBLAS_WORKSPACE] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def manual_seed(seed: int | Tensor) -> None:
    """Seed torch's generators of every rank of the active mesh.

    Args:
        seed: a number gives all ranks the same random numbers. A tensor of one element on the mesh
            seeds each rank with its own value, as `7 + mesh.rank_tensor("gpus")`.

    Raises:
        ValueError: no mesh is active, and `seed` is no tensor of one.
    """
    _manual_seed(seed)


def get_state() -> State:
    """The state of the generators of the active mesh, on its ranks.

    Raises:
        ValueError: no mesh is active.
    """
    return State(*cast("tuple[Tensor, Tensor]", _get_state()))


def set_state(state: State | tuple[Tensor, Tensor]) -> None:
    """Set the generators to a state that `get_state` or `new_state` has returned."""
    cpu, cuda = state
    _set_state(cpu, cuda)


def new_state(seed: int | Tensor) -> State:
    """The state of generators that have just been seeded; those of the ranks keep their state.

    Args:
        seed: as for `manual_seed`.
    """
    before = get_state()
    manual_seed(seed)
    made = get_state()
    set_state(before)
    return made


def make_deterministic() -> None:
    """Have the ranks of the active mesh use deterministic algorithms, also of cuBLAS and cuDNN.

    torch raises for an operation that has none. Call it before the first operation on a GPU.

    Raises:
        ValueError: no mesh is active.
    """
    _make_deterministic()
