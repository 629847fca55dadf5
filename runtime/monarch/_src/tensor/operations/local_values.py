"""Values that pass between the program and tensors of a mesh.

Local tensors become tensors of the mesh, with the same values on every rank. Code that needs the
values of a tensor, such as `loss.item()`, is refused, or reads the first rank.

Runs in: the client, on the thread that runs the operation.
"""

from __future__ import annotations

from typing import Any

from monarch._src.config import settings
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.fetching import inspect
from monarch._src.tensor.operations.kinds import own_kind
from monarch._src.tensor.operations.result_metas import CPU, metas
from monarch._src.tensor.state.metas import Handle, Storage
from monarch._src.tensor.tensor import Tensor, wrap
from monarch._src.tensor.tensor_errors import value_needed
from monarch._src.tensor.torch_modules import plain_values, torch, without_modes

MOST_LIFTED_BYTES = 1 << 16


def lift(channel: Channel, local: Any, site: int) -> Tensor:
    """Send the values of a local tensor to every rank; the result is contiguous."""
    with without_modes(), torch.no_grad():
        plain = plain_values(local.detach().cpu()).contiguous()
        # An axis of size 1 may have any stride, which reshape(-1) keeps and view refuses.
        plain = plain.as_strided(plain.shape, torch.empty(plain.shape, device="meta").stride())
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype, shape, strides = plain.dtype, tuple(plain.shape), tuple(plain.stride())
    kind = own_kind("monarch::lift", dtype, shape)
    number = channel.record(kind, (), (data,), site, len(data))
    meta = metas.of(shape, strides, 0, dtype, CPU, len(data))
    return wrap(Handle(number, meta, Storage(), channel))


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
