"""What the data plane asks of the kernel beyond `os`: another process's memory, mappings, locks.

Runs in: any process. Every call here releases the interpreter's lock. Linux; elsewhere `PRESENT` is
False and none of it may be called.
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
MOST_VECTORS = 512  # a kernel takes 1,024
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
    """Copy inside this process."""
    ctypes.memmove(local_to, local_from, size)


_fencing, _fence = threading.Lock(), threading.Lock()
_fence.acquire()


def fence() -> None:
    """What this thread has read or written before is done before what it does after.

    A processor other than x86 may otherwise change their order, as others see it. A lock is let go
    and taken: nothing moves down past the first or up past the second, nor they past each other.
    """
    with _fencing:
        _fence.release()
        _fence.acquire()


def copy_from(pid: int, vectors: Sequence[Vector]) -> int:
    """Copy out of another process's memory; returns how many bytes came, which may be fewer.

    Raises:
        OSError: ESRCH there is no such process, EPERM it may not be read, EFAULT not even the first
            byte could be.
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
    """Where Yama allows only descendants to look into a process, allow others of this user too."""
    if yama_scope() == 1:
        _libc.prctl(_PR_SET_PTRACER, ctypes.c_long(-1), 0, 0, 0)


def yama_scope() -> int:
    """How far Yama restricts looking into other processes; 0 where there is no Yama."""
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):
        return 0


@cache
def this_host() -> str:
    """What two processes have in common when they run under one kernel."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{os.uname().nodename}/{boot}"


# --- mappings -------------------------------------------------------------------------------------


def map_shared(fd: int, size: int, *, writable: bool) -> int:
    """Map a file that cannot shrink; its address. The descriptor may be closed then."""
    return _map(fd, size, _PROT_READ | (_PROT_WRITE if writable else 0), _MAP_SHARED)


def map_private(fd: int, size: int) -> int:
    """The same, to be written to without anybody else seeing that."""
    return _map(fd, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE)


def _map(fd: int, size: int, protection: int, flags: int) -> int:
    address = _libc.mmap(None, size, protection, flags, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {size} bytes failed: {os.strerror(number)}")
    return address


def keep_from_forks(address: int, size: int) -> None:
    """A fork of this process is not to have that mapping."""
    _libc.madvise(address, size, _MADV_DONTFORK)


def populate(address: int, size: int) -> None:
    """Enter the pages of a mapping that will be written to at once, where the kernel can."""
    _libc.madvise(address, size, _MADV_POPULATE_WRITE)


def write_at(fd: int, source: int, size: int, offset: int) -> None:
    """Write memory to a file; where there is no room for it, that is an error and no SIGBUS."""
    while size:
        done = _libc.pwrite(fd, source, min(size, _WRITTEN_AT_ONCE), offset)
        if done <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        source, size, offset = source + done, size - done, offset + done


def unmap(address: int, size: int) -> None:
    """Take a mapping away."""
    _libc.munmap(address, size)


def free_pages(fd: int, size: int) -> None:
    """Give the memory of a file back, though others may have it mapped: they see zeros then."""
    _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, 0, size)


def sealed_file(name: str, size: int) -> int:
    """A nameless file in memory whose size is final; it goes with the last who has it open."""
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
    """Another process's file, opened here once more."""
    mode = os.O_RDWR if writable else os.O_RDONLY
    return os.open(f"/proc/{pid}/fd/{fd}", mode | os.O_CLOEXEC)


# --- locks on a range of a file, which the kernel takes back when their holder dies --------------

_FLOCK = struct.Struct("@hhqqi4x")


def lock_shared(fd: int, start: int, length: int) -> None:
    """Wait until nobody holds the range alone, and hold it with others."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_RDLCK, 0, start, length, 0))


def lock_alone(fd: int, start: int, length: int) -> None:
    """Wait until nobody else holds the range, and hold it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, 0, start, length, 0))


def unlock(fd: int, start: int, length: int) -> None:
    """Hold the range no more."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, start, length, 0))
