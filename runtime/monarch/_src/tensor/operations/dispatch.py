"""One torch operation, from the cell to the batch that is sent to the ranks.

Runs in: the client, on the thread that runs the operation. An operation that was run before with
tensors of the same metas takes the short path: the dispatcher finds it in the cache, records an
instruction, and makes the wrappers of the results.
Invariants: an operation that raises here has recorded nothing.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from monarch._src.tensor import methods
from monarch._src.tensor.active_mesh import active_channel, first_on_gpus, set_dispatch
from monarch._src.tensor.channels.channel import Channel, two_channels
from monarch._src.tensor.devices import check_device
from monarch._src.tensor.local_values import (
    MOST_LIFTED_BYTES,
    lift,
    values_of_first_rank,
)
from monarch._src.tensor.operations import higher_order
from monarch._src.tensor.operations.kinds import new_kind
from monarch._src.tensor.operations.operation import Operation, operation_of
from monarch._src.tensor.operations.result_metas import (
    META,
    Output,
    check_cast,
    layout_of,
    outputs_of,
    run_on_meta,
    stand_in,
)
from monarch._src.tensor.regions.recording import active, refuse
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.instructions import MANY, NOTHING, ONE, Kind, Slot, Value
from monarch._src.tensor.state.metas import UNPLACED, Handle, Storage
from monarch._src.tensor.tensor import Tensor, connect, wrap
from monarch._src.tensor.tensor_errors import (
    lent,
    local_written,
    too_large,
    traced,
    unplaced_strides,
    unusable,
)
from monarch._src.tensor.torch_modules import TorchTensor, locally, pytree, torch, without_modes

MOST_ENTRIES = 1 << 16
_NUMBERS = frozenset((int, float, bool, complex))
_mode_of: Any = torch._C._get_dispatch_mode
_PROXY: Any = torch._C._TorchDispatchModeKey.PROXY  # of make_fx
_default_dtype = torch.get_default_dtype
_REBUILDS = ("_rebuild_tensor", "_rebuild_tensor_v2")


class Entry:
    """An operation in the cache: the kind of its instruction, and its results."""

    __slots__ = ("has_info", "kind", "outputs", "same", "unflatten", "unplaced", "written")

    def __init__(
        self, kind: Kind, outputs: list[Output], unflatten: Callable[[Any], Any],
        written: tuple[int, ...], unplaced: tuple[int, ...],
    ) -> None:  # fmt: skip
        """`written`: the inputs that it writes to; `unplaced`: those that are UNPLACED."""
        self.kind = kind
        self.outputs = outputs
        self.unflatten = unflatten
        self.written = written
        self.unplaced = unplaced
        # Whether one result tells if the others are right: a check of torch's own code reads it.
        self.has_info = "linalg_" in kind.operation and "_ex." in kind.operation
        # The input that is the one result, as in-place operations have; otherwise -1.
        self.same = outputs[0].same if kind.stores == NOTHING and len(outputs) == 1 else -1


_cache: dict[tuple[Any, ...], Entry] = {}


class _Unchecked(threading.local):
    handles: Sequence[Handle] = ()  # the last results of this thread with an info


_unchecked = _Unchecked()


class _HasLocal(Exception):
    """The arguments contain a local tensor."""


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Run an operation on the ranks of the mesh that its tensors are on, or of the active mesh."""
    operation = operation_of(func)
    if _mode_of(_PROXY) is not None:
        raise traced(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]
    handles: list[Handle] = []
    scalars: list[Any] = []
    key: list[Any] = [func, _default_dtype()]
    has_local = False
    try:
        _scan(args, operation.by_type, handles, scalars, key)
        if kwargs:
            for name, value in kwargs.items():
                key.append(name)
                _scan((value,), (name in operation.kwargs_by_type,), handles, scalars, key)
    except _HasLocal:
        has_local = True
    if has_local:  # not in the handler, so that an error has no other one behind it
        return _with_locals(operation, args, kwargs)
    if handles:
        channel: Channel = handles[0].channel
        for handle in handles:
            if handle.channel is not channel:
                raise two_channels(channel, handle.channel)
            if handle.storage.unusable:
                raise unusable(handle)
    else:
        found = None
        if operation.is_factory and not _is_rebuilding(2):
            found = _channel_of_backward(2) or active_channel()
        if found is None:
            return func(*args, **(kwargs or {}))
        channel = found
    if kwargs and kwargs.get("device") is not None and check_device(channel, kwargs["device"]):
        first_on_gpus()
    watch = active()
    if watch is not None:
        for one in pytree.tree_leaves((args, kwargs or {})):
            if type(one) is Tensor:
                watch.note(one)
    entry = _cache.get(tuple(key))
    if entry is None:
        if operation.is_data_dependent:
            local_args, local_kwargs = values_of_first_rank((args, kwargs or {}), operation.name)
            with without_modes():
                return func(*local_args, **local_kwargs)
        if operation.view is not None:
            return _turned_in_place(operation, args, kwargs or {})
        if operation.is_check and handles:
            return _check(operation, args, kwargs or {}, handles, key)
        if len(_cache) >= MOST_ENTRIES:  # a program whose numbers never repeat, such as indices
            _cache.clear()
        entry = _cache[tuple(key)] = _entry(operation, args, kwargs or {}, handles)
    kind = entry.kind
    for place in entry.written:
        if handles[place].storage.lent:
            raise lent(handles[place])
    numbers = tuple([handle.number for handle in handles])
    if entry.unplaced:
        numbers += _bases([handles[place] for place in entry.unplaced])
    first = channel.record(
        kind,
        numbers,
        tuple(scalars),
        sites.number(sys._getframe(2)),  # pyright: ignore[reportPrivateUsage]
    )
    if kind.stores == ONE:
        output = entry.outputs[0]
        if output.shares < 0:
            return wrap(Handle(first, output.meta, Storage(), channel))
        shared = handles[output.shares]
        return wrap(Handle(first, output.meta, shared.storage, channel, None, shared.base))
    if entry.same == 0:
        return args[0]
    return _results(entry, first, channel, handles, args, kwargs)


def _check(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], handles: list[Handle],
    key: list[Any],
) -> None:  # fmt: skip
    """Record an operation that only raises. If it does, the tensors that it checks have no value.

    If it reads the info of an operation, these are all results of that operation.
    """
    checked = list(handles)
    results, _unchecked.handles = _unchecked.handles, ()
    if any(one is handles[0] for one in results):
        checked += [one for one in results if one is not handles[0]]
    channel: Channel = handles[0].channel
    own = (*key, len(checked))
    entry = _cache.get(own)
    if entry is None:
        entry = _cache[own] = _entry(operation, args, kwargs, handles)
        entry.kind = replace(entry.kind, mutated=tuple(range(len(checked))))
    site = sites.number(sys._getframe(3))  # pyright: ignore[reportPrivateUsage]
    channel.record(entry.kind, tuple(one.number for one in checked), (), site)


def _bases(handles: list[Handle]) -> tuple[int, ...]:
    """Numbers of tensors that lose their values if a write to these, which share memory, fails.

    Ranks would not know: if `x[i]` fails, they have nothing that shares the memory of `x`.
    """
    bases = [cast(Handle, handle.base) for handle in handles]
    watch = active()
    if watch is not None:
        for handle, base in zip(handles, bases, strict=True):
            if not watch.recording.has_made(handle.number) or not watch.knows(base.number):
                refuse("a write to x[i], with i on the ranks, from outside", "write x[i] = y in it")
    return tuple([base.number for base in bases])


def _turned_in_place(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a tensor a view of its memory, as `x.t_()` does; a new number on the ranks."""
    tensor = args[0]
    watch = active()
    if watch is not None and not watch.has_made(tensor):
        refuse(f"{operation.name} of a tensor from outside", "use the result of the view instead")
    made = dispatch(operation.view, args, kwargs)
    with locally():
        operation.func(*args, **kwargs)  # the shape and strides that torch in the client sees
    tensor.monarch_handle = made.monarch_handle
    return tensor


def _scan(
    args: tuple[Any, ...] | list[Any], by_type: tuple[bool, ...], handles: list[Handle],
    scalars: list[Any], key: list[Any],
) -> None:  # fmt: skip
    """Add arguments to the key, their tensors to `handles`, and free scalars to `scalars`."""
    for place, one in enumerate(args):
        kind = type(one)  # pyright: ignore[reportUnknownVariableType]
        if kind is Tensor:
            handle = one.monarch_handle
            handles.append(handle)
            key.append(handle.meta)
        elif kind in _NUMBERS:
            if by_type and by_type[place]:
                scalars.append(one)
                key.append(kind)
            elif kind is float or kind is complex:
                key.append(repr(one))  # 0.0 and -0.0 are equal, and not the same argument
            else:
                key.append(one)
                if kind is not int:
                    key.append(kind)
        elif kind is list or kind is tuple:
            nested: list[Any] = []
            _scan(one, (), handles, scalars, nested)
            key.append(tuple(nested))
        elif isinstance(one, TorchTensor):
            raise _HasLocal
        elif kind is torch.Generator:
            raise ValueError(
                "a Generator of the client has no meaning on the ranks; seed those with "
                "monarch.random.manual_seed(seed), and leave generator out"
            )
        else:
            key.append(one)


def _results(
    entry: Entry, first: int, channel: Channel, handles: list[Handle], args: Any, kwargs: Any
) -> Any:
    """The results of an operation that returns none, several, or some of its inputs."""
    made: list[Any] = []
    number = first
    tensors: list[Any] = []
    if any(output.same >= 0 for output in entry.outputs):
        tensors = [one for one in pytree.tree_leaves((args, kwargs or {})) if type(one) is Tensor]
    for output in entry.outputs:
        if output.same >= 0:
            made.append(tensors[output.same])
            continue
        base = None
        if output.shares >= 0:
            storage, base = handles[output.shares].storage, handles[output.shares].base
        elif output.shares_output >= 0:
            storage = made[output.shares_output].monarch_handle.storage
        else:
            storage = Storage()
        made.append(wrap(Handle(number, output.meta, storage, channel, None, base)))
        number += 1
    if entry.has_info:
        _unchecked.handles = [one.monarch_handle for one in made]
    return entry.unflatten(made)


def _entry(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], handles: list[Handle]
) -> Entry:
    """Compute the metas of the results, and the kind of the instruction."""
    template_args, template_kwargs, written = _template(operation, args, kwargs)
    if any(handle.meta.bits & UNPLACED for handle in handles) and "as_strided" in operation.name:
        raise unplaced_strides()
    bare = tuple(place for place in written if handles[place].meta.bits & UNPLACED)
    mutated = (*written, *range(len(handles), len(handles) + len(bare)))
    values = _free_scalars(operation, args, kwargs)
    inputs = [stand_in(handle.meta) for handle in handles]
    on_device = dict(template_kwargs)
    if "device" in on_device or not handles:
        on_device["device"] = META

    def call(stand_ins: list[Any], func: Any = operation.func) -> Any:
        filled = _filled(template_args, stand_ins, values)
        options = {name: _filled(one, stand_ins, values) for name, one in on_device.items()}
        if stand_ins and type(stand_ins[0]) is not TorchTensor and "device" in options:
            options["device"] = torch.device("cpu")  # FakeTensors are on the CPU
        return func(*filled, **options)

    result = run_on_meta(operation.name, call, inputs)
    if operation.functional is not None and handles:
        fresh = [stand_in(handle.meta) for handle in handles]
        check_cast(lambda: call(fresh, operation.functional), handles[0].meta.dtype)
    leaves, spec = pytree.tree_flatten(result)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, TorchTensor)]
    before = [handle.meta for handle in handles]
    outputs = outputs_of(operation.name, [leaves[at] for at in places], inputs, before)
    kept = tuple(at for at, output in zip(places, outputs, strict=True) if output.same < 0)
    if isinstance(result, TorchTensor):
        stores, kept = (ONE if kept else NOTHING), ()
    else:
        stores = MANY if kept else NOTHING
    default_dtype = None
    if any(_is_inexact(one.meta.dtype) for one in outputs):
        if operation.has_dtype and template_kwargs.get("dtype") is None and not handles:
            template_kwargs["dtype"] = outputs[0].meta.dtype
        elif not any(_is_inexact(handle.meta.dtype) for handle in handles):
            default_dtype = _default_dtype()
    kind = new_kind(
        operation.name, template_args, tuple(template_kwargs.items()), stores, kept, mutated,
        default_dtype, tuple(layout_of(one) for one in outputs if one.same < 0),
    )  # fmt: skip

    def unflatten(made: list[Any]) -> Any:
        full = list(leaves)
        for at, one in zip(places, made, strict=True):
            full[at] = one
        return pytree.tree_unflatten(full, spec)

    leaves = [None if isinstance(leaf, TorchTensor) else leaf for leaf in leaves]
    return Entry(kind, outputs, unflatten, written, bare)


def _is_inexact(dtype: Any) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex)


def _template(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]:
    """The arguments with slots for tensors and free scalars, and the inputs that are written."""
    counts = [0, 0]
    mutated: list[int] = []

    def replaced(one: Any, free: bool, written: bool) -> Any:
        if type(one) is Tensor:
            counts[0] += 1
            if written:
                mutated.append(counts[0] - 1)
            return Slot(counts[0] - 1)
        if isinstance(one, (list, tuple)):
            return [replaced(inner, False, written) for inner in one]  # pyright: ignore[reportUnknownVariableType]
        if free and type(one) in _NUMBERS:
            counts[1] += 1
            return Value(counts[1] - 1)
        return one

    made = tuple(
        replaced(one, operation.by_type[place], place in operation.mutated)
        for place, one in enumerate(args)
    )
    named = {
        name: replaced(one, name in operation.kwargs_by_type, name in operation.mutated_kwargs)
        for name, one in kwargs.items()
    }
    return made, named, tuple(mutated)


def _free_scalars(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    found = [
        one for place, one in enumerate(args)
        if operation.by_type[place] and type(one) in _NUMBERS
    ]  # fmt: skip
    return found + [
        one for name, one in kwargs.items()
        if name in operation.kwargs_by_type and type(one) in _NUMBERS
    ]  # fmt: skip


def _filled(template: Any, inputs: list[Any], values: list[Any]) -> Any:
    if type(template) is Slot:
        return inputs[template.place]
    if type(template) is Value:
        return values[template.place]
    if type(template) is list or type(template) is tuple:
        return [_filled(one, inputs, values) for one in template]  # pyright: ignore[reportUnknownVariableType]
    return template


# --- local tensors --------------------------------------------------------------------------------


def _with_locals(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Run an operation with local tensors here, or send them to the mesh of the other tensors."""
    leaves, spec = pytree.tree_flatten((list(args), kwargs or {}))
    channels = [one.monarch_handle.channel for one in leaves if type(one) is Tensor]
    if not channels:
        channel = active_channel()
        if channel is not None and operation.is_lift and args[0].dim() > 0:
            if _is_rebuilding(3):
                return operation.func(*args, **(kwargs or {}))
            # torch.tensor([...]) within an active mesh
            return lift(channel, args[0], sites.number(sys._getframe(3)))  # pyright: ignore[reportPrivateUsage]
        return operation.func(*args, **(kwargs or {}))
    written = [args[at] for at in operation.mutated if at < len(args)]
    written += [one for name, one in (kwargs or {}).items() if name in operation.mutated_kwargs]
    for one in pytree.tree_leaves(written):
        if isinstance(one, TorchTensor) and type(one) is not Tensor:
            raise local_written(operation.name, one.dim() == 0)
    site = sites.number(sys._getframe(3))  # pyright: ignore[reportPrivateUsage]
    for place, one in enumerate(leaves):
        if isinstance(one, TorchTensor) and type(one) is not Tensor:
            nbytes = one.numel() * one.element_size()
            if nbytes > MOST_LIFTED_BYTES:
                raise too_large(nbytes, MOST_LIFTED_BYTES, _is_backward(3))
            leaves[place] = lift(channels[0], one, site)
            if one.numel() > 1 and not _is_backward(3):
                _note(one, site)
    again, options = pytree.tree_unflatten(leaves, spec)
    return dispatch(operation.func, tuple(again), options)


_noted: set[int] = set()


def _note(tensor: Any, site: int) -> None:
    """Warn once for each place in the program that a local tensor was sent to the ranks."""
    if site in _noted:
        return
    _noted.add(site)
    where = sites.site(site)
    warnings.warn_explicit(
        f"a local tensor of shape {list(tensor.shape)} was sent to every rank, since it is used "
        "with tensors of a mesh; make it within mesh.activate(), or send it once with "
        "monarch.to_mesh(tensor, mesh)",
        UserWarning, where.filename or "<unknown>", where.line or 1,
    )  # fmt: skip


_RUN_BACKWARD: Any = import_module("torch.autograd.graph")._engine_run_backward.__code__


def _is_backward(depth: int) -> bool:
    """Whether torch's own code for gradients issues the operation. `depth`: the frames between."""
    frame: Any = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    return frame.f_code is _RUN_BACKWARD


def _channel_of_backward(depth: int) -> Channel | None:
    """The channel for tensors that torch's own code for gradients makes: that of the loss."""
    frame: Any = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    if frame.f_code is not _RUN_BACKWARD:
        return None
    roots = [one for one in frame.f_locals["t_outputs"] if type(one) is Tensor]
    return roots[0].monarch_handle.channel if roots else None


def _is_rebuilding(depth: int) -> bool:
    """Whether `pickle` makes a tensor, which stays local. `depth`: the frames in between."""
    frame: Any = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    return frame.f_code.co_name in _REBUILDS


connect(dispatch, methods)
set_dispatch(dispatch)
higher_order.register()
