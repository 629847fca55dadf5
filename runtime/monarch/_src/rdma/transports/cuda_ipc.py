"""CUDA IPC: memory of a GPU of another process on this host, copied by a GPU here, one-sided.

The process that moves bytes opens the owner's allocation (`cuIpcOpenMemHandle`) with the handle in
the owner's export table, and copies on a stream of its own, to and from memory of a GPU or of the
host. The owner runs no code.

A region is locked during a copy, even during a read: if memory is freed while a GPU copies it, the
copy may not fail, but break everything that the process has on that GPU.

Runs in: threads that move bytes. Owns: openings of the peer's allocations.
Invariants: each local device opens an allocation once. An opening is closed when no copy uses it
and its regions have ended (checked when another one is opened, or when a region is missing), and
with the link.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar

import msgspec

from monarch._src.rdma.cuda import exports
from monarch._src.rdma.cuda.driver import GpuError, logged
from monarch._src.rdma.cuda.exports import Export
from monarch._src.rdma.cuda.gpu import Gpu, Stream, gpu
from monarch._src.rdma.handle import Handle
from monarch._src.rdma.key_table import GPU, PROBING, Entry
from monarch._src.rdma.regions import PROBE_ATTEMPTS, PROBE_CELL, probe_cell
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    NotSupported,
    OwnerGone,
    Piece,
    TransportFailed,
    device_of,
)
from monarch._src.rdma.transports.local_peer import LocalPeer

NOT_EXPORTED = (
    "memory of torch can be shared with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False in "
    "the owner's environment; memory of cudaMallocAsync cannot, memory of cudaMalloc can"
)
_Key = tuple[int, int, int]  # entry, generation, local device


class _Opening(msgspec.Struct, eq=False):
    base: int
    handle: Handle  # a region in the allocation
    users: int = 1


class CudaIpcLink:
    """See `base.Transport`.

    Raises:
        TransportFailed: there is no GPU here, or it cannot open the owner's memory.

    Its calls also raise NotSupported, for an allocation that the owner's driver does not export.
    """

    name: ClassVar[str] = "cuda_ipc"
    at_once: ClassVar[bool] = False
    takes_gpus: ClassVar[bool] = True

    def __init__(self, peer: LocalPeer) -> None:
        self._peer = peer
        self.piece = 1 << 25
        self.streams = 2
        self._lock = threading.Lock()
        self._openings: dict[_Key, _Opening] = {}
        self._closed = False
        try:
            self._gpu: Gpu = gpu()
            self._probe()
        except GpuError as error:
            peer.check_alive()
            raise TransportFailed(str(error)) from error

    @property
    def opened(self) -> int:
        """How many allocations of the owner are open here."""
        return len(self._openings)

    def _probe(self) -> None:
        """Write a block at the peer, read it back, compare."""
        with self._peer.keeping((PROBING,)):
            self._peer.check_alive()
            export = exports.get(self._peer.exports(), exports.PROBE, 0)
            if export is None or export.reason:
                raise TransportFailed(export.reason if export else "it has no memory for the probe")
            device = self._gpu.ordinal_of(export.uuid) or 0
            base = self._gpu.open(device, export.handle)
            try:
                for _ in range(PROBE_ATTEMPTS):
                    there = base + probe_cell()
                    sent, came = bytearray(os.urandom(PROBE_CELL)), bytearray(PROBE_CELL)
                    self._gpu.copy(there, memory_of(sent).address, PROBE_CELL, device)
                    self._gpu.copy(memory_of(came).address, there, PROBE_CELL, device)
                    if sent == came:
                        return
            finally:
                self._gpu.close_opened(device, base)
        raise TransportFailed(
            "the probe read back other bytes than it had written to the other process"
        )

    def reaches(self, handle: Handle) -> bool:
        """Whether that memory can be opened, according to its owner's tables."""
        try:
            entry, _ = self._peer.find(handle)
            return not self._export(handle, entry).reason
        except (TransportFailed, HandleExpired, OwnerGone):
            return True  # a transfer will report the problem

    # --- transfers --------------------------------------------------------------------------------

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        self._move(pieces, deadline, write=False)

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        self._move(pieces, deadline, write=True)

    def _move(self, pieces: Sequence[Piece], deadline: float, *, write: bool) -> None:
        if time.monotonic() > deadline:
            raise DeadlineExceeded
        with self._peer.writing(list(pieces)):
            try:
                found = [(piece, *self._peer.find(piece.handle)) for piece in pieces]
            except HandleExpired:
                self._sweep()
                raise
            for piece, entry, _ in found:
                if write and entry.readonly:
                    raise HandleExpired(piece.handle)
            try:
                self._copy([(piece, entry) for piece, entry, _ in found], write=write)
            except GpuError as error:
                self._peer.check_alive()
                raise TransportFailed(
                    f"a copy from or to the owner's GPU failed: {error}"
                ) from error
            if write:
                self._peer.check_alive()
            else:
                for piece, _, raw in found:
                    self._peer.still(piece.handle, raw)

    def _copy(self, found: Sequence[tuple[Piece, Entry]], *, write: bool) -> None:
        exports = [self._export(piece.handle, entry) for piece, entry in found]
        closed = {
            piece.handle.slot: export.reason
            for (piece, _), export in zip(found, exports, strict=True)
            if export.reason
        }
        if closed:
            reason = next(iter(closed.values()))
            raise NotSupported(
                closed.keys(), f"the owner's driver does not share it: {reason}", NOT_EXPORTED
            )
        with ExitStack() as openings, ExitStack() as copies:  # the copies end first
            streams: dict[int, Stream] = {}
            for (piece, entry), export in zip(found, exports, strict=True):
                ordinal = self._device_for(piece, export)
                opening = self._opened(piece.handle, entry, export, ordinal)
                base = openings.enter_context(opening)
                stream = streams.get(ordinal)
                if stream is None:
                    stream = streams[ordinal] = copies.enter_context(self._gpu.stream(ordinal))
                there = base + entry.offset + piece.offset
                to, source = (there, piece.address) if write else (piece.address, there)
                stream.copy(to, source, piece.size)

    def _export(self, handle: Handle, entry: Entry) -> Export:
        export = exports.get(self._peer.exports(), GPU - entry.segment, entry.file)
        if export is None:
            raise HandleExpired(handle)
        if not export.reason and entry.offset + entry.size > export.size:
            raise TransportFailed("the region does not lie in the allocation of its entry")
        return export

    def _device_for(self, piece: Piece, export: Export) -> int:
        """The local device that copies: that of the local memory, else the owner's, else any."""
        device = device_of(piece)
        if device is not None:
            return device.ordinal
        return self._gpu.ordinal_of(export.uuid) or 0

    # --- openings ---------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, handle: Handle, entry: Entry, export: Export, ordinal: int) -> Generator[int]:
        key = GPU - entry.segment, entry.file, ordinal
        with self._lock:
            if self._closed:
                self._peer.check_alive()
                raise TransportFailed("the link was closed meanwhile")
            opening = self._openings.get(key)
            if opening is not None:
                opening.users += 1
            else:
                self._close_ended()
                base = self._gpu.open(ordinal, export.handle)
                opening = self._openings[key] = _Opening(base, handle)
        try:
            yield opening.base
        finally:
            with self._lock:
                opening.users -= 1
                if self._closed and not opening.users:
                    self._close(key)

    def _sweep(self) -> None:
        with self._lock:
            self._close_ended()

    def _close_ended(self) -> None:
        """Close openings whose known region has ended. One with other regions is opened again."""
        ended = [
            key
            for key, opening in self._openings.items()
            if not opening.users and not self._is_live(opening.handle)
        ]
        for key in ended:
            self._close(key)

    def _is_live(self, handle: Handle) -> bool:
        return self._peer.keys.find(handle.slot, handle.key, handle.size) is not None

    def _close(self, key: _Key) -> None:
        opening = self._openings.pop(key)
        with logged("an opened allocation"):
            self._gpu.close_opened(key[2], opening.base)

    def close(self, *, now: bool = False) -> None:
        """Close all openings as the copies that use them end."""
        with self._lock:
            self._closed = True
            for key in [key for key, opening in self._openings.items() if not opening.users]:
                self._close(key)
