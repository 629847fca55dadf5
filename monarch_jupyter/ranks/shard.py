"""The summary of a rank's shard of a tensor: figures, and a picture small enough to send.

Runs in: ranks. Only the summary travels, so a shard of any size can be looked at.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

MOST_ROWS = 48
MOST_COLUMNS = 96
_CHUNK = 1 << 22  # elements that are copied to the host at once


@dataclass(frozen=True)
class Shard:
    """One rank's part of a tensor.

    `low`, `mean`, `high`: of the finite elements; None if there are none. `odd`: the number of
    elements that are not finite. `picture`: rows of values, each the mean of a block of elements,
    NaN if one of them is not finite. A tensor of more than two dims has all but the last one in
    its rows. `contents`: a digest of all elements, since figures and picture do not tell shards
    apart that differ within a block.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    low: float | None
    mean: float | None
    high: float | None
    odd: int
    picture: tuple[tuple[float, ...], ...]
    contents: str


def summarize(tensor: torch.Tensor) -> Shard:
    """The summary of a shard. Of complex elements, their absolute values are taken."""
    import torch

    found = tensor.detach()
    values = (found.abs() if found.is_complex() else found).to(torch.float64)
    finite = values[torch.isfinite(values)]
    low = mean = high = None
    if finite.numel():
        low, mean, high = (float(one) for one in (finite.min(), finite.mean(), finite.max()))
    return Shard(
        tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device.type,
        low, mean, high, values.numel() - finite.numel(), _picture(values), _digest(found),
    )  # fmt: skip


def _digest(tensor: torch.Tensor) -> str:
    """A digest of the bytes of all elements, on any device."""
    import torch

    found = hashlib.blake2b(digest_size=16)
    flat: Any = tensor.resolve_conj().resolve_neg().reshape(-1)
    for part in flat.split(_CHUNK):
        found.update(memoryview(part.contiguous().cpu().view(torch.uint8).numpy()))
    return found.hexdigest()[:8]


def _picture(values: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    import torch

    if not values.numel():
        return ()
    flat = values.reshape(-1, values.shape[-1] if values.dim() else 1)
    marked = torch.where(torch.isfinite(flat), flat, math.nan)
    size = min(MOST_ROWS, flat.shape[0]), min(MOST_COLUMNS, flat.shape[1])
    small = torch.nn.functional.adaptive_avg_pool2d(marked[None], size)[0]
    rows = cast("list[list[float]]", small.cpu().tolist())  # pyright: ignore[reportUnknownMemberType]
    return tuple(tuple(row) for row in rows)
