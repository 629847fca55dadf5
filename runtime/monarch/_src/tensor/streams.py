"""Streams: sequences of operations whose tensors are kept apart, as CUDA's are.

Runs in: the client. A tensor belongs to the stream on which it was made, and an operation takes
tensors of one stream. A borrow lends a tensor to another stream.

A rank runs the operations of all streams one after another, in the order of the program. So streams
change no value and save no time yet; they check that a program could let them run side by side.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, cast

from monarch._src.tensor.active_mesh import active_stream, on_stream
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.channels.driver import Driver
from monarch._src.tensor.state.metas import Handle, Storage
from monarch._src.tensor.tensor import Tensor, wrap
from monarch._src.tensor.tensor_errors import RETURNED, borrowed, lent, not_owned, unusable
from monarch._src.tensor.torch_modules import torch


class Stream:
    """A stream of every mesh. Streams of one name are the same.

    Args:
        name: at most 200 characters; `"main"` is the stream of tensors that name none.

    Raises:
        ValueError: no name.
    """

    def __init__(self, name: str) -> None:
        if not 0 < len(name) <= 200:
            raise ValueError(f"Stream({name[:20]!r}): give a name of 1 to 200 characters")
        self.name = name

    def activate(self) -> AbstractContextManager[Stream]:
        """Have torch's functions make tensors of this stream until the end of the block."""
        return self._active()

    @contextmanager
    def _active(self) -> Generator[Stream]:
        with on_stream(self.name):
            yield self

    def borrow(self, tensor: Any, mutable: bool = False) -> tuple[Tensor, Borrow]:
        """Lend a tensor to this stream, until `drop` of the borrow that is returned too.

        The tensor that is returned has the memory of the given one and belongs to this stream.
        Until the drop neither is written; with `mutable`, only the returned one is used, and may be
        written.

        Raises:
            TypeError: it is no tensor of a mesh.
            ValueError: it belongs to this stream; it was dropped; it is borrowed itself; `mutable`
                and another stream reads it.
            RuntimeError: autograd would have to pass through it.
        """
        if type(tensor) is not Tensor:
            raise TypeError(f"borrow takes a tensor of a mesh, not {type(tensor).__name__}")
        handle: Handle = tensor.monarch_handle
        channel = cast(Channel, handle.channel)
        if handle.storage.unusable:
            raise unusable(handle)
        if channel.stream == self.name:
            raise ValueError(f"the tensor belongs to the stream {self.name!r}; use it as it is")
        if handle.storage.borrowed:
            raise not_owned(handle)
        if mutable and handle.storage.lent:
            raise lent(handle)
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a borrow has no gradient: borrow tensor.detach()")
        there = cast(Driver, channel.driver).channel(channel.mesh, self.name)
        storage = Storage(borrowed=True)
        if mutable:
            handle.storage.unusable = borrowed(self.name)
        else:
            handle.storage.lent += 1
            storage.lent = 1
        lease = Handle(handle.number, handle.meta, storage, there, handle, handle.base)
        return wrap(lease), Borrow(handle.storage, storage, mutable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"


class Borrow:
    """A tensor that is lent to a stream. As a context manager it drops itself at the end."""

    def __init__(self, lender: Storage, copy: Storage, mutable: bool) -> None:
        self._lender = lender
        self._copy = copy
        self._mutable = mutable
        self._dropped = False

    def drop(self) -> None:
        """Give the tensor back: the borrowed one is of no more use. Idempotent."""
        if self._dropped:
            return
        self._dropped = True
        self._copy.unusable = RETURNED
        if self._mutable:
            self._lender.unusable = ""
        else:
            self._lender.lent -= 1

    def __enter__(self) -> Borrow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.drop()


def get_active_stream() -> Stream:
    """The stream that is active on this thread; the one named `"main"` without any."""
    return Stream(active_stream())
