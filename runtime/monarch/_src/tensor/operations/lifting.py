"""Local tensors that become tensors of a mesh, with the same values on every rank."""

from __future__ import annotations

from typing import Any

from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.operations.kinds import own_kind
from monarch._src.tensor.operations.result_metas import CPU, metas
from monarch._src.tensor.state.metas import Handle, Storage
from monarch._src.tensor.tensor import Tensor, wrap
from monarch._src.tensor.torch_modules import torch, without_modes

MOST_LIFTED_BYTES = 1 << 16


def lift(channel: Channel, local: Any, site: int) -> Tensor:
    """Send the values of a local tensor to every rank; the result is contiguous."""
    with without_modes(), torch.no_grad():
        plain = local.detach().cpu().contiguous()
        # An axis of size 1 may have any stride, which reshape(-1) keeps and view refuses.
        plain = plain.as_strided(plain.shape, torch.empty(plain.shape, device="meta").stride())
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype, shape, strides = plain.dtype, tuple(plain.shape), tuple(plain.stride())
    kind = own_kind("monarch::lift", dtype, shape)
    number = channel.record(kind, (), (data,), site, len(data))
    meta = metas.of(shape, strides, 0, dtype, CPU, len(data))
    return wrap(Handle(number, meta, Storage(), channel))
