"""The device of a mesh's tensors: the CPUs of its ranks, or a GPU of each.

All tensors of a mesh are on devices of one type. To torch in the client they are on a CPU, since a
client without CUDA can make no others; `Tensor.device` says where the ranks have them. The device
that an operation names is only checked here. The ranks put their own in its place.

Runs in: the client.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from monarch._src.tensor.tensor_errors import on_gpus_only, traced, values_copied
from monarch._src.tensor.torch_modules import TorchFunctionMode, torch

if TYPE_CHECKING:
    from monarch._src.tensor.channels.channel import Channel

DEVICES = ("cpu", "cuda")
_NO_VALUES = "its data is not allocated yet"
_TRACE_FILE = "torch/jit/_trace.py"
_NO_CUDA = ("not compiled with CUDA", "no NVIDIA driver", "No CUDA GPUs")


def device_type(device: Any) -> str:
    """The type of a device that a program names, such as `"cuda"` or `torch.device("cpu")`.

    Raises:
        ValueError: another type, or the number of a GPU: each rank uses its own.
    """
    named = torch.device(device)
    if named.type not in DEVICES or named.index not in (None, 0):
        raise ValueError(
            f"device={str(device)!r}: tensors of a mesh are on 'cpu', or on 'cuda', a GPU of each "
            "rank's own; leave device out, or name one of these"
        )
    return str(named.type)


def check_device(channel: Channel, device: Any) -> bool:
    """Check the device that an operation names; returns whether the operation has chosen it.

    The first tensor of a mesh may choose `"cuda"`.

    Raises:
        ValueError: the tensors of the mesh are elsewhere, or a rank has no GPU.
    """
    kind = device_type(device)
    # Torch's own code for gradients names the device that torch sees, which is a CPU.
    if kind in (channel.driver.device, "cpu"):
        return False
    channel.driver.use_device(kind)
    return True


def check_move(channel: Channel, device: Any) -> None:
    """Check the device that a tensor is to be moved to.

    Raises:
        ValueError: its mesh has no tensors there.
    """
    kind, now = device_type(device), channel.driver.device
    if kind == now:
        return
    if now == "cuda":
        raise on_gpus_only(channel.name, device)
    raise device_is_chosen(kind, channel.name, now)


def check_devices(problems: Mapping[Any, str], name: str) -> None:
    """Raise ValueError unless all ranks of a mesh can use the device. `problems`: by rank."""
    found = [(point, problem) for point, problem in problems.items() if problem]
    if found:
        point, problem = found[0]
        at = ", ".join(f"{dim}={index}" for dim, index in point.items())
        more = f"; {len(found) - 1} more ranks cannot either" if len(found) > 1 else ""
        raise ValueError(
            f"{name}[{at}] cannot keep tensors on a GPU: {problem}{more}; the mesh is as it was"
        )


def device_is_chosen(device: str, name: str, now: str) -> ValueError:
    """Tensors of a mesh that already has some elsewhere."""
    return ValueError(
        f"device={device!r}: {name} has tensors on {now!r}, and all tensors of a mesh are on one "
        f"device; name it when the mesh is activated first, with mesh.activate(device={device!r})"
    )


def _passes(trace: TracebackType | None, end: str) -> bool:
    """Whether an error has come through a file whose path ends so."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(end):
            return True
        trace = trace.tb_next
    return False


@contextmanager
def explained() -> Generator[None]:
    """Say what to do where torch lacks a GPU in this process, or the values of a tensor."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        if _passes(error.__traceback__, _TRACE_FILE):
            raise traced(error) from None
        if _NO_VALUES in str(error):
            raise values_copied(error) from error
        if not any(text in str(error) for text in _NO_CUDA):
            raise
        raise ValueError(
            f"torch in this process has no CUDA ({error}); if the ranks have, name the device "
            "when the mesh is activated: mesh.activate(device='cuda')"
        ) from error


class WithoutCuda(TorchFunctionMode):
    """Leaves `device="cuda"` out of the calls of a client whose torch has no GPU.

    That torch would refuse it before the ranks are asked.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs and kwargs.get("device") is not None:
            kwargs = dict(kwargs)
            if device_type(kwargs["device"]) == "cuda":
                del kwargs["device"]
        return func(*args, **(kwargs or {}))


@contextmanager
def on_gpus() -> Generator[None]:
    """Have torch in the client choose operations that GPUs can run."""
    with ExitStack() as modes:
        # Others are chosen by the device that torch sees, and run on CPUs only.
        attention: Any = import_module("torch.nn.attention")
        modes.enter_context(attention.sdpa_kernel(attention.SDPBackend.MATH))
        if not torch.cuda.is_available():
            modes.enter_context(WithoutCuda())
        yield
