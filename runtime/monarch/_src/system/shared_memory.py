"""Facilities of the kernel for the data plane: memory of other processes, mappings, locks.

Runs in: any process. Every call here releases the GIL. Linux only; elsewhere `PRESENT` is False and
nothing here may be called.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

PRESENT = sys.platform == "linux"
MOST_VECTORS = 512  # the kernel's limit is 1,024
_WRITTEN_AT_ONCE = 1 << 24
Vector = tuple[int, int, int]  # remote address, local address, bytes

_PR_SET_PTRACER = 0x59616D61
_PROT_READ, _PROT_WRITE, _MAP_SHARED, _MAP_PRIVATE = 1, 2, 1, 2
_FAILED = ctypes.c_void_p(-1).value
_MADV_DONTFORK, _MADV_POPULATE_WRITE = 10, 23
_PUNCH_HOLE_KEEP_SIZE = 2 | 1
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_libc: Any = ctypes.CDLL(None, use_errno=True)
if PRESENT:
    for _name in ("process_vm_readv", "process_vm_writev"):
        _function = getattr(_libc, _name)
        _function.restype = ctypes.c_ssize_t
        _function.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong,
            ctypes.c_ulong,
        ]  # fmt: skip
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ctypes.c_longlong,
    ]  # fmt: skip
    _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    _libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong]
    _libc.pwrite.restype = ctypes.c_ssize_t
    _libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def copy(local_to: int, local_from: int, size: int) -> None:
    """Copy within this process."""
    ctypes.memmove(local_to, local_from, size)


_fencing, _fence = threading.Lock(), threading.Lock()
_fence.acquire()


def fence() -> None:
    """Order memory: reads and writes of this thread before the call precede those after it.

    Processors other than x86 may otherwise reorder them, as seen by others. The call releases and
    acquires a lock: nothing moves down past the first or up past the second, nor they past each
    other.
    """
    with _fencing:
        _fence.release()
        _fence.acquire()


def copy_from(pid: int, vectors: Sequence[Vector]) -> int:
    """Copy from another process's memory; returns the number of bytes, which may be smaller.

    Raises:
        OSError: ESRCH: there is no such process; EPERM: it may not be read; EFAULT: not even the
            first byte could be read.
    """
    return _vm(_libc.process_vm_readv, pid, vectors)


def copy_to(pid: int, vectors: Sequence[Vector]) -> int:
    """The same, into another process's memory."""
    return _vm(_libc.process_vm_writev, pid, vectors)


def _vm(call: Any, pid: int, vectors: Sequence[Vector]) -> int:
    count = len(vectors)
    local, remote = (_IoVec * count)(), (_IoVec * count)()
    for at, (there, here, size) in enumerate(vectors):
        local[at].base, local[at].length = here, size
        remote[at].base, remote[at].length = there, size
    done = call(pid, ctypes.addressof(local), count, ctypes.addressof(remote), count, 0)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


def let_others_trace() -> None:
    """If Yama allows only descendants to access a process, allow others of this user too."""
    if yama_scope() == 1:
        _libc.prctl(_PR_SET_PTRACER, ctypes.c_long(-1), 0, 0, 0)


def yama_scope() -> int:
    """How far Yama restricts access to other processes; 0 without Yama."""
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):
        return 0


@cache
def this_host() -> str:
    """A text that two processes share if and only if they run under one kernel."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{os.uname().nodename}/{boot}"


# --- mappings -------------------------------------------------------------------------------------


def map_shared(fd: int, size: int, *, writable: bool) -> int:
    """Map a file that cannot shrink; returns the address. The descriptor may be closed after."""
    return _map(fd, size, _PROT_READ | (_PROT_WRITE if writable else 0), _MAP_SHARED)


def map_private(fd: int, size: int) -> int:
    """Map it copy-on-write: other processes do not see writes to this mapping."""
    return _map(fd, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE)


def _map(fd: int, size: int, protection: int, flags: int) -> int:
    address = _libc.mmap(None, size, protection, flags, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {size} bytes failed: {os.strerror(number)}")
    return address


def keep_from_forks(address: int, size: int) -> None:
    """Exclude a mapping from forks of this process."""
    _libc.madvise(address, size, _MADV_DONTFORK)


def populate(address: int, size: int) -> None:
    """Populate the pages of a mapping that will be written to next, if the kernel supports it."""
    _libc.madvise(address, size, _MADV_POPULATE_WRITE)


def write_at(fd: int, source: int, size: int, offset: int) -> None:
    """Write memory to a file. A lack of memory raises OSError; in a mapping it would be SIGBUS."""
    while size:
        done = _libc.pwrite(fd, source, min(size, _WRITTEN_AT_ONCE), offset)
        if done <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        source, size, offset = source + done, size - done, offset + done


def unmap(address: int, size: int) -> None:
    """Remove a mapping."""
    _libc.munmap(address, size)


def free_pages(fd: int, size: int) -> None:
    """Free the memory of a file. Processes that have it mapped see zeros from then on."""
    _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, 0, size)


def sealed_file(name: str, size: int) -> int:
    """An anonymous file in memory of a fixed size; freed when the last process closes it."""
    fd = os.memfd_create(f"monarch-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_sealed(fd: int, size: int) -> bool:
    """Whether a file has at least that size and cannot shrink."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return bool(seals & fcntl.F_SEAL_SHRINK) and os.fstat(fd).st_size >= size


def open_of(pid: int, fd: int, *, writable: bool) -> int:
    """Open the file behind another process's descriptor."""
    mode = os.O_RDWR if writable else os.O_RDONLY
    return os.open(f"/proc/{pid}/fd/{fd}", mode | os.O_CLOEXEC)


# --- locks on a range of a file, which the kernel releases when their holder dies ----------------

_FLOCK = struct.Struct("@hhqqi4x")


def lock_shared(fd: int, start: int, length: int) -> None:
    """Wait until no process holds the range exclusively, and take a shared lock."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_RDLCK, 0, start, length, 0))


def lock_alone(fd: int, start: int, length: int) -> None:
    """Wait until no other process holds the range, and take an exclusive lock."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, 0, start, length, 0))


def unlock(fd: int, start: int, length: int) -> None:
    """Release the lock on the range."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, start, length, 0))
