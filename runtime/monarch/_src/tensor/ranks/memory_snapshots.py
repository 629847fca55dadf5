"""What torch records of the memory of the GPU of this rank.

Runs in: ranks, on the thread of the tensors of the mesh.
"""

from __future__ import annotations

import os

from monarch._src.actor.context import current
from monarch._src.tensor.torch_modules import torch


def _check() -> None:
    if not torch.cuda.is_available():
        raise RuntimeError(
            "torch records the memory of GPUs alone, and this rank has none; "
            "%monarch ps and monarch.observe.ranks() show the memory of its process"
        )


def record() -> None:
    """Have torch record the allocations of this rank from here on."""
    _check()
    torch.cuda.memory._record_memory_history()


def dump(folder: str) -> None:
    """Write the recorded allocations of this rank to a file in `folder`."""
    _check()
    context = current.get()
    assert context is not None
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"snapshot_{context.actor_instance.rank.rank}.pickle")
    torch.cuda.memory._dump_snapshot(path)
