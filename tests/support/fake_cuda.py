"""A fake CUDA driver: its functions, over files in memory, for machines without a GPU.

`install()` puts them in the driver's place for one process, before it meets memory of a GPU; errors
can be injected at any call. The code above the driver's functions (`monarch._src.rdma.cuda`) runs
as it would over a real one: the functions are C functions with the same arguments and results.
Processes see each other's memory by handles that name a file; device memory has addresses that no
processor can use, so code that takes them for those of the host crashes; copies happen as late as
they may, when their stream is waited for, and if memory that they need is gone by then the context
ends, as on a GPU. Tests run over this, and over a real device too where the machine has one.

Runs in: any process of a test. Owns: the files and mappings that stand for memory, until they are
freed or closed, or the process ends.
"""

from __future__ import annotations

import bisect
import ctypes
import logging
import mmap
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from monarch._src.rdma.cuda.driver import DEVICE_ORDINAL, NOT_READY, PROTOTYPES
from monarch._src.rdma.cuda.gpu import use_functions
from monarch._src.system import shared_memory

log = logging.getLogger("monarch.testing")
_FIRST = 1 << 60  # no processor's address: it is in the gap between those of programs and kernels
_BLOCK = 1 << 21
_CONTEXT = 0xC0DE000
_HANDLE = struct.Struct("<8sQQQQ16s")  # exporter, pid, descriptor, inode, size, UUID
_EXCHANGED = (0, 1, 2)

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, MAP_FAILED = 100, 101, 201, 205
PEER_ACCESS_UNSUPPORTED, INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS = 217, 400, 500, 700
LAUNCH_FAILED, UNKNOWN = 719, 999
_WORDS = {
    INVALID_VALUE: (b"CUDA_ERROR_INVALID_VALUE", b"invalid argument"),
    OUT_OF_MEMORY: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    NOT_INITIALIZED: (b"CUDA_ERROR_NOT_INITIALIZED", b"initialization error"),
    NO_DEVICE: (b"CUDA_ERROR_NO_DEVICE", b"no CUDA-capable device is detected"),
    INVALID_DEVICE: (b"CUDA_ERROR_INVALID_DEVICE", b"invalid device ordinal"),
    INVALID_CONTEXT: (b"CUDA_ERROR_INVALID_CONTEXT", b"invalid device context"),
    MAP_FAILED: (b"CUDA_ERROR_MAP_FAILED", b"mapping of buffer object failed"),
    PEER_ACCESS_UNSUPPORTED: (
        b"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        b"peer access is not supported between these two devices",
    ),
    INVALID_HANDLE: (b"CUDA_ERROR_INVALID_HANDLE", b"invalid resource handle"),
    NOT_FOUND: (b"CUDA_ERROR_NOT_FOUND", b"named symbol not found"),
    ILLEGAL_ADDRESS: (
        b"CUDA_ERROR_ILLEGAL_ADDRESS", b"an illegal memory access was encountered"
    ),
    NOT_READY: (b"CUDA_ERROR_NOT_READY", b"device not ready"),
    LAUNCH_FAILED: (b"CUDA_ERROR_LAUNCH_FAILED", b"unspecified launch failure"),
}  # fmt: skip


class _Failed(Exception):
    """A function's result, where it is not a success."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Memory(msgspec.Struct, eq=False):
    """Memory of a device: one's own, or opened. `host`: where its file is mapped."""

    address: int
    size: int
    ordinal: int
    fd: int
    file: int
    host: int
    exportable: bool = True
    opened_by: bytes = b""
    users: int = 1


class FakeDriver:
    """See the module's text. `functions`: what `rdma.cuda.gpu.use_functions` takes."""

    def __init__(
        self, devices: int = 2, *, visible: tuple[int, ...] | None = None, late: bool = True,
        peers: bool = True,
    ) -> None:  # fmt: skip
        """`visible`: which devices of the machine, in which order, as CUDA_VISIBLE_DEVICES has it.

        `late`: copies happen when their stream is waited for; otherwise as they are begun.
        `peers`: whether devices reach each other's memory.
        """
        self.visible = tuple(range(devices)) if visible is None else visible
        self.late = late
        self.peers = peers
        self.expandable = False  # what is allocated from here on cannot be exported
        self.calls: Counter[str] = Counter()
        self._faults: dict[str, dict[int, int | Callable[[], None]]] = {}
        self._me = os.urandom(8)
        self._lock = threading.RLock()
        self._less_busy = threading.Condition(self._lock)
        self._busy: set[int] = set()
        self._local = threading.local()
        self._begun = False
        self._contexts: Counter[int] = Counter()
        self._dead: dict[int, int] = {}  # what every call says of a context that has failed
        self._memory: dict[int, _Memory] = {}
        self._addresses: list[int] = []
        self._unused: dict[int, list[int]] = {}  # addresses that were freed, by size
        self._next = _FIRST
        self._pinned: dict[int, mmap.mmap] = {}
        self._unpinned: list[tuple[int, mmap.mmap]] = []
        self._streams: dict[int, list[Callable[[], None]]] = {}
        self._next_stream = 0x51000
        self.functions = SimpleNamespace()
        for name, types in PROTOTYPES.items():
            setattr(self.functions, name, CFUNCTYPE(c_int, *types)(self._function(name)))

    def _function(self, name: str) -> Callable[..., int]:
        do = getattr(self, f"_{name}")

        def called(*arguments: Any) -> int:
            try:
                with self._lock:
                    self.calls[name] += 1
                    fault = self._faults.get(name, {}).pop(self.calls[name], None)
                    if isinstance(fault, int):
                        return fault
                    if fault is not None:
                        fault()
                    if not self._begun and name not in ("cuInit", *_ALWAYS):
                        return NOT_INITIALIZED
                    do(*arguments)
            except _Failed as failed:
                return failed.number
            except Exception:  # nothing can be raised through C
                log.exception("%s of the fake driver is wrong", name)
                return UNKNOWN
            return 0

        return called

    # --- for tests --------------------------------------------------------------------------------

    def fail(self, name: str, result: int, at: int = 1, times: int = 1) -> None:
        """From the `at`-th call from now on that function fails so, `times` times."""
        with self._lock:
            first = self.calls[name] + at
            self._faults.setdefault(name, {}).update(
                dict.fromkeys(range(first, first + times), result)
            )

    def at_call(self, name: str, at: int, do: Callable[[], None]) -> None:
        """Before the `at`-th call from now on does its work, this is done."""
        with self._lock:
            self._faults.setdefault(name, {})[self.calls[name] + at] = do

    def begun(self) -> int:
        """How many copies were begun and are not done yet."""
        with self._lock:
            return sum(map(len, self._streams.values()))

    def occupy(self, stream: int) -> None:
        """A kernel begins on that stream, after which all else there has to wait."""
        with self._lock:
            self._busy.add(stream)

    def release(self, stream: int) -> None:
        """It is done."""
        with self._less_busy:
            self._busy.discard(stream)
            self._less_busy.notify_all()

    def forget_pinned(self) -> None:
        """What nobody can free any more goes with the process."""
        with self._lock:
            self._pinned.clear()
            self._streams.clear()

    def held(self) -> dict[str, int]:
        """What exists: all that a program has not given back."""
        with self._lock:
            opened = sum(bool(memory.opened_by) for memory in self._memory.values())
            return {
                "allocations": len(self._memory) - opened,
                "opened": opened,
                "pinned": len(self._pinned),
                "streams": len(self._streams.keys() - {1, 2}),
                "contexts": self._contexts.total(),
            }

    def close(self) -> None:
        """The end of its process: all memory goes."""
        with self._lock:
            for memory in list(self._memory.values()):
                self._remove(memory)

    # --- the driver's functions -------------------------------------------------------------------

    def _cuInit(self, flags: int) -> None:
        if flags:
            raise _Failed(INVALID_VALUE)
        if not self.visible:
            raise _Failed(NO_DEVICE)
        self._begun = True

    def _cuGetErrorName(self, number: int, found: Any) -> None:
        self._say(number, found, 0)

    def _cuGetErrorString(self, number: int, found: Any) -> None:
        self._say(number, found, 1)

    def _say(self, number: int, found: Any, which: int) -> None:
        if number not in _WORDS:
            raise _Failed(INVALID_VALUE)
        found[0] = _WORDS[number][which]

    def _cuDeviceGetCount(self, found: Any) -> None:
        found[0] = len(self.visible)

    def _cuDeviceGet(self, found: Any, ordinal: int) -> None:
        if not 0 <= ordinal < len(self.visible):
            raise _Failed(INVALID_DEVICE)
        found[0] = ordinal

    def _cuDeviceGetUuid(self, found: Any, device: int) -> None:
        ctypes.memmove(found, self._uuid(device), 16)

    def _uuid(self, ordinal: int) -> bytes:
        return struct.pack("<8sQ", b"fake gpu", self.visible[ordinal])

    def _cuDevicePrimaryCtxRetain(self, found: Any, device: int) -> None:
        self._contexts[device] += 1
        found[0] = _CONTEXT + device

    def _cuDevicePrimaryCtxRelease_v2(self, device: int) -> None:
        if not self._contexts[device]:
            raise _Failed(INVALID_CONTEXT)
        self._contexts[device] -= 1
        if not self._contexts[device]:  # nobody uses it: all that is in it goes
            self._dead.pop(device, None)
            for memory in [m for m in self._memory.values() if m.ordinal == device]:
                self._remove(memory)

    def _stack(self) -> list[int]:
        if not hasattr(self._local, "stack"):
            self._local.stack, self._local.mode = list[int](), 0
        return cast("list[int]", self._local.stack)

    def _cuCtxPushCurrent_v2(self, context: int | None) -> None:
        ordinal = (context or 0) - _CONTEXT
        if not self._contexts[ordinal]:
            raise _Failed(INVALID_CONTEXT)
        self._stack().append(ordinal)

    def _cuCtxPopCurrent_v2(self, found: Any) -> None:
        if not self._stack():
            raise _Failed(INVALID_CONTEXT)
        found[0] = _CONTEXT + self._stack().pop()

    def _current(self) -> int:
        stack = self._stack()
        if not stack or not self._contexts[stack[-1]]:
            raise _Failed(INVALID_CONTEXT)
        if stack[-1] in self._dead:
            raise _Failed(self._dead[stack[-1]])
        return stack[-1]

    def _cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        self._stack()
        if mode[0] not in _EXCHANGED:
            raise _Failed(INVALID_VALUE)
        self._local.mode, mode[0] = mode[0], self._local.mode

    # --- streams and copies -----------------------------------------------------------------------

    def _cuStreamCreate(self, found: Any, flags: int) -> None:
        self._current()
        self._next_stream += 16
        self._streams[self._next_stream] = []
        found[0] = self._next_stream

    def _queue(self, stream: int | None) -> list[Callable[[], None]]:
        number = stream or 1  # both are the legacy one
        if number in (1, 2):
            return self._streams.setdefault(number, [])
        if number not in self._streams:
            raise _Failed(INVALID_HANDLE)
        return self._streams[number]

    def _cuStreamQuery(self, stream: int | None) -> None:
        """What is queued was not done when this was asked, and is when it is asked again."""
        self._current()
        if (stream or 1) in self._busy:
            raise _Failed(NOT_READY)
        if self._queue(stream):
            self._do_all(stream)
            raise _Failed(NOT_READY)

    def _cuStreamSynchronize(self, stream: int | None) -> None:
        self._current()
        self._less_busy.wait_for(lambda: (stream or 1) not in self._busy)
        self._do_all(stream)

    def _do_all(self, stream: int | None) -> None:
        queue = self._queue(stream)
        todo = list(queue)
        queue.clear()
        for copy in todo:
            copy()

    def _cuStreamDestroy_v2(self, stream: int | None) -> None:
        self._current()
        self._do_all(stream)
        del self._streams[stream or 1]

    def _cuMemcpyAsync(self, to: int, source: int, size: int, stream: int | None) -> None:
        ordinal = self._current()
        queue = self._queue(stream)
        self._at(to, size)
        self._at(source, size)

        def copy() -> None:
            try:
                places = self._at(to, size), self._at(source, size)
            except _Failed:
                self._dead[ordinal] = ILLEGAL_ADDRESS
                raise _Failed(ILLEGAL_ADDRESS) from None
            ctypes.memmove(*places, size)

        if self.late:
            queue.append(copy)
        else:
            copy()

    def _at(self, address: int, size: int) -> int:
        """Where these bytes are in this process. Device memory has to be there, all of it."""
        if address >= _FIRST:
            memory = self._around(address)
            if memory is None or address + size > memory.address + memory.size:
                raise _Failed(INVALID_VALUE)
            return memory.host + address - memory.address
        for start, pages in self._unpinned:
            if start < address + size and address < start + len(pages):
                raise _Failed(INVALID_VALUE)
        return address

    def _around(self, address: int) -> _Memory | None:
        at = bisect.bisect_right(self._addresses, address) - 1
        if at < 0:
            return None
        memory = self._memory[self._addresses[at]]
        return memory if address < memory.address + memory.size else None

    # --- memory -----------------------------------------------------------------------------------

    def _cuMemHostAlloc(self, found: Any, size: int, flags: int) -> None:
        self._current()
        pages = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self._pinned[address] = pages
        found[0] = address

    def _cuMemFreeHost(self, address: int | None) -> None:
        self._current()
        pages = self._pinned.pop(address or 0, None)
        if pages is None:
            raise _Failed(INVALID_VALUE)
        pages.madvise(mmap.MADV_DONTNEED)
        self._unpinned.append((address or 0, pages))  # its address is not used again, so that
        # a copy from or to it is seen

    def _cuMemAlloc_v2(self, found: Any, size: int) -> None:
        ordinal = self._current()
        if not size:
            raise _Failed(INVALID_VALUE)
        fd = shared_memory.sealed_file("gpu", -(-size // _BLOCK) * _BLOCK)
        found[0] = self._add(fd, size, ordinal, exportable=not self.expandable).address

    def _add(self, fd: int, size: int, ordinal: int, **more: Any) -> _Memory:
        whole = -(-size // _BLOCK) * _BLOCK
        host = shared_memory.map_shared(fd, whole, writable=True)
        again = self._unused.get(whole)
        if again:
            address = again.pop()
        else:
            address = self._next
            self._next += whole + _BLOCK
        memory = _Memory(address, size, ordinal, fd, os.fstat(fd).st_ino, host, **more)
        self._memory[address] = memory
        bisect.insort(self._addresses, address)
        return memory

    def _remove(self, memory: _Memory) -> None:
        whole = -(-memory.size // _BLOCK) * _BLOCK
        del self._memory[memory.address]
        self._addresses.remove(memory.address)
        self._unused.setdefault(whole, []).append(memory.address)
        if not memory.opened_by:
            shared_memory.free_pages(memory.fd, whole)
        shared_memory.unmap(memory.host, whole)
        os.close(memory.fd)

    def _own(self, address: int, *, opened: bool) -> _Memory:
        memory = self._memory.get(address)
        if memory is None or bool(memory.opened_by) != opened:
            raise _Failed(INVALID_VALUE)
        return memory

    def _cuMemFree_v2(self, address: int) -> None:
        self._current()
        self._remove(self._own(address, opened=False))

    def _cuMemGetAddressRange_v2(self, base: Any, size: Any, address: int) -> None:
        self._current()
        memory = self._around(address)
        if memory is None:
            raise _Failed(NOT_FOUND)
        base[0], size[0] = memory.address, memory.size

    def _cuPointerGetAttribute(self, found: int, attribute: int, address: int) -> None:
        memory = self._around(address)
        if memory is None or attribute != DEVICE_ORDINAL:
            raise _Failed(INVALID_VALUE)
        ctypes.c_int.from_address(found).value = memory.ordinal

    # --- memory of other processes ----------------------------------------------------------------

    def _cuIpcGetMemHandle(self, found: Any, address: int) -> None:
        ordinal = self._current()
        memory = self._own(address, opened=False)
        if not memory.exportable:
            raise _Failed(INVALID_VALUE)
        told = _HANDLE.pack(
            self._me, os.getpid(), memory.fd, memory.file, memory.size, self._uuid(ordinal)
        )
        ctypes.memmove(found, told, len(told))

    def _cuIpcOpenMemHandle_v2(self, found: Any, handle: Any, flags: int) -> None:
        ordinal = self._current()
        told = bytes(handle.reserved)
        exporter, pid, fd, file, size, uuid = _HANDLE.unpack_from(told)
        if flags != 1:
            raise _Failed(INVALID_VALUE)
        if exporter == self._me:
            raise _Failed(INVALID_CONTEXT)
        if uuid != self._uuid(ordinal) and not self.peers:
            raise _Failed(PEER_ACCESS_UNSUPPORTED)
        for memory in self._memory.values():
            if memory.opened_by == told and memory.ordinal == ordinal:
                memory.users += 1
                found[0] = memory.address
                return
        try:
            opened = shared_memory.open_of(pid, fd, writable=True)
        except OSError:
            raise _Failed(MAP_FAILED) from None
        if os.fstat(opened).st_ino != file:
            os.close(opened)
            raise _Failed(MAP_FAILED)
        found[0] = self._add(opened, size, ordinal, opened_by=told).address

    def _cuIpcCloseMemHandle(self, address: int) -> None:
        self._current()
        memory = self._own(address, opened=True)
        memory.users -= 1
        if not memory.users:
            self._remove(memory)


_ALWAYS = ("cuGetErrorName", "cuGetErrorString")
_installed: FakeDriver | None = None


def install(**options: Any) -> FakeDriver:
    """From here on this process has such GPUs, and no others; once a process."""
    global _installed
    if _installed is None:
        _installed = FakeDriver(**options)
        use_functions(_installed.functions)
    return _installed


def uninstall() -> None:
    """The GPUs of the machine again, if it has any."""
    global _installed
    _installed = None
    use_functions(None)
