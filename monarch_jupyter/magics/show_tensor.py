"""The shards of a tensor of a mesh, for `%monarch show NAME`."""

from __future__ import annotations

import sys
from typing import Any

import monarch
from monarch import frontend
from monarch_jupyter.ranks.shard import summarize
from monarch_jupyter.rendering.shards import ShardsView


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of a mesh. Does not import torch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return isinstance(value, monarch.Tensor)


def show_tensor(tensor: Any) -> ShardsView:
    """Figures and a picture of the shard of each rank. Blocks until the ranks have answered.

    Args:
        tensor: a `monarch.Tensor`. Its ranks summarize it, so its elements do not travel.

    Raises:
        RemoteException: the operation that makes it has failed. SupervisionError: a rank is dead.
    """
    from monarch.tensors import remote

    found = remote(summarize).call(tensor).get()
    return ShardsView(repr(tensor).strip("<>"), found.values(), frontend.coordinates(found))
