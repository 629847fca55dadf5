"""What copies large payloads lets other threads of Python run, shown without a clock.

The memory that is copied has a page that is not there: who touches it stands still until another
thread of this process, which runs Python, has put it there (userfaultfd). Who kept the
interpreter's lock meanwhile would wait for ever.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from monarch._src.rdma.memory import view_of
from monarch._src.system import shared_memory
from monarch._src.wire.memory_copies import bytes_from
from monarch._src.wire.raw_memory import address_of

SIZE = 1 << 22
_NUMBER = {"x86_64": 323, "aarch64": 282}.get(platform.machine())
_API, _REGISTER, _COPY = 0xC018AA3F, 0xC020AA00, 0xC028AA03
_VERSION, _MISSING = 0xAA, 1


def _opened() -> int:
    """A userfaultfd; -1 and an errno where there is none."""
    if sys.platform != "linux" or _NUMBER is None:
        return -errno.ENOSYS
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(_NUMBER, os.O_CLOEXEC)
    return found if found >= 0 else -ctypes.get_errno()


class Late:
    """Memory whose last page comes when somebody touches it, by a thread that runs Python."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pages = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = address_of(memoryview(self._pages))
        self.last = SIZE - mmap.PAGESIZE
        self._pages[: self.last] = bytes([1]) * self.last
        fcntl.ioctl(fd, _API, struct.pack("<QQQ", _VERSION, 0, 0))
        fcntl.ioctl(
            fd, _REGISTER,
            struct.pack("<QQQQ", self.address + self.last, mmap.PAGESIZE, _MISSING, 0),
        )  # fmt: skip
        self.asked = threading.Event()
        self._thread = threading.Thread(target=self._bring)
        self._thread.start()

    def _bring(self) -> None:
        os.read(self._fd, 32)
        self.asked.set()  # here Python runs, while who asked stands still
        page = ctypes.create_string_buffer(bytes([2]) * mmap.PAGESIZE, mmap.PAGESIZE)
        where = self.address + self.last, ctypes.addressof(page), mmap.PAGESIZE, 0, 0
        fcntl.ioctl(self._fd, _COPY, struct.pack("<QQQQq", *where))

    def close(self) -> None:
        self._thread.join()
        os.close(self._fd)


@pytest.fixture
def late() -> Iterator[Late]:
    fd = _opened()
    if fd < 0:
        pytest.skip(f"no userfaultfd here: {os.strerror(-fd)} (needs Linux, and root or a sysctl)")
    memory = Late(fd)
    yield memory
    memory.close()


def into_bytes(late: Late) -> bytes:
    return bytes_from(view_of(late.address, SIZE))


def into_memory(late: Late) -> bytes:
    room = bytearray(SIZE)
    shared_memory.copy(address_of(room), late.address, SIZE)
    return bytes(room)


def into_a_file(late: Late) -> bytes:
    fd = shared_memory.sealed_file("test", SIZE)
    try:
        shared_memory.write_at(fd, late.address, SIZE, 0)
        return os.pread(fd, SIZE, 0)
    finally:
        os.close(fd)


@pytest.mark.parametrize("copy", [into_bytes, into_memory, into_a_file])
def test_other_threads_run_while_a_large_payload_is_copied(
    late: Late, copy: Callable[[Late], bytes]
) -> None:
    made = copy(late)
    assert late.asked.is_set()
    assert made == bytes([1]) * late.last + bytes([2]) * mmap.PAGESIZE
