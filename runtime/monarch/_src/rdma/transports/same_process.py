"""Memory of the same process: two actors of one proc, or a client and its controllers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from monarch._src.rdma.cuda.driver import GpuError
from monarch._src.rdma.cuda.gpu import gpu
from monarch._src.rdma.regions import Held, Regions
from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    Piece,
    Unavailable,
    device_of,
)
from monarch._src.system import shared_memory


class LocalLink:
    """See `base.Transport`."""

    name: ClassVar[str] = "local"
    at_once: ClassVar[bool] = True
    takes_gpus: ClassVar[bool] = True

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self.piece = 1 << 23
        self.streams = 2

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        for piece in pieces:
            held = self._hold(piece, deadline)
            try:
                _copy(piece, held, piece.address, held.address + piece.offset)
            finally:
                self._regions.release(held)

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        for piece in pieces:
            held = self._hold(piece, deadline)
            try:
                if held.readonly:
                    raise HandleExpired(piece.handle)
                _copy(piece, held, held.address + piece.offset, piece.address)
            finally:
                self._regions.release(held)

    def _hold(self, piece: Piece, deadline: float) -> Held:
        if time.monotonic() > deadline:
            raise DeadlineExceeded
        held = self._regions.hold(piece.handle.slot, piece.handle.key)
        if held is None or held.size != piece.handle.size:
            raise HandleExpired(piece.handle)
        return held

    def close(self, *, now: bool = False) -> None:
        """Nothing to release."""


def _copy(piece: Piece, held: Held, to: int, source: int) -> None:
    device = device_of(piece) or held.device
    if device is None:
        shared_memory.copy(to, source, piece.size)
        return
    try:
        gpu().copy(to, source, piece.size, device.ordinal)
    except GpuError as error:
        raise Unavailable(str(error)) from error
