"""Shared memory: a region in a segment is mapped, and then copied like local memory.

For memory that was allocated by `shared_empty`. A transfer takes the time of a copy; system calls
are made only once for each segment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import ClassVar

from monarch._src.rdma.regions import PROBE_ATTEMPTS, PROBE_BYTES, PROBE_CELL, probe_cell
from monarch._src.rdma.shared_segments import Mapping
from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    Piece,
    TransportFailed,
)
from monarch._src.rdma.transports.local_peer import LocalPeer
from monarch._src.system import shared_memory


class ShmLink:
    """See `base.Transport`."""

    name: ClassVar[str] = "shm"
    at_once: ClassVar[bool] = True
    takes_gpus: ClassVar[bool] = False

    def __init__(self, peer: LocalPeer) -> None:
        self._peer = peer
        self.piece = 1 << 23
        self.streams = 2
        self._probe()

    def _probe(self) -> None:
        """Write a block to the probe segment through a mapping; read it back through the file."""
        header, owner = self._peer.keys.header, self._peer.owner
        try:
            mapping = Mapping(
                owner.pid, header.probe_fd, PROBE_BYTES, header.probe_file, writable=True
            )
            fd = shared_memory.open_of(owner.pid, header.probe_fd, writable=False)
        except (OSError, LookupError) as error:
            self._peer.check_alive()
            raise TransportFailed(
                f"a segment of process {owner.pid} could not be mapped: {error}"
            ) from error
        try:
            view = mapping.view()
            for _ in range(PROBE_ATTEMPTS):
                place = probe_cell()
                sent = os.urandom(PROBE_CELL)
                view[place : place + PROBE_CELL] = sent
                if os.pread(fd, PROBE_CELL, place) == sent:
                    return
        finally:
            os.close(fd)
        raise TransportFailed(
            "the probe read back other bytes than it had written to a shared segment"
        )

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        for piece in pieces:
            if time.monotonic() > deadline:
                raise DeadlineExceeded
            entry, raw = self._peer.find(piece.handle)
            mapping = self._peer.mapping(piece.handle, entry, writable=not entry.readonly)
            place = mapping.address + entry.offset + piece.offset
            shared_memory.copy(piece.address, place, piece.size)
            self._peer.still(piece.handle, raw)

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        with self._peer.writing(list(pieces)):
            for piece in pieces:
                if time.monotonic() > deadline:
                    raise DeadlineExceeded
                entry, _ = self._peer.find(piece.handle)
                if entry.readonly:
                    raise HandleExpired(piece.handle)
                mapping = self._peer.mapping(piece.handle, entry, writable=True)
                place = mapping.address + entry.offset + piece.offset
                shared_memory.copy(place, piece.address, piece.size)
            self._peer.check_alive()

    def close(self, *, now: bool = False) -> None:
        """Nothing to release: mappings are closed with the peer."""
