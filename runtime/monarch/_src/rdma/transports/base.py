"""The protocol of transports, and the ways in which a copy can fail.

A transport is *open* to one peer process once a probe block has been written there and read back
unchanged. It then moves pieces, one-sided: no code of the user runs at the peer, and for `shm` and
`cma` no code at all. A call returns when all its pieces are complete; there is nothing else to
wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

import msgspec

from monarch._src.rdma.handle import Handle
from monarch._src.rdma.memory import Device, Memory
from monarch._src.rdma.transports.choice import Why


class Piece(msgspec.Struct, frozen=True, eq=False):
    """`size` bytes between `offset` in a region and `address` in this process, in `local`."""

    handle: Handle
    offset: int
    address: int
    size: int
    local: Memory | None = None


def device_of(piece: Piece) -> Device | None:
    """The GPU of this process that has a piece's memory; None: the host."""
    return None if piece.local is None else piece.local.device


class Transport(Protocol):
    """An open transport to one peer. Several threads may use it at once.

    `piece`: the largest number of bytes for one call, which bounds the time until a transfer can
    end. `streams`: how many calls at once are useful. `at_once`: whether a small call takes no
    longer than a copy, whatever the peer does. `takes_gpus`: whether local memory may be on a GPU;
    otherwise it passes through the host (`gpu_staging`).
    """

    name: ClassVar[str]
    at_once: ClassVar[bool]
    takes_gpus: ClassVar[bool]
    piece: int
    streams: int

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        """Copy from the regions to this process. Raises the exceptions below."""
        ...

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        """Copy from this process to the regions. Raises the exceptions below."""
        ...

    def close(self, *, now: bool = False) -> None:
        """Release its resources as its calls end; `now`: calls that wait for the peer fail."""
        ...


class TransportFailed(Exception):
    """This transport failed, and the handle is not the cause: another transport may work."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.why = Why(reason, remedy)


class NotSupported(TransportFailed):
    """The transport cannot reach the memory of these slots, but that of others."""

    def __init__(self, slots: Collection[int], reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.slots = slots


class HandleExpired(Exception):
    """The handle is not valid: its region was dropped or freed, or never existed."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle.text)
        self.handle = handle


class OwnerGone(Exception):
    """The owner's process, or its session, has ended."""


class DeadlineExceeded(Exception):
    """The deadline has passed."""


class Unavailable(Exception):
    """Memory of this process cannot be copied by any transport; the text has the reason."""
