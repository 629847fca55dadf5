"""Tensors and arrays: their facts, their memory, and views of memory as one or the other.

Nothing here imports torch or numpy before it is needed: a process with a tensor has imported torch
already. A process that receives a tensor without giving memory for it imports torch then.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from monarch._src.rdma.memory import Memory
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.weights.layout import Facts, Kind, Shape


def facts_of(name: str, value: Any) -> Facts:
    """The facts of a tensor or array.

    Raises:
        TypeError: it is neither, or has no strided elements in memory.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the name {name!r} is of type {type(name).__qualname__}: give a str")
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(name, value, torch)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        dtype = value.dtype
        if hasattr(value, "hardmask"):  # masked arrays have it
            raise TypeError(
                f"{name!r} is a masked array, whose mask would be lost: give its `filled()`, or "
                "its `data` and its mask under two names"
            )
        if dtype.kind not in "biufc" or not dtype.isnative:
            raise TypeError(
                f"{name!r} is an array of {dtype.str}: published arrays have numbers in the byte "
                "order of this machine"
            )
        return Facts("numpy", dtype.name, dtype.itemsize, tuple(value.shape))
    kind = type(value).__qualname__
    more = ": flatten it, with names such as 'layer.weight'" if isinstance(value, dict) else ""
    raise TypeError(
        f"{name!r} is of type {kind}, and neither a torch tensor nor a numpy array{more}"
    )


def _of_tensor(name: str, value: Any, torch: Any) -> Facts:
    if hasattr(value, "placements") and hasattr(value, "to_local"):
        raise TypeError(
            f"{name!r} is a DTensor: give its `to_local()`, and in `slices` the TensorSlice that "
            "says which part of the whole it is"
        )
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        what = "quantized" if value.is_quantized else f"of layout {value.layout}"
        where = " on meta" if value.device.type == "meta" else ""
        raise TypeError(f"{name!r} is a tensor {what}{where}: it has no plain elements in memory")
    dtype = str(value.dtype).removeprefix("torch.")
    return Facts("torch", dtype, value.element_size(), tuple(value.shape))


def memory_in_a_row(value: Any, kind: Kind) -> Memory | None:
    """The memory of its elements if they are contiguous, row-major and on the CPU; else None."""
    if kind == "torch":
        if value.device.type != "cpu" or not value.is_contiguous():
            return None
        if value.is_conj() or value.is_neg():
            return None
        return memory_of(value.detach().view(-1))
    if not value.flags.c_contiguous:
        return None
    return memory_of(value.reshape(-1))


def is_readonly(value: Any, kind: Kind) -> bool:
    """Whether it may not be written to."""
    return kind == "numpy" and not value.flags.writeable


def has_room(value: Any, kind: Kind) -> bool:
    """Whether no two elements share memory, as they do after `expand`."""
    strides = value.stride() if kind == "torch" else value.strides
    return not any(size > 1 and not step for size, step in zip(value.shape, strides, strict=True))


def named(state_dict: Any, what: str) -> Mapping[str, Any]:
    """The argument itself, if it maps names to values. Raises TypeError."""
    if not isinstance(state_dict, Mapping):
        kind = type(state_dict).__qualname__
        raise TypeError(
            f"{what} takes tensors or arrays by name, such as `model.state_dict()`, not {kind}"
        )
    return cast("Mapping[str, Any]", state_dict)


def view(memory: memoryview, kind: Kind, dtype: str, shape: Shape) -> Any:
    """The start of that memory as elements; the view keeps the memory alive."""
    module: Any = _module(kind)
    count = 1
    for n in shape:
        count *= n
    if kind == "torch":
        of = getattr(module, dtype)
        if not count:
            return module.empty(shape, dtype=of)
        return module.frombuffer(memory, dtype=of, count=count).view(shape)
    return module.frombuffer(memory, module.dtype(dtype), count).reshape(shape)


def strided(memory: memoryview, facts: Facts, strides: Sequence[int]) -> Any:
    """Elements of that memory at distances of `strides` elements, as an array of `facts.shape`."""
    module: Any = _module(facts.kind)
    if facts.kind == "torch":
        flat = module.frombuffer(memory, dtype=getattr(module, facts.dtype))
        return flat.as_strided(facts.shape, tuple(strides))
    dtype = module.dtype(facts.dtype)
    steps = tuple(stride * facts.itemsize for stride in strides)
    return module.ndarray(facts.shape, dtype, memory, 0, steps)


def empty(kind: Kind, dtype: str, shape: Shape) -> Any:
    """New contiguous memory for elements.

    Raises:
        ImportError: the publisher used torch or numpy, which is not installed here.
    """
    module: Any = _module(kind)
    return module.empty(shape, dtype=getattr(module, dtype) if kind == "torch" else dtype)


def assign(target: Any, source: Any, kind: Kind) -> None:
    """Copy all elements, from any device and with any strides; `target` has the same shape."""
    if kind == "torch":
        target.detach().copy_(source.detach())
    else:
        target[...] = source


def _module(kind: Kind) -> Any:
    try:
        return importlib.import_module(kind)
    except ImportError as error:
        raise ImportError(
            f"the state dict was published as {kind} arrays, and {kind} is not installed here: "
            "install it, or give arrays of your own as `user_state_dict`"
        ) from error


def transferred(facts: Facts, dtype: Any) -> Facts:
    """The same with floating-point elements of another type, given by torch, numpy or its name."""
    if dtype is None or "float" not in facts.dtype:
        return facts
    module: Any = _module(facts.kind)
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.removeprefix("torch.")
    known = getattr(module, name, None) if "float" in name else None
    if known is None:
        raise TypeError(f"transfer_dtype={dtype!r}: {facts.kind} has no such floating-point type")
    itemsize = known.itemsize if facts.kind == "torch" else module.dtype(known).itemsize
    return Facts(facts.kind, name, itemsize, facts.shape)
