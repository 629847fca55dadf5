"""What every transport is: one small protocol, and the ways in which a copy can fail.

A transport is *open* to one peer process (a Link) once a block has gone there and come back as it
went. A link then moves pieces, one-sided: no code of the user runs at the peer, and for `shm` and
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
    """So many bytes between `offset` in a region and an address of this process, in `local`."""

    handle: Handle
    offset: int
    address: int
    size: int
    local: Memory | None = None


def device_of(piece: Piece) -> Device | None:
    """The GPU of this process that has a piece's memory; None: the host."""
    return None if piece.local is None else piece.local.device


class Transport(Protocol):
    """An open way to one peer. Threads may use it at once.

    `piece`: how many bytes a call should move at most, so that a transfer can be told to end.
    `streams`: how many calls at once are worth while. `at_once`: whether a small call is over in
    the time of a copy, whatever the peer does. `takes_gpus`: whether the memory of this process may
    be that of a GPU; elsewhere it passes through the host (`staged`).
    """

    name: ClassVar[str]
    at_once: ClassVar[bool]
    takes_gpus: ClassVar[bool]
    piece: int
    streams: int

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        """Copy from the regions to this process. Raises what is below."""
        ...

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        """Copy from this process to the regions. Raises what is below."""
        ...

    def close(self, *, now: bool = False) -> None:
        """Give back what it holds as its calls end; `now`: those that wait for the peer fail."""
        ...


class TransportFailed(Exception):
    """This transport cannot do it, for no fault of the handle: another one may."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.why = Why(reason, remedy)


class NotSupported(TransportFailed):
    """It cannot reach the memory of those slots; that of others it can."""

    def __init__(self, slots: Collection[int], reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.slots = slots


class HandleExpired(Exception):
    """The handle opens nothing: its region was dropped or freed, or never was."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle.text)
        self.handle = handle


class OwnerGone(Exception):
    """The owner's process, or its session, has ended."""


class DeadlineExceeded(Exception):
    """The deadline has passed."""


class Unavailable(Exception):
    """The memory of this process cannot be copied here, whatever the transport; the text is why."""
