"""The active mesh of each thread, on which torch's factories make tensors.

Runs in: the client, on the threads of the program. While a mesh is active, a dispatch mode of torch
sees every operation of the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.channels.driver import channel_of, known_driver
from monarch._src.tensor.devices import device_type, explained, on_gpus
from monarch._src.tensor.state.instructions import MAIN
from monarch._src.tensor.torch_modules import TorchDispatchMode, never_compiled, without_modes

if TYPE_CHECKING:
    from monarch._src.mesh.meshes import ProcMesh


class _Active(threading.local):
    def __init__(self) -> None:
        self.channels: list[Channel | None] = []
        self.streams: list[str] = []
        self.activations: list[Activation] = []
        self.has_mode = False


_active = _Active()


class Mode(TorchDispatchMode):
    """Hands operations of this thread to the dispatcher."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that this avoids costs microseconds for each operation

    @never_compiled
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
    place = len(_active.channels)
    _active.streams.append(name)
    _active.channels.append(channel)
    try:
        yield
    finally:
        _end_activations(place)
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


class Activation:
    """The activity of a mesh on this thread: from the call of `activate` to the end of its block.

    Without a block it ends by `deactivate`, or with the block around it.
    """

    def __init__(self, mesh: ProcMesh, device: Any = None) -> None:
        self.channel = channel_of(mesh, active_stream())
        self.channel.check()
        if device is not None:
            self.channel.driver.use_device(device_type(device))
        self.mesh = mesh
        self.place = len(_active.channels)  # among the channels of its thread
        self._block = ExitStack()
        with ExitStack() as undo:
            undo.callback(self.end)
            self._block.enter_context(explained())
            _active.channels.append(self.channel)
            _active.activations.append(self)
            if not _active.has_mode:
                _active.has_mode = True
                self._block.callback(setattr, _active, "has_mode", False)
                self._block.enter_context(Mode())
            if self.channel.driver.device == "cuda":
                self.go_on_with_gpus()
            undo.pop_all()

    def go_on_with_gpus(self) -> None:
        """Choose operations that GPUs can run, from here on."""
        self._block.enter_context(on_gpus())

    def __enter__(self) -> ProcMesh:
        return self.mesh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:  # fmt: skip
        if not self._remove():
            return None
        return self._block.__exit__(kind, error, trace)

    def end(self) -> None:
        """End it, and the activations that have begun since. Idempotent."""
        if self._remove():
            self._block.close()

    def _remove(self) -> bool:
        """Remove it from the thread that has begun it; returns whether it was there."""
        if self not in _active.activations:
            return False
        _end_activations(self.place + 1)
        _active.activations.pop()
        _active.channels.pop()
        return True


def _end_activations(place: int) -> None:
    """End the activations from that place on, which have no block of their own."""
    while _active.activations and _active.activations[-1].place >= place:
        _active.activations[-1].end()


def activate(mesh: ProcMesh, device: Any = None) -> Activation:
    """See `ProcMesh.activate`."""
    return Activation(mesh, device)


def deactivate(mesh: ProcMesh) -> None:
    """See `ProcMesh.deactivate`."""
    driver = known_driver(mesh)
    for found in reversed(_active.activations):
        if found.channel.driver is driver and found.channel.region == mesh._region:  # pyright: ignore[reportPrivateUsage]
            break
    else:
        return
    if len(_active.channels) > found.place + 1:
        raise RuntimeError(
            f"{found.channel.name} was activated before another mesh, stream or no_mesh that is "
            "still active; end that first"
        )
    found.end()


def first_on_gpus() -> None:
    """Continue the block of the active mesh for GPUs, which its first tensor has chosen."""
    if _active.activations:
        _active.activations[-1].go_on_with_gpus()


@contextmanager
def for_backward() -> Generator[None]:
    """Have the dispatcher see the operations of autograd, also while no mesh is active."""
    if _active.has_mode:
        yield
        return
    _active.has_mode = True
    try:
        with Mode():
            yield
    finally:
        _active.has_mode = False


class NoMesh:
    """No mesh: within `no_mesh.activate()`, torch runs operations in this process."""

    @contextmanager
    def activate(self) -> Generator[None]:
        """Run torch operations in this process until the end of the block."""
        place = len(_active.channels)
        _active.channels.append(None)
        had_mode, _active.has_mode = _active.has_mode, False
        try:
            with without_modes():
                try:
                    yield
                finally:
                    _end_activations(place)
        finally:
            _active.has_mode = had_mode
            _active.channels.pop()

    def __repr__(self) -> str:
        return "no_mesh"


no_mesh = NoMesh()
"""The absence of a mesh; see `NoMesh`."""
