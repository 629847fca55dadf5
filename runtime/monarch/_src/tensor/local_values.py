"""Values between the program and tensors of a mesh: `fetch_shard`, `inspect`, `show`, and lifting.

Local tensors become tensors of the mesh, with the same values on every rank. Code that needs the
values of a tensor, such as `loss.item()`, is refused, or reads the first rank.

Runs in: the client, on the thread that runs the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from monarch._src.actor.call.on_ranks import OnRanksError
from monarch._src.actor.future import Future
from monarch._src.config import settings
from monarch._src.failures.report import at_text
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.opaque import OBJECT
from monarch._src.tensor.operations.kinds import own_kind
from monarch._src.tensor.operations.result_metas import CPU, metas
from monarch._src.tensor.remote.errors import remote_exception
from monarch._src.tensor.state.instructions import Failure
from monarch._src.tensor.state.metas import Handle, Storage
from monarch._src.tensor.tensor import Tensor, wrap
from monarch._src.tensor.tensor_errors import value_needed
from monarch._src.tensor.torch_modules import locally, plain_values, torch, without_modes
from monarch._src.tensor.trees import put_together, taken_apart

MOST_LIFTED_BYTES = 1 << 16


def fetch_shard(
    obj: Any, shard: Mapping[str, int] | None = None, **coordinates: int
) -> Future[Any]:
    """The values that tensors have on one rank of their mesh, as local tensors.

    The rank first runs all operations that the program has issued before.

    Args:
        obj: a tensor of a mesh, or nested lists, tuples and dicts with tensors among their values.
        shard: the coordinates of the rank; dims that are left out have 0.
        coordinates: the same as keywords, as in `fetch_shard(x, gpus=1)`.

    Returns:
        A future of `obj` with local tensors in place of those of the mesh.

    Raises:
        ValueError: no such rank; tensors of several meshes; a tensor that was dropped.
        TypeError: an OpaqueRef.
        MeshStoppedError: the mesh was stopped.

    The future raises `RemoteException` if a tensor has no value, since an operation has failed on
    that rank, and `SupervisionError` if the rank has died.
    """
    found = taken_apart(obj)
    channel = found.channel
    if channel is None:
        return Future[Any].of(obj)
    if any(handle.meta is OBJECT for handle in found.handles):
        raise OnRanksError(
            "an OpaqueRef has no values to fetch; get one of its object's with a remote function: "
            "monarch.call_on_shard_and_fetch(function, ref)"
        )
    point = point_of(channel, {**(shard or {}), **coordinates})
    numbers = [handle.number for handle in found.handles]
    tree, handles = found.tree, found.handles

    def read(unpickle: Callable[[], Any]) -> Any:
        with locally():
            answer = unpickle()
            if isinstance(answer, Failure):
                raise remote_exception(answer, channel)
            tensors = [_local(one) for one in answer]
        assert handles  # their tensors live on the rank until the answer is here
        return put_together(tree, tensors)

    return channel.driver.fetch(channel, point, numbers, read)


def _local(one: Any) -> Any:
    """The tensor of an answer: small ones travel as bytes."""
    if type(one) is not tuple:
        return one
    dtype, shape, data = cast("tuple[Any, Any, bytes]", one)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def inspect(obj: Any, shard: Mapping[str, int] | None = None, **coordinates: int) -> Any:
    """Wait for `fetch_shard(...)`, and return its value."""
    return fetch_shard(obj, shard, **coordinates).get()


def point_of(channel: Channel, given: Mapping[str, int]) -> dict[str, int]:
    """The coordinates of a rank of a channel: those that are given, and 0.

    Raises:
        ValueError: no such dim, or a coordinate out of range.
    """
    sizes = channel.region.sizes
    for dim, index in given.items():
        if dim not in sizes:
            dims = ", ".join(sizes) or "none"
            raise ValueError(f"{channel.name} has no dim {dim!r}; it has {dims}")
        if not 0 <= index < sizes[dim]:
            raise ValueError(f"{dim}={index}: {channel.name} has {dim}=0 to {sizes[dim] - 1}")
    return {dim: given.get(dim, 0) for dim in sizes}


def show(obj: Any, shard: Mapping[str, int] | None = None, **coordinates: int) -> None:
    """Print the values of each rank, or of one; a notebook shows the printed text.

    Args:
        obj: as for `fetch_shard`.
        shard, coordinates: the rank to show; without them, `show` prints all ranks in turn.
    """
    channel = taken_apart(obj).channel
    if channel is None or shard or coordinates:
        points = [{**(shard or {}), **coordinates}]
    else:
        points = [dict(point) for point in channel.region.extent.points()]
    futures = [fetch_shard(obj, point) for point in points]
    for point, future in zip(points, futures, strict=True):
        name = "" if channel is None else f"{channel.name}{at_text(point)}:\n"
        with without_modes():
            print(f"{name}{future.get()!r}")  # noqa: T201  its task


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
