"""Cross-memory attach: any memory of a process on this host, copied by the kernel, one-sided.

`process_vm_readv` and `process_vm_writev` (Linux 3.2, 2012) copy between two address spaces at the
speed of one copy; the other process takes no part. They take addresses, and an address does not
tell which memory is there now: `key_table` makes them safe.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from monarch._src.rdma.regions import PROBE_ATTEMPTS, PROBE_CELL, probe_cell
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    Piece,
    TransportFailed,
)
from monarch._src.rdma.transports.local_peer import LocalPeer
from monarch._src.system import shared_memory


class CmaLink:
    """See `base.Transport`."""

    name: ClassVar[str] = "cma"
    at_once: ClassVar[bool] = True
    takes_gpus: ClassVar[bool] = False

    def __init__(self, peer: LocalPeer) -> None:
        self._peer = peer
        self.piece = 1 << 23
        self.streams = 2
        self._probe()

    def _probe(self) -> None:
        """Write a block at the peer, read it back, compare."""
        header = self._peer.keys.header
        for _ in range(PROBE_ATTEMPTS):
            place = probe_cell()
            sent = bytearray(os.urandom(PROBE_CELL))
            came = bytearray(PROBE_CELL)
            there = header.probe_address + place
            self._all(shared_memory.copy_to, [(there, _at(sent), PROBE_CELL)])
            self._all(shared_memory.copy_from, [(there, _at(came), PROBE_CELL)])
            if sent == came:
                return
        raise TransportFailed(
            "the probe read back other bytes than it had written to the other process"
        )

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        _in_time(deadline)
        found = [(piece, *self._peer.find(piece.handle)) for piece in pieces]
        vectors = [(e.address + p.offset, p.address, p.size) for p, e, _ in found]
        try:
            self._all(shared_memory.copy_from, vectors)
        finally:
            for piece, _, raw in found:  # if the copy failed, an expired key is the better reason
                self._peer.still(piece.handle, raw)

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        _in_time(deadline)
        with self._peer.writing(list(pieces)):
            entries = [(piece, self._peer.find(piece.handle)[0]) for piece in pieces]
            for piece, entry in entries:
                if entry.readonly:
                    raise HandleExpired(piece.handle)
            vectors = [(e.address + p.offset, p.address, p.size) for p, e in entries]
            self._all(shared_memory.copy_to, vectors)
            self._peer.check_alive()

    def _all(
        self,
        copy: Callable[[int, Sequence[shared_memory.Vector]], int],
        vectors: list[shared_memory.Vector],
    ) -> None:
        """Copy all of it: one system call may copy less."""
        pid = self._peer.owner.pid
        left = vectors
        while left:
            try:
                done = copy(pid, left[: shared_memory.MOST_VECTORS])
            except OSError as error:
                self._peer.check_alive()
                raise TransportFailed(*_why(error, pid)) from error
            left = _rest(left, done)

    def close(self, *, now: bool = False) -> None:
        """Nothing to release: the peer is shared."""


def _rest(vectors: list[shared_memory.Vector], done: int) -> list[shared_memory.Vector]:
    for at, (there, here, size) in enumerate(vectors):
        if done < size:
            return [(there + done, here + done, size - done), *vectors[at + 1 :]]
        done -= size
    return []


def _at(block: bytearray) -> int:
    return memory_of(block).address


def _in_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise DeadlineExceeded


def _why(error: OSError, pid: int) -> tuple[str, str]:
    if error.errno == errno.EPERM:
        return not_permitted(pid)
    if error.errno == errno.ENOSYS:
        return "this kernel has no process_vm_readv", "build it with CONFIG_CROSS_MEMORY_ATTACH"
    name = errno.errorcode.get(error.errno or 0, "")
    return f"copying from or to process {pid} failed: {error.strerror} ({name})", ""


def not_permitted(pid: int) -> tuple[str, str]:
    """Why the kernel forbids it, and the remedy."""
    scope = shared_memory.yama_scope()
    if scope >= 2:
        return (
            f"kernel.yama.ptrace_scope is {scope}: no process may access the memory of another",
            "sysctl kernel.yama.ptrace_scope=1, or CAP_SYS_PTRACE for both",
        )
    return (
        f"process {pid} does not let this one access its memory: {os.strerror(errno.EPERM)}",
        "both have to run as the same user; in a container add the capability SYS_PTRACE",
    )


def works_here() -> tuple[str, str] | None:
    """Why cross-memory attach cannot work on this machine; None if it works within this process."""
    if not shared_memory.PRESENT:
        return "cross-memory attach needs Linux", ""
    block, copy = bytearray(os.urandom(PROBE_CELL)), bytearray(PROBE_CELL)
    try:
        shared_memory.copy_from(os.getpid(), [(_at(block), _at(copy), PROBE_CELL)])
    except OSError as error:
        return _why(error, os.getpid())
    if block != copy:
        return "the copied bytes differ from the original", ""
    if shared_memory.yama_scope() >= 2 and os.geteuid():
        return not_permitted(os.getpid())
    return None
