"""The methods of tensors that concern their mesh: reduce, move, slice, drop.

Runs in: the client.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any, cast

from monarch._src.mesh.meshes import ProcMesh
from monarch._src.tensor.active_mesh import active_stream
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.channels.driver import Driver, channel_of
from monarch._src.tensor.local_values import lift
from monarch._src.tensor.local_values import values_of_first_rank as values_of_first_rank
from monarch._src.tensor.operations.indices import has_number as has_number
from monarch._src.tensor.operations.indices import part as part
from monarch._src.tensor.operations.indices import write as write
from monarch._src.tensor.operations.kinds import kind_with_outputs, own_kind
from monarch._src.tensor.operations.result_metas import CPU, metas
from monarch._src.tensor.regions.recording import active, refuse
from monarch._src.tensor.remote.process_groups import dims_of, group_of
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.instructions import NOTHING
from monarch._src.tensor.state.layouts import layout_of_dims, layout_of_ranks, moves
from monarch._src.tensor.state.metas import Handle, Storage
from monarch._src.tensor.tensor import Tensor, wrap
from monarch._src.tensor.tensor_errors import DROPPED, lent, not_owned, unusable
from monarch._src.tensor.torch_modules import TorchTensor, map_tree, pytree, torch

REDUCTIONS = ("stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor")
BUCKET_BYTES = 25 << 20
"""The bytes that are combined in one exchange, at most, unless one tensor has more; as in DDP."""
_BITWISE = ("band", "bor", "bxor")
# The dtypes that gloo combines.
_COMBINED = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
    torch.int32, torch.int64,
)  # fmt: skip


def _site() -> int:
    return sites.number(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]


def _usable(tensor: Any, name: str) -> Handle:
    if type(tensor) is not Tensor:
        raise TypeError(f"{name} takes a tensor of a mesh, not {type(tensor).__name__}")
    handle = tensor.monarch_handle
    if handle.storage.unusable:
        raise unusable(handle)
    watch = active()
    if watch is not None:
        watch.note(tensor)
    return handle


def _new(channel: Channel, number: int, shape: Sequence[int], dtype: Any) -> Tensor:
    """A contiguous tensor with storage of its own."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    nbytes = prod(shape) * dtype.itemsize
    meta = metas.of(tuple(shape), tuple(strides), 0, dtype, CPU, nbytes)
    return wrap(Handle(number, meta, Storage(), channel))


def drop(tensor: Tensor) -> None:
    """See `Tensor.drop`."""
    handle = tensor.monarch_handle
    storage = handle.storage
    if storage.unusable == DROPPED:
        return
    if storage.unusable:
        raise unusable(handle)
    if storage.borrowed:
        raise not_owned(handle)
    if storage.lent:
        raise lent(handle)
    kind = own_kind("monarch::drop", stores=NOTHING)
    handle.channel.record(kind, (handle.number,), (), _site())
    storage.unusable = DROPPED


def copied(tensor: Tensor, memo: dict[Any, Any]) -> Tensor:
    """A copy whose memory other copies share, if they are of tensors that share that of this one.

    `memo`: of `copy.deepcopy`.
    """
    handle = _usable(tensor, "deepcopy")
    meta = handle.meta
    size, rest = divmod(meta.nbytes, meta.dtype.itemsize)
    with torch.no_grad():
        if meta.bits or rest:
            return tensor.detach().clone()
        known = memo.setdefault("monarch.tensors", {})
        if id(handle.storage) not in known:
            flat = tensor.detach().as_strided((size,), (1,), 0).clone()
            known[id(handle.storage)] = flat, handle  # so that no other storage gets this identity
        flat = known[id(handle.storage)][0]
        if flat.dtype != meta.dtype:
            flat = flat.view(meta.dtype)
        return flat.as_strided(meta.shape, meta.strides, meta.offset).detach()


# --- reduce ---------------------------------------------------------------------------------------


def reduce(
    tensors: Any, dims: str | Sequence[str] = (), reduction: str = "sum", scatter: bool = False,
    mesh: ProcMesh | None = None, out: Tensor | None = None,
) -> Any:  # fmt: skip
    """Combine the values that a tensor has on the ranks along dims of its mesh.

    Each rank gets the result for its own coordinates in the other dims. The ranks combine their
    values with torch.distributed. If an operation has failed on a rank, so that it has no value, no
    rank of its group gets a result.

    Args:
        tensors: a tensor of a mesh, or nested lists, tuples and dicts of tensors. Those of one
            dtype are combined in one exchange, but for `stack` and `scatter`: many small gradients
            take little longer than one.
        dims: the name of a dim, or several; none means all.
        reduction: `sum`, `avg`, `product`, `min`, `max`; `band`, `bor`, `bxor` of integers; or
            `stack`, which puts the values of the n ranks behind one another in a new first axis.
        scatter: each rank gets one part of the result: the first axis of the tensor has size n,
            and rank i gets row i, without that axis. With `stack`, row i of every rank, stacked.
        mesh: the mesh that `to_mesh` copies the result to; None: the result stays.
        out: the tensor that `reduce` writes the result to.

    Raises:
        KeyError: no such dim.
        ValueError: no such reduction, a dtype that the reduction does not take, or a shape that
            does not fit.
        RuntimeError: autograd would have to pass through it.
    """
    if type(tensors) is not Tensor:
        if out is not None:
            raise ValueError("reduce: out goes with one tensor")
        return _reduce_tree(tensors, dims, reduction, scatter, mesh, _site())
    tensor = tensors
    handle = _usable(tensor, "reduce")
    channel = cast(Channel, handle.channel)
    names = dims_of("reduce", channel, dims)
    size = prod(channel.region.sizes[dim] for dim in names)
    shape = _checked(tensor, reduction, scatter, size)
    if out is not None and tuple(_usable(out, "reduce").meta.shape) != tuple(shape):
        raise ValueError(f"out has shape {list(out.shape)}, and the result {list(shape)}")
    site = _site()
    layout = layout_of_dims(channel.region, names)
    group = group_of((channel,), tuple(names), layout, site)
    kind = own_kind("monarch::reduce", group, reduction, scatter)
    number = channel.record(kind, (handle.number,), (), site)
    result = _new(channel, number, shape, tensor.dtype)
    if mesh is not None:
        result = to_mesh(result, mesh)
    return result if out is None else out.copy_(result)


def reduce_(
    tensors: Any, dims: str | Sequence[str] = (), reduction: str = "sum", scatter: bool = False,
    mesh: ProcMesh | None = None,
) -> Any:  # fmt: skip
    """`reduce`, and write each result into its tensor, whose shape has to fit."""
    if mesh is not None:
        raise ValueError("reduce_ writes into the tensor itself; use reduce(mesh=...)")
    if type(tensors) is Tensor:
        with torch.no_grad():
            return reduce(tensors, dims, reduction, scatter, out=tensors)
    if scatter or reduction == "stack":
        return map_tree(
            lambda one: reduce_(one, dims, reduction, scatter) if type(one) is Tensor else one,
            tensors,
        )
    with torch.no_grad():
        found = iter(
            pytree.tree_leaves(_reduce_tree(tensors, dims, reduction, False, None, _site()))
        )
        return map_tree(
            lambda one: one.copy_(value) if type(value := next(found)) is Tensor else value, tensors
        )


def _reduce_tree(
    tensors: Any, dims: str | Sequence[str], reduction: str, scatter: bool,
    mesh: ProcMesh | None, site: int,
) -> Any:  # fmt: skip
    if scatter or reduction == "stack" or mesh is not None:
        return map_tree(
            lambda one: reduce(one, dims, reduction, scatter, mesh) if type(one) is Tensor else one,
            tensors,
        )
    leaves, spec = pytree.tree_flatten(tensors)
    places = [place for place, one in enumerate(leaves) if type(one) is Tensor]
    for place in places:  # so that an error comes before anything is done
        channel = cast(Channel, _usable(leaves[place], "reduce").channel)
        _checked(leaves[place], reduction, scatter, 1)
        dims_of("reduce", channel, dims)
    for bucket in _buckets([leaves[place] for place in places]):
        found = _reduce_together([leaves[places[at]] for at in bucket], dims, reduction, site)
        for at, result in zip(bucket, found, strict=True):
            leaves[places[at]] = result
    return pytree.tree_unflatten(leaves, spec)


def _buckets(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The places of tensors that are combined together: those of one channel and one dtype."""
    full: list[list[int]] = []
    filling: dict[tuple[int, Any], tuple[list[int], int]] = {}
    for place, tensor in enumerate(tensors):
        key = (id(tensor.monarch_handle.channel), tensor.dtype)
        nbytes = tensor.numel() * tensor.element_size()
        bucket, before = filling.get(key, ([], 0))
        if bucket and before + nbytes > BUCKET_BYTES:
            full.append(bucket)
            bucket, before = [], 0
        filling[key] = ([*bucket, place], before + nbytes)
    return [*full, *(bucket for bucket, _ in filling.values())]


def _reduce_together(
    tensors: Sequence[Tensor], dims: str | Sequence[str], reduction: str, site: int
) -> list[Tensor]:
    handles = [_usable(one, "reduce") for one in tensors]
    channel = cast(Channel, handles[0].channel)
    names = dims_of("reduce", channel, dims)
    layout = layout_of_dims(channel.region, names)
    group = group_of((channel,), tuple(names), layout, site)
    kind = kind_with_outputs("monarch::reduce_together", len(tensors), group, reduction)
    first = channel.record(kind, tuple(one.number for one in handles), (), site)
    return [
        _new(channel, first + at, tuple(one.shape), one.dtype) for at, one in enumerate(tensors)
    ]


def _checked(tensor: Tensor, reduction: str, scatter: bool, size: int) -> tuple[int, ...]:
    """The shape of the result of a reduce."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: give one of {', '.join(REDUCTIONS)}")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "reduce has no gradient: reduce tensor.detach(), or say how gradients pass through it "
            "with monarch.grad_function"
        )
    dtype, shape = tensor.dtype, tuple(tensor.shape)
    if reduction != "stack" and dtype not in _COMBINED:
        instead = "tensor.to(torch.int32)"
        if dtype.is_complex:
            instead = "torch.view_as_real(tensor)"
        elif dtype.is_floating_point:
            instead = "tensor.to(torch.float32)"
        raise ValueError(
            f"ranks cannot combine values of {dtype}; convert them first, as in {instead}, or use "
            "reduction='stack'"
        )
    if reduction == "avg" and not dtype.is_floating_point:
        raise ValueError(f"avg needs floating point, and the tensor has {dtype}; use sum")
    if reduction in _BITWISE and dtype.is_floating_point:
        raise ValueError(f"{reduction} needs integers, and the tensor has {dtype}")
    if scatter and (not shape or shape[0] != size):
        raise ValueError(
            f"scatter=True gives each of {size} ranks one row, so the first axis of the tensor "
            f"has to have size {size}; its shape is {list(shape)}"
        )
    if reduction == "stack":
        return shape if scatter else (size, *shape)
    return shape[1:] if scatter else shape


# --- from mesh to mesh ----------------------------------------------------------------------------


def slice_mesh(tensors: Any, **dims: Any) -> Any:
    """The same tensors on a part of their mesh, selected as `mesh.slice` does. Nothing is sent.

    The parts share the memory of the tensors on the ranks that are selected.

    Raises:
        TypeError, IndexError: no such dim, or no such coordinate.
        RuntimeError: autograd would have to pass through it.
    """
    if type(tensors) is not Tensor:
        return map_tree(
            lambda one: slice_mesh(one, **dims) if type(one) is Tensor else one, tensors
        )
    handle = _usable(tensors, "slice_mesh")
    if tensors.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "slice_mesh has no gradient: slice tensor.detach(), or say how gradients pass through "
            "it with monarch.grad_function"
        )
    channel = cast(Channel, handle.channel)
    part = cast(Driver, channel.driver).channel(channel.mesh.slice(**dims), channel.stream)
    return wrap(Handle(handle.number, handle.meta, handle.storage, part, handle, handle.base))


def to_mesh(tensors: Any, mesh: ProcMesh, stream: Any = None) -> Any:
    """Copy tensors to the ranks of another mesh.

    `mesh` and the mesh of a tensor have to be of the same procs. Each rank of `mesh` gets the value
    of the rank with the same coordinates. Along dims that the mesh of the tensor lacks, all ranks
    get the same value, as in `t.slice_mesh(gpus=0).to_mesh(mesh)`. If the dims do not fit, and
    `mesh` has the same ranks in one order, as after `rename`, `split` or `flatten`, each rank keeps
    its own value. Every rank gets the value of a local tensor.

    Args:
        tensors: a tensor, or nested lists, tuples and dicts of tensors.
        mesh: the mesh that gets them.
        stream: the `monarch.Stream` that the copies belong to; None: that of each tensor, and the
            active one for a local tensor.

    Raises:
        ValueError: the dims do not fit; the meshes are of different procs.
        RuntimeError: autograd would have to pass through it.
        MeshStoppedError, SupervisionError: one of the meshes was stopped, or a rank has died.
    """
    if not isinstance(tensors, TorchTensor):
        return map_tree(
            lambda one: to_mesh(one, mesh, stream) if isinstance(one, TorchTensor) else one, tensors
        )
    site = _site()
    if type(tensors) is not Tensor:
        target = channel_of(mesh, active_stream() if stream is None else stream.name)
        return lift(target, tensors, site).requires_grad_(tensors.requires_grad)
    handle = _usable(tensors, "to_mesh")
    source = cast(Channel, handle.channel)
    target = channel_of(mesh, source.stream if stream is None else stream.name)
    if source is target:
        return tensors
    refuse("to_mesh()", "move tensors before or after the call")
    if tensors.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "to_mesh has no gradient: move tensor.detach(), or say how gradients pass through it "
            "with monarch.grad_function"
        )
    if source.driver is not target.driver:
        raise ValueError(
            f"the tensor is on procs {source.name!r}, and the mesh on other procs, "
            f"{target.name!r}; make both meshes slices of one mesh, or move the values with "
            "monarch.to_mesh(monarch.fetch_shard(tensor).get(), mesh)"
        )
    pairs = moves(source.region, target.region)
    shape, dtype = tuple(handle.meta.shape), handle.meta.dtype
    moved = {rank: origin for rank, origin in pairs.items() if rank != origin}
    ranks = sorted({*moved.keys(), *moved.values()})
    layout = layout_of_ranks(ranks)
    # Two streams that receive side by side would take each other's values from one group.
    key = "move", target.region, target.stream
    group = group_of((source, target), key, _with(layout, source, target), site)
    targets: dict[int, list[int]] = {}
    for rank, origin in moved.items():
        targets.setdefault(origin, []).append(rank)
    send = own_kind("monarch::send", group, stores=NOTHING)
    receive = own_kind("monarch::receive", group, dtype, shape)
    own = [rank for rank, origin in pairs.items() if rank == origin]
    # Were a move of another thread in between, ranks could wait for each other in a cycle.
    with source.driver.lock:
        handover = source.new_handover(own) if source.stream != target.stream and own else None
        source.record(send, (handle.number,), (targets, handover), site)
        number = target.record(receive, (), (pairs, handle.number, handover), site)
    return _new(target, number, shape, dtype)


def _with(layout: dict[int, tuple[int, int, int]], source: Channel, target: Channel) -> Any:
    """The layout, and a group of one for each rank that neither sends nor gets anything."""
    ranks = [*source.region.ranks(), *target.region.ranks()]
    alone = {rank: (1 + rank, 0, 1) for rank in ranks}
    return {**alone, **layout}


def rank_tensor(mesh: ProcMesh, dim: str) -> Tensor:
    """See `ProcMesh.rank_tensor`."""
    channel = channel_of(mesh, active_stream())
    if dim not in channel.region.sizes:
        have = ", ".join(channel.region.sizes) or "none"
        raise KeyError(f"{channel.name} has no dim {dim!r}; it has {have}")
    region = channel.region
    points = zip(region.ranks(), region.extent.points(), strict=True)
    coordinates = {rank: dict(point)[dim] for rank, point in points}
    number = channel.record(own_kind("monarch::rank"), (), (coordinates,), _site())
    return _new(channel, number, (), torch.int64)
