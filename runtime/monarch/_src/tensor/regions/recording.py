"""The recording of a region that is under way on a thread. Runs in: the client.

Channels hand over instructions, and dispatchers the tensors that operations use. This module
refuses operations that a recorded region cannot repeat, before they run.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from monarch._src.tensor.state.instructions import Kind
from monarch._src.tensor.state.regions import Recording
from monarch._src.tensor.tensor_errors import not_in_region

# Ranks keep the function, so a region need not have it.
_SET_UP = ("monarch::define",)
_REFUSED = {
    "monarch::drop": ("drop()", "ranks free what the region has made; drop inputs after the call"),
    "monarch::send": ("to_mesh()", "move tensors before or after the call"),
    "monarch::receive": ("to_mesh()", "move tensors before or after the call"),
    "monarch::lend": ("a borrow", "borrow the tensor before the call"),
    "monarch::give_back": ("the drop() of a borrow", "drop it after the call"),
}


class Watch:
    """A recording, with the mesh that it is on and the tensors that it captures."""

    def __init__(self, name: str, channel: Any, inputs: Sequence[int]) -> None:
        """`name`: of the function. `inputs`: as for `Recording`."""
        self.name = name
        self.channel = channel
        self.recording = Recording(inputs)
        self.foreign: dict[int, Any] = {}  # tensors from outside, with what they were then
        self._inputs = frozenset(inputs)

    def check(self, channel: Any, kind: Kind) -> None:
        """Raise if a region cannot have that instruction."""
        operation = kind.operation
        if operation in _REFUSED:
            what, instead = _REFUSED[operation]
            raise not_in_region(self.name, what, instead)
        if channel is not self.channel and operation not in _SET_UP:
            raise not_in_region(
                self.name, f"an operation on another mesh or slice, {channel.region.extent},",
                "a region is on one mesh: that of its tensor arguments, or the active mesh",
            )  # fmt: skip

    def add(
        self, kind: Kind, inputs: tuple[int, ...], first: int, scalars: tuple[Any, ...], site: int
    ) -> None:
        """Record an instruction that the channel has recorded."""
        if kind.operation not in _SET_UP:
            self.recording.add(kind, inputs, first, scalars, site)

    def has_made(self, tensor: Any) -> bool:
        """Whether the region has made the tensor."""
        return self.recording.has_made(tensor.monarch_handle.number)

    def knows(self, number: int) -> bool:
        """Whether the tensor of that number is an input, or the region has used or made it."""
        is_outside = number in self._inputs or number in self.foreign
        return is_outside or self.recording.has_made(number)

    def note(self, tensor: Any) -> None:
        """Keep a tensor that an operation uses, if it comes from outside of the region."""
        number = tensor.monarch_handle.number
        if self.knows(number):
            return
        self.foreign[number] = State(tensor)


class State:
    """A tensor, and how often it and its gradient were written, as the client counts it."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self._version = version_of(tensor)
        self._grad = gradient_state(tensor)

    @property
    def is_written(self) -> bool:
        """Whether it was written since."""
        return version_of(self.tensor) != self._version

    @property
    def has_new_grad(self) -> bool:
        """Whether its gradient has changed since."""
        return gradient_state(self.tensor) != self._grad


def version_of(tensor: Any) -> int:
    """How often a tensor was written; 0 if autograd does not count it."""
    return 0 if tensor.is_inference() else tensor._version


def gradient_state(tensor: Any) -> tuple[int, int] | None:
    """The identity and version of the gradient of a leaf; None if it has none."""
    if not tensor.is_leaf:
        return None
    grad = tensor._own_grad
    return None if grad is None else (id(grad), version_of(grad))


class _Local(threading.local):
    watch: Watch | None = None


_local = _Local()


def active() -> Watch | None:
    """The recording that is under way on this thread."""
    return _local.watch


@contextmanager
def recorded(watch: Watch) -> Generator[Watch]:
    """Record what this thread does, until the end of the block."""
    _local.watch = watch
    try:
        yield watch
    finally:
        _local.watch = None


@contextmanager
def unrecorded() -> Generator[None]:
    """Leave what this thread does out of the recording that is under way."""
    watch, _local.watch = _local.watch, None
    try:
        yield
    finally:
        _local.watch = watch


def refuse(what: str, instead: str) -> None:
    """Raise if a recording is under way on this thread."""
    watch = _local.watch
    if watch is not None:
        raise not_in_region(watch.name, what, instead)


def refuse_values() -> None:
    """Raise if a recording is under way: its calls would not wait for values."""
    refuse("a read of values from the ranks", "return the tensor, and fetch it after the call")


def refuse_grad() -> None:
    """Raise if a recording is under way: later calls would neither read nor set `.grad`."""
    refuse(
        ".grad", "compute gradients with torch.autograd.grad(loss, tensors) and use them as results"
    )
