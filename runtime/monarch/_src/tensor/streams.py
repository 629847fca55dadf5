"""Streams: sequences of operations that each rank runs side by side, as CUDA's streams.

Runs in: the client. A tensor belongs to the stream on which it was made, and an operation takes
tensors of one stream. A borrow lends a tensor to another stream. Operations of the borrower wait
for those that the lender has recorded before the borrow, and operations of the lender after the
drop wait for those of the borrower.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, cast

from monarch._src.errors import SupervisionError
from monarch._src.tensor.active_mesh import active_stream, on_stream
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.channels.driver import Driver
from monarch._src.tensor.operations.kinds import kind_with_outputs, own_kind
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.instructions import NOTHING
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
        site = sites.number(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        there = cast(Driver, channel.driver).channel(channel.mesh, self.name)
        there.check()
        storage = Storage(borrowed=True)
        lent_handles = [handle] if handle.base is None else [handle, handle.base]
        with channel.driver.lock:  # no other thread may use the tensor in between
            handover = channel.new_handover()
            numbers = tuple([one.number for one in lent_handles])
            channel.record(own_kind("monarch::lend", stores=NOTHING), numbers, (handover,), site)
            first = there.record(
                kind_with_outputs("monarch::borrow", len(numbers)), (), (handover,), site
            )
            if mutable:
                handle.storage.unusable = borrowed(self.name)
            else:
                handle.storage.lent += 1
                storage.lent = 1
        base = None
        if handle.base is not None:
            base = Handle(first + 1, handle.base.meta, storage, there)
        lease = Handle(first, handle.meta, storage, there, None, base)
        return wrap(lease), Borrow(lent_handles, lease, mutable, site)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"


class Borrow:
    """A tensor that is lent to a stream. As a context manager it drops itself at the end."""

    def __init__(self, lenders: list[Handle], lease: Handle, mutable: bool, site: int) -> None:
        """`lenders`: the tensor that is lent, and its base if it has one; `lease`: the borrowed."""
        self._lenders = lenders
        self._leases = [lease] if lease.base is None else [lease, lease.base]
        self._mutable = mutable
        self._site = site
        self._dropped = False

    def drop(self) -> None:
        """Give the tensor back: the borrowed one is of no more use. Idempotent.

        Later operations of the lender wait until the borrower has run those before the drop.

        Raises:
            SupervisionError: a rank has died. The tensor stays borrowed.
        """
        if self._dropped:
            return
        lender, lease = self._lenders[0], self._leases[0]
        lending, borrowing = cast(Channel, lender.channel), cast(Channel, lease.channel)
        with lending.driver.lock:
            if lending.driver.stopped is None:
                self._wait_for_borrower(lending, borrowing)
            self._dropped = True
            lease.storage.unusable = RETURNED
            if self._mutable:
                lender.storage.unusable = ""
            else:
                lender.storage.lent -= 1
        self._lenders, self._leases = [], []  # ranks may free them

    def _wait_for_borrower(self, lending: Channel, borrowing: Channel) -> None:
        """Have ranks run later operations of the lender after those of the borrower so far."""
        handover = borrowing.new_handover()
        lending.check()
        numbers = tuple([one.number for one in self._leases])
        back = own_kind("monarch::give_back", stores=NOTHING)
        borrowing.record(back, numbers, (handover,), self._site)
        numbers = tuple([one.number for one in self._lenders])
        written = tuple(range(len(numbers))) if self._mutable else ()
        taken = own_kind("monarch::take_back", stores=NOTHING, mutated=written)
        lending.record(taken, numbers, (handover,), self._site)

    def __enter__(self) -> Borrow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None:
            self.drop()
            return
        with suppress(SupervisionError):  # the block has raised already
            self.drop()


def get_active_stream() -> Stream:
    """The stream that is active on this thread; the one named `"main"` without any."""
    return Stream(active_stream())
