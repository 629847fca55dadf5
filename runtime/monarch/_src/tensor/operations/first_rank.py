"""Code that needs the values of a tensor, such as `loss.item()`: refused, or read from a rank.

Runs in: the client, on the thread that needs them.
"""

from __future__ import annotations

from typing import Any

from monarch._src.config import settings
from monarch._src.tensor.fetching import inspect
from monarch._src.tensor.tensor_errors import value_needed


def values_of_first_rank(obj: Any, name: str) -> Any:
    """The values of tensors on the first rank of their mesh, as local tensors.

    `obj`: as for `fetch_shard`. `name`: the operation that needs them.

    Raises:
        RuntimeError: `configure(tensor_item="fetch")` is not set; a compiled function is recorded.
        RemoteException, SupervisionError: as `fetch_shard`.
    """
    if settings().tensor_item != "fetch":
        raise value_needed(name)
    return inspect(obj)
