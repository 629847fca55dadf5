"""Everything public about tensors, loaded by its first use. Re-exported by `monarch`."""

from __future__ import annotations

from monarch._src.errors import RemoteException
from monarch._src.tensor.active_mesh import NoMesh, activate, deactivate, get_active_mesh, no_mesh
from monarch._src.tensor.channels.driver import coalescing
from monarch._src.tensor.local_values import fetch_shard, inspect, show
from monarch._src.tensor.methods import rank_tensor, reduce, reduce_, slice_mesh, to_mesh
from monarch._src.tensor.opaque import OpaqueRef
from monarch._src.tensor.operations import (
    dispatch as _dispatch,  # connects tensors with their dispatcher
)
from monarch._src.tensor.operations.gradients import grad_function, grad_generator
from monarch._src.tensor.regions.compiled import compile
from monarch._src.tensor.remote import (
    actor_calls as _actor_calls,  # connects tensors with calls of actors
)
from monarch._src.tensor.remote.functions import Remote, call_on_shard_and_fetch, remote
from monarch._src.tensor.remote.opaque_objects import OpaqueObject, opaque_method
from monarch._src.tensor.remote.process_groups import RemoteProcessGroup, process_group
from monarch._src.tensor.streams import Borrow, Stream, get_active_stream
from monarch._src.tensor.tensor import Tensor

del _actor_calls, _dispatch

__all__ = [
    "Borrow",
    "NoMesh",
    "OpaqueObject",
    "OpaqueRef",
    "Remote",
    "RemoteException",
    "RemoteProcessGroup",
    "Stream",
    "Tensor",
    "activate",
    "call_on_shard_and_fetch",
    "coalescing",
    "compile",
    "deactivate",
    "fetch_shard",
    "get_active_mesh",
    "get_active_stream",
    "grad_function",
    "grad_generator",
    "inspect",
    "no_mesh",
    "opaque_method",
    "process_group",
    "rank_tensor",
    "reduce",
    "reduce_",
    "remote",
    "show",
    "slice_mesh",
    "to_mesh",
]
