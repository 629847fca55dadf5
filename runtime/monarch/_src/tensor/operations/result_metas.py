"""The shapes, dtypes and aliases of an operation's results, computed once for each key.

Runs in: the client, on any thread. Torch's kernels for the meta device compute them, or
FakeTensor, for an operation without such a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from monarch._src.tensor.opaque import OBJECT, OpaqueRef
from monarch._src.tensor.state.instructions import Layout
from monarch._src.tensor.state.metas import UNPLACED, Meta, Metas
from monarch._src.tensor.tensor_errors import quantized, reshaped_in_place, shape_unknown, sparse
from monarch._src.tensor.torch_modules import TorchTensor, bits_of, torch, with_bits, without_modes

metas = Metas()
CPU: Any = torch.device("cpu")
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
META: Any = torch.device("meta")


class Output(NamedTuple):
    """One tensor of a result: an input itself, or a new tensor that may share memory with one.

    `same`: the input that it is, or -1; `shares`: the input whose storage it shares, or -1;
    `shares_output`: the earlier output whose storage it shares, or -1.
    """

    meta: Meta
    same: int = -1
    shares: int = -1
    shares_output: int = -1


def meta_of(tensor: Any) -> Meta:
    """The meta of a tensor with a storage, or of an object.

    To torch in the client, the device of a tensor is the CPU.
    """
    if isinstance(tensor, OpaqueRef):
        return OBJECT
    storage = tensor.untyped_storage()
    return metas.of(
        tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), tensor.dtype, CPU,
        storage.nbytes(), bits_of(tensor),
    )  # fmt: skip


def unplaced(meta: Meta) -> Meta:
    """The same, of a tensor whose offset only ranks know."""
    return metas.of(
        meta.shape, meta.strides, meta.offset, meta.dtype, meta.device, meta.nbytes,
        meta.bits | UNPLACED,
    )  # fmt: skip


def stand_in(meta: Meta) -> Any:
    """A tensor of the meta device with these facts."""
    storage = torch.UntypedStorage(meta.nbytes, device="meta")
    empty = torch.empty(0, dtype=meta.dtype, device="meta")
    return with_bits(empty.set_(storage, meta.offset, meta.shape, meta.strides), meta.bits)


def run_on_meta(name: str, call: Callable[[list[Any]], Any], inputs: list[Any]) -> Any:
    """The result of an operation on stand-ins. `call` takes them, and replaces the device.

    Raises:
        RuntimeError: the shape depends on values. The errors of the operation itself pass through.
    """
    with torch.no_grad(), without_modes():
        try:
            return call(inputs)
        except NotImplementedError:
            pass  # torch has no meta kernel for this operation
        except AssertionError as error:  # a check of a kernel in Python; others raise RuntimeError
            raise RuntimeError(str(error) or f"{name} does not take these arguments") from None
        except Exception as error:
            if not isinstance(error, RuntimeError) or " meta " not in f" {error} ":
                # Without the frames of torch's kernel: the program's line is the one at fault.
                raise error.with_traceback(None) from None
            # Otherwise the kernel needs values, of which FakeTensor tells more.
        return _run_on_fakes(name, call, inputs)


def check_cast(call: Callable[[], Any], dtype: Any) -> None:
    """Raise if the result of an operation cannot be written to a tensor of that dtype.

    Torch's CPU kernels raise this error, and some kernels for the meta device do not. `call` runs
    the overload of the operation that returns its result.
    """
    with torch.no_grad(), without_modes():
        try:
            found = call()
        except Exception:
            return  # this overload refuses arguments that the other takes
    if isinstance(found, TorchTensor) and not torch.can_cast(found.dtype, dtype):
        raise RuntimeError(
            f"result type {found.dtype} can't be cast to the desired output type {dtype}"
        )


def _run_on_fakes(name: str, call: Callable[[list[Any]], Any], inputs: list[Any]) -> Any:
    fakes: Any = import_module("torch._subclasses.fake_tensor")
    mode = fakes.FakeTensorMode()
    try:
        with mode:
            return call([fakes.FakeTensor(mode, one, CPU) for one in inputs])
    except (
        fakes.DynamicOutputShapeException,
        fakes.DataDependentOutputException,
    ):
        raise shape_unknown(name) from None
    except fakes.UnsupportedOperatorException as error:
        raise NotImplementedError(
            f"torch cannot tell the shape of the result of {name}; run it on the ranks with "
            "monarch.remote(function, propagate='inspect')"
        ) from error


def layout_of(output: Output) -> Layout | None:
    """The layout of a result with memory of its own; None for another one."""
    meta = output.meta
    if meta is OBJECT or output.shares >= 0 or output.shares_output >= 0:
        return None
    return Layout(meta.shape, meta.strides, meta.offset, meta.bits)


def outputs_of(
    name: str, result: Sequence[Any], inputs: Sequence[Any], before: Sequence[Meta]
) -> list[Output]:
    """Describe the tensors and objects of a result, given the stand-ins of the inputs."""
    identities = {id(one): place for place, one in enumerate(inputs)}
    storages = {
        _storage(one): place
        for place, one in reversed(list(enumerate(inputs)))
        if not isinstance(one, OpaqueRef)
    }
    for one, meta in zip(inputs, before, strict=True):
        if isinstance(one, OpaqueRef):
            continue
        if tuple(one.shape) != meta.shape or tuple(one.stride()) != meta.strides:
            raise reshaped_in_place(name)
    found: list[Output] = []
    made: dict[int, int] = {}
    for place, one in enumerate(result):
        same = identities.get(id(one), -1)
        if same >= 0:
            found.append(Output(before[same], same))
            continue
        if isinstance(one, OpaqueRef):
            found.append(Output(OBJECT))
            continue
        if one.layout is not torch.strided:
            raise sparse(name)
        if one.dtype in _QUANTIZED or name.startswith("aten::quantize_per"):
            raise quantized(name)
        storage = _storage(one)
        shares = storages.get(storage, -1)
        meta = meta_of(one)
        if shares >= 0 and before[shares].bits & UNPLACED:
            meta = unplaced(meta)
        found.append(Output(meta, -1, shares, made.get(storage, -1)))
        made.setdefault(storage, place)
    return found


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)
