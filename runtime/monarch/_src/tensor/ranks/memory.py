"""The memory of a rank: of its tensors, as texts for the explorer, and of its GPU, by torch.

Runs in: a rank; `memory_texts` on its receiving thread, beside the operations, and the rest on the
thread of the tensors of the mesh.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from monarch._src.actor.context import current
from monarch._src.tensor.state.instructions import Failure
from monarch._src.tensor.torch_modules import TorchTensor, torch

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def memory_texts(values: Iterable[Any]) -> dict[str, str]:
    """How many tensors there are and their bytes: in all, and by device and dtype.

    Memory that several tensors share counts once, for the first of them. `failed` counts tensors
    without values, since an operation has failed.
    """
    tensors: list[Any] = []
    failed = 0
    for one in values:
        if isinstance(one, TorchTensor):
            tensors.append(one)
        failed += isinstance(one, Failure)
    seen: set[tuple[str, int]] = set()
    kinds: dict[str, tuple[int, int]] = {}
    total = 0
    for one in tensors:
        nbytes = 0
        if one.layout is torch.strided:  # others have no storage of their own
            storage = one.untyped_storage()
            key = (str(one.device), storage.data_ptr())
            nbytes = 0 if key in seen else storage.nbytes()
            seen.add(key)
        total += nbytes
        kind = f"{str(one.dtype).removeprefix('torch.')} on {one.device}"
        count, before = kinds.get(kind, (0, 0))
        kinds[kind] = (count + 1, before + nbytes)
    texts = {"tensors": _text(len(tensors), total)}
    largest_first = sorted(kinds.items(), key=lambda pair: -pair[1][1])
    texts.update({kind: _text(*found) for kind, found in largest_first})
    if failed:
        texts["failed"] = f"{failed:,}"
    return texts


def _text(count: int, nbytes: int) -> str:
    """`12, 4.2 MiB`."""
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count:,}, {size:,.{1 if unit else 0}f} {UNITS[unit]}"


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
