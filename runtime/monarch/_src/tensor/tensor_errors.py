"""The errors of operations that the client refuses. Each names the remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from monarch._src.shape import Region
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.call_sites import CallSite
from monarch._src.tensor.state.regions import Step
from monarch._src.tensor.torch_modules import TorchTensor

if TYPE_CHECKING:
    from monarch._src.tensor.state.metas import Handle


_CALLED = {
    "aten::_local_scalar_dense.default": "item(), float() or an index",
    "aten::allclose.default": "torch.allclose",
    "aten::equal.default": "torch.equal",
    "aten::index.Tensor": "a mask in brackets",
    "aten::is_nonzero.default": "bool()",
    "aten::item.default": "item()",
    "aten::nonzero.default": "nonzero()",
    "aten::_unique2.default": "unique()",
}
"""Operations that need values, by the names that programs call them by."""
_HINTS = {
    "torch.distributions.": "have a distribution leave its arguments unchecked with "
    "validate_args=False, ",
    "torch.utils.data.": "iterate over a DataLoader within `with monarch.no_mesh.activate():`, or "
    "before the mesh is activated, ",
}
"""Remedies of operations that modules of torch run for the program."""


def value_needed(name: str) -> RuntimeError:
    """An operation whose result depends on values that only the ranks have."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    called = _CALLED.get(name, name)
    hint = "".join(text for module, text in _HINTS.items() if _is_called_by(frame, module))
    return RuntimeError(
        f"{called}{_at_line(frame)} needs the values of a tensor, which are on the ranks and may "
        f"differ there; {hint}get those of one rank with monarch.fetch_shard(tensor).get(), run "
        "the code on the ranks with monarch.remote(function), or have all such places read the "
        "first rank: configure(tensor_item='fetch')"
    )


def values_copied(error: BaseException) -> ValueError:
    """A function of torch that copies the values of tensors of a mesh in this process."""
    return ValueError(
        f"a function of torch{_at(sites.site_of_error(error.__traceback__))} copies the values of "
        "a tensor of a mesh in this process, and they are on the ranks; get those of one rank with "
        "monarch.fetch_shard(tensor).get(), or write torch.stack in place of torch.tensor([x, y])"
    )


def without_length() -> TypeError:
    """The length of a 0-dim tensor. Torch asks for it to make a tensor of a list with such ones."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    return TypeError(
        f"len() of a 0-dim tensor{_at_line(frame)}; torch.tensor asks for it where it copies the "
        "values of tensors of a mesh in this process, and they are on the ranks; in place of "
        "torch.tensor([x, 2.0]) write torch.stack([x, torch.full((), 2.0)])"
    )


def _at_line(frame: FrameType | None) -> str:
    return _at(sites.site(sites.number(frame)))


def _at(site: CallSite) -> str:
    """` at line 3 of cell.py (y = x.item())`; nothing outside of a program."""
    return f" at line {site.line} of {site.filename} ({site.text})" if site.filename else ""


def _is_called_by(frame: FrameType | None, module: str) -> bool:
    """Whether functions of a module of torch are between that frame and the program's."""
    place = sites.number(frame)
    while frame is not None and sites.number(frame) == place:
        if str(frame.f_globals.get("__name__", "")).startswith(module):
            return True
        frame = frame.f_back
    return False


def memory_of_ranks(name: str) -> RuntimeError:
    """A method that concerns the memory of this process."""
    return RuntimeError(
        f"{name} concerns memory of this process, and that of a tensor of a mesh is on its ranks; "
        "leave it out, or do it on the ranks with monarch.remote(function)"
    )


def takes_functions(name: str) -> RuntimeError:
    """An operator of torch that calls functions of the program."""
    name = name.removesuffix("_impl")
    return RuntimeError(
        f"torch's {name} calls functions of this process, and the values of a tensor of a mesh are "
        "on its ranks; choose values with torch.where(...), or have the ranks call it: "
        "monarch.remote(function)(tensor)"
    )


def shape_unknown(name: str) -> RuntimeError:
    """An operation whose result has a shape that depends on values."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    return RuntimeError(
        f"the shape of the result of {_CALLED.get(name, name)}{_at_line(frame)} depends on values "
        "that are on the ranks; run the code on the ranks with monarch.remote(function, "
        "propagate='inspect'), or write it without, as with torch.where in place of a mask in "
        "brackets"
    )


def sparse(name: str) -> ValueError:
    """An operation that makes a tensor that is not dense."""
    return ValueError(
        f"{name} makes a sparse tensor, and tensors of a mesh are dense; run the code on the ranks "
        "with monarch.remote(function)"
    )


DROPPED = "was dropped, or a tensor that shares its memory was; call drop() after the last use"
RETURNED = "was borrowed, and its borrow has been dropped; use the tensor that was borrowed"


def borrowed(stream: str) -> str:
    """Why a tensor cannot be used while a stream may write to it."""
    return f"is borrowed by the stream {stream!r}, which may write to it; call borrow.drop() first"


def unusable(handle: Handle) -> ValueError:
    """A tensor that no operation may use."""
    return ValueError(f"this tensor of shape {list(handle.meta.shape)} {handle.storage.unusable}")


def not_owned(handle: Handle) -> ValueError:
    """A borrowed tensor that would be dropped, or lent on."""
    return ValueError(
        f"this tensor of shape {list(handle.meta.shape)} is borrowed, so it cannot be dropped or "
        "lent on; call borrow.drop(), and borrow the tensor that was lent"
    )


def lent(handle: Handle) -> ValueError:
    """A tensor that would be written while streams read it."""
    return ValueError(
        f"this tensor of shape {list(handle.meta.shape)} is borrowed by a stream that reads it, so "
        "it cannot be written or dropped; call borrow.drop() first, or borrow it with mutable=True"
    )


def too_large(nbytes: int, most: int, of_gradient: bool) -> ValueError:
    """A local tensor in an operation with tensors of a mesh. `of_gradient`: torch has made it."""
    remedy = "send it with monarch.to_mesh(tensor, mesh), or make it on the ranks"
    if of_gradient:
        remedy = "compute the gradient within `with tensor.mesh.activate():`"
    return ValueError(
        f"the operation has a local tensor of {nbytes:,} bytes, and only those of up to {most:,} "
        f"bytes are sent along; {remedy}"
    )


def local_written(name: str, is_number: bool) -> ValueError:
    """A local tensor that would be written with values of a mesh. `is_number`: it is 0-dim."""
    if is_number:
        return ValueError(
            f"{name} writes values of the ranks into a local tensor: torch.tensor(number) stays "
            "local, also while a mesh is active; make it with torch.full((), number) there, or "
            "write `a = a + b` in place of `a += b`"
        )
    return ValueError(
        f"{name} writes values of the ranks into a local tensor; write `a = a + b` in place of "
        "`a += b`, or make the local tensor on the mesh with monarch.to_mesh(tensor, mesh)"
    )


def on_gpus_only(name: str, device: Any) -> ValueError:
    """A tensor on the GPUs of a mesh that would be moved to CPUs."""
    return ValueError(
        f"device={str(device)!r}: the tensors of {name} are on the GPUs of its ranks and stay "
        "there; monarch.fetch_shard(tensor) gets the values of one rank, on the CPU"
    )


def quantized(name: str) -> ValueError:
    """An operation that makes a quantized tensor."""
    return ValueError(
        f"{name} makes a quantized tensor, which tensors of a mesh cannot be; run the code on the "
        "ranks with monarch.remote(function)"
    )


def traced(place: FrameType | BaseException) -> RuntimeError:
    """A function that torch would trace in this process: a frame in it, or the error of torch."""
    if isinstance(place, BaseException):
        where = _at(sites.site_of_error(place.__traceback__))
    else:
        where = _at_line(place)
    return RuntimeError(
        f"torch traces a function{where} that uses tensors of a mesh, and their "
        "operations run on its ranks; record them with monarch.compile(function), or trace it with "
        "tensors of this process within `with monarch.no_mesh.activate():`"
    )


def unplaced_strides() -> ValueError:
    """A view of `x[i]` that names its place in memory."""
    return ValueError(
        "as_strided names a place in memory, and only the ranks know that of x[i] with an i on the "
        "ranks; use x[i].clone()"
    )


def reshaped_in_place(name: str) -> ValueError:
    """An operation that changes the shape of a tensor that it writes to."""
    if "out" in name.rpartition(".")[2]:
        return ValueError(
            f"{name} writes its result into the tensor of out=, which has another shape, and "
            "tensors of a mesh keep theirs; make it with the shape of the result, or leave out= "
            "away"
        )
    return ValueError(
        f"{name} changes the shape of a tensor in place, which tensors of a mesh cannot do; use "
        "the operation without the underscore"
    )


def not_in_region(name: str, what: str, instead: str) -> RuntimeError:
    """Something that a recorded region cannot do."""
    return RuntimeError(
        f"{name} is a compiled function, and {what} cannot be in its recorded region: {instead}"
    )


def object_in_region(name: str) -> RuntimeError:
    """An OpaqueRef in a recorded region."""
    instead = "call the remote function before or after it"
    return not_in_region(name, "a call with an OpaqueRef", instead)


def local_argument(name: str, shape: Any) -> TypeError:
    """A local tensor as an argument of a compiled function."""
    return TypeError(
        f"{name} is a compiled function, and an argument is a local tensor of shape {list(shape)}; "
        "send it with monarch.to_mesh(tensor, mesh), or pass a Python number"
    )


def argument_not_keyed(name: str, leaves: Iterable[Any]) -> TypeError:
    """An argument of a compiled function that cannot be hashed."""
    kinds: list[str] = []
    for leaf in leaves:
        try:
            hash(leaf)
        except TypeError:
            kinds.append(type(leaf).__name__)
    return TypeError(
        f"{name} is a compiled function, and an argument of type {', '.join(kinds)} cannot be "
        "hashed, so calls cannot be told apart by it; pass tensors, numbers, text, or lists, "
        "tuples and dicts of them"
    )


def not_a_result(name: str, value: Any) -> TypeError:
    """A result of a compiled function that is no tensor of a mesh."""
    what = "a local tensor" if isinstance(value, TorchTensor) else type(value).__name__
    return TypeError(
        f"{name} is a compiled function and returns {what}; its results are tensors of the mesh, "
        "numbers and text, in lists, tuples and dicts"
    )


def not_repeated(
    name: str, before: Sequence[Step], found: Sequence[Step], place: int,
    site_of: Callable[[int], CallSite],
) -> RuntimeError:  # fmt: skip
    """A compiled function that does something else on another call. Steps from `place` on."""

    def told(steps: Sequence[Step]) -> str:
        if not steps:
            return "none"
        site = site_of(steps[0].site)
        operation = steps[0].kind.operation.removeprefix("aten::").removeprefix("monarch::")
        return f"{operation} at line {site.line} of {site.filename} ({site.text})"

    change = f"operation {place + 1} was {told(before)}, and is now {told(found)}"
    if place < 0:
        change = "it does the same operations, and its result is put together in another way"
    return RuntimeError(
        f"{name} is a compiled function and does not do the same on each call: {change}, perhaps "
        "with other numbers or tensors. Pass what changes as an argument, as tensors where it "
        "changes each time; or call the function without monarch.compile"
    )


def place_text(name: str, region: Region) -> str:
    """`workers {gpus: 2}`."""
    return f"{name} {region.extent}"
