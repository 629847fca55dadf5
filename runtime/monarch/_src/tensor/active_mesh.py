"""The active mesh of each thread, on which torch's factories make tensors.

Runs in: the client, on the threads of the program. While a mesh is active, a dispatch mode of torch
sees every operation of the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from monarch._src.tensor.channels.channel import MAIN, Channel
from monarch._src.tensor.channels.driver import channel_of
from monarch._src.tensor.devices import device_type, explained, on_gpus
from monarch._src.tensor.torch_modules import TorchDispatchMode, without_modes

if TYPE_CHECKING:
    from monarch._src.mesh.meshes import ProcMesh


class _Active(threading.local):
    def __init__(self) -> None:
        self.channels: list[Channel | None] = []
        self.streams: list[str] = []
        self.blocks: list[ExitStack] = []  # what ends with each block of `activate`
        self.has_mode = False


_active = _Active()


class _Mode(TorchDispatchMode):
    """Hands operations of this thread to the dispatcher."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that this avoids costs microseconds for each operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _dispatch(func, args, kwargs)


def _no_dispatch(*_: Any) -> Any:
    raise RuntimeError("no dispatcher")


_dispatch: Any = _no_dispatch


def set_dispatch(dispatch: Any) -> None:
    """Set the function that runs operations. Called by `dispatch`, which looks up the mesh here."""
    global _dispatch
    _dispatch = dispatch


def active_channel() -> Channel | None:
    """The channel of the active mesh of this thread, if there is one."""
    channels = _active.channels
    return channels[-1] if channels else None


def active_stream() -> str:
    """The name of the active stream of this thread."""
    streams = _active.streams
    return streams[-1] if streams else MAIN


@contextmanager
def on_stream(name: str) -> Generator[None]:
    """Have factories of this thread make tensors of that stream until the end of the block."""
    active = active_channel()
    channel = None if active is None else channel_of(active.mesh, name)
    _active.streams.append(name)
    _active.channels.append(channel)
    try:
        yield
    finally:
        _active.channels.pop()
        _active.streams.pop()


def get_active_mesh() -> ProcMesh:
    """The mesh that is active on this thread.

    Raises:
        ValueError: no mesh is active on this thread.
    """
    channel = active_channel()
    if channel is None:
        raise ValueError("no device mesh is active: use `with mesh.activate():`")
    return channel.mesh


@contextmanager
def activate(mesh: ProcMesh, device: Any = None) -> Generator[ProcMesh]:
    """See `ProcMesh.activate`."""
    channel = channel_of(mesh, active_stream())
    channel.check()
    if device is not None:
        channel.driver.use_device(device_type(device))
    _active.channels.append(channel)
    try:
        with explained(), ExitStack() as block:
            _active.blocks.append(block)
            block.callback(_active.blocks.pop)
            if not _active.has_mode:
                _active.has_mode = True
                block.callback(setattr, _active, "has_mode", False)
                block.enter_context(_Mode())
            if channel.driver.device == "cuda":
                block.enter_context(on_gpus())
            yield mesh
    finally:
        _active.channels.pop()


def first_on_gpus() -> None:
    """Continue the block of the active mesh for GPUs, which its first tensor has chosen."""
    if _active.blocks:
        _active.blocks[-1].enter_context(on_gpus())


class NoMesh:
    """No mesh: within `no_mesh.activate()`, torch runs operations in this process."""

    @contextmanager
    def activate(self) -> Generator[None]:
        """Run torch operations in this process until the end of the block."""
        _active.channels.append(None)
        had_mode, _active.has_mode = _active.has_mode, False
        try:
            with without_modes():
                yield
        finally:
            _active.has_mode = had_mode
            _active.channels.pop()

    def __repr__(self) -> str:
        return "no_mesh"


no_mesh = NoMesh()
"""The absence of a mesh; see `NoMesh`."""
