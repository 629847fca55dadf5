"""Tensors on the ranks of a mesh: see `docs/how-to/use_tensors.md`.

Every name here is an attribute of `monarch` too, under which programs use it. Importing this
imports torch.
"""

from monarch._src.tensor.api import (
    Borrow,
    OpaqueObject,
    OpaqueRef,
    Remote,
    RemoteException,
    RemoteProcessGroup,
    Stream,
    Tensor,
    call_on_shard_and_fetch,
    coalescing,
    compile,
    fetch_shard,
    get_active_mesh,
    get_active_stream,
    grad_function,
    grad_generator,
    inspect,
    no_mesh,
    opaque_method,
    reduce,
    reduce_,
    remote,
    show,
    slice_mesh,
    to_mesh,
)
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = [
    "Borrow",
    "OpaqueObject",
    "OpaqueRef",
    "Remote",
    "RemoteException",
    "RemoteProcessGroup",
    "Stream",
    "Tensor",
    "call_on_shard_and_fetch",
    "coalescing",
    "compile",
    "fetch_shard",
    "get_active_mesh",
    "get_active_stream",
    "grad_function",
    "grad_generator",
    "inspect",
    "no_mesh",
    "opaque_method",
    "reduce",
    "reduce_",
    "remote",
    "show",
    "slice_mesh",
    "to_mesh",
]
