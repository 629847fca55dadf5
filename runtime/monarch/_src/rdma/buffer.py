"""`RDMABuffer` and `RDMAAction`, the public objects of the data plane.

Runs in: any process. A buffer is made where its memory is; in any other process it is a handle.
"""

from __future__ import annotations

from typing import Any

from monarch._src.actor.current import context
from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime, runtime_or_none
from monarch._src.errors import RDMAHandleError, RDMAUnavailableError
from monarch._src.failures.report import at_text
from monarch._src.rdma.cuda.driver import GpuError
from monarch._src.rdma.cuda.stream_sync import QUEUED_FAILED, settle
from monarch._src.rdma.handle import Handle, decode, encode
from monarch._src.rdma.memory import is_in_place
from monarch._src.rdma.plane import plane_of
from monarch._src.rdma.registrable import Registrable, memory_of
from monarch._src.rdma.report import backend_of
from monarch._src.rdma.transfer import Op, Ranges

TIMEOUT_S = 60.0
LONGEST_S = 2e6  # 23 days: sockets count milliseconds in 31 bits


class RDMABuffer:
    """Memory of this process that others may read and write, one-sided; making it copies nothing.

    Pass it to any actor. There `read_into` and `write_from` move bytes between that process and
    this memory while the actor here computes, waits, or does anything else.

    A handle does not keep the memory alive: keep the tensor or array, or this object, for as long
    as others use it. Once the memory has been freed, its handles are refused, as after `drop`.
    (A bytearray, like any object without weak references, is kept alive until `drop` once a handle
    has been sent.) A tensor's storage can no longer be resized.
    """

    __slots__ = ("__weakref__", "_dropped", "_handle", "_keep", "_unsent")

    def __init__(self, data: Registrable) -> None:
        """`data`: a 1-D contiguous tensor, numpy array, bytearray or memoryview, or an array of a
        CUDA GPU: a tensor, or an object with the CUDA array interface.

        Read-only memory may only be read. The constructor waits for the work that this thread has
        queued on the GPU for the memory.

        Raises:
            TypeError: it has no memory that could be shared as bytes.
            ValueError: it has several dims, is not contiguous, or is empty.
            RDMAUnavailableError: work that was queued on the GPU has failed.
        """
        memory = memory_of(data)
        try:
            settle(memory)  # a process with the handle may read at once
        except GpuError as error:
            raise RDMAUnavailableError(f"{QUEUED_FAILED}: {error}", size=memory.size) from error
        run = runtime()
        me = context().actor_instance
        name = f"{me.name}{at_text(dict(me.rank))}"
        self._handle = plane_of(run).register(memory, name, str(me.actor_id))
        self._keep: Any = memory.keep
        self._unsent = True
        self._dropped = False

    def size(self) -> int:
        """The size in bytes."""
        return self._handle.size

    @property
    def owner(self) -> str:
        """The id of the actor that made the buffer."""
        return self._handle.actor_id

    @property
    def backend(self) -> str:
        """The transport that this process uses, or would use, for this buffer.

        `local`, `cuda_ipc`, `shm`, `cma`, `ibverbs` or `tcp`; `none` if no transport is left.
        """
        return backend_of(self._handle)

    def read_into(self, dst: Registrable, *, timeout: float = TIMEOUT_S) -> Future[None]:
        """Copy the whole buffer into the start of `dst`.

        Args:
            dst: writable memory of this process, of at least `size()` bytes; see `RDMABuffer`.
            timeout: seconds for the whole transfer.

        Returns:
            A future that is done when the bytes have arrived. It fails with an `RDMAError`; by then
            `dst` is no longer written to. Cancelling an `await` of it does not end the transfer.

        Raises:
            ValueError: `dst` is too small or read-only, or the time-out is negative or NaN.
            RDMAHandleError: this process has dropped the buffer.
        """
        return RDMAAction().read_remote(dst, self).submit(timeout=timeout)

    def write_from(self, src: Registrable, *, timeout: float = TIMEOUT_S) -> Future[None]:
        """Copy all of `src` to the start of the buffer.

        Args:
            src: memory of this process, of at most `size()` bytes.
            timeout: seconds for the whole transfer.

        Returns:
            A future that is done when the bytes are in the owner's memory.

        Raises:
            ValueError: `src` is too large, the buffer is read-only, or the time-out is wrong.
            RDMAHandleError: this process has dropped the buffer.
        """
        return RDMAAction().write_remote(self, src).submit(timeout=timeout)

    def drop(self, *, timeout: float = TIMEOUT_S) -> Future[None]:
        """Revoke this buffer and all copies of its handle.

        Any process may call it. The future is done when the owner has revoked the handle and no
        write is in progress. Later calls, and calls after the owner's end, do nothing.
        """
        self._dropped = True
        self._keep = None
        return plane_of(runtime()).drop(self._handle, seconds_of(timeout))

    def handle(self) -> Handle:
        """For the runtime: the handle for a transfer. Raises RDMAHandleError."""
        if self._dropped:
            h = self._handle
            raise RDMAHandleError(f"{h.text} has been dropped", h.text, h.actor_id, h.size)
        return self._handle

    def __reduce__(self) -> tuple[Any, ...]:
        self._unsent = False
        return _from_handle, (encode(self._handle),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RDMABuffer):
            return NotImplemented
        return self._handle == other._handle

    def __hash__(self) -> int:
        return hash(self._handle.key)

    def __del__(self) -> None:
        if getattr(self, "_unsent", False):  # no other process has a handle of it
            run = runtime_or_none()
            plane = None if run is None else run.data
            if plane is not None and plane.is_own(self._handle):
                plane.regions.drop(self._handle.slot, self._handle.key)

    def __repr__(self) -> str:
        h = self._handle
        state = ", dropped" if self._dropped else ""
        return f"<RDMABuffer of {h.size:,} bytes of {h.actor} (pid {h.owner.pid}){state}>"


def _from_handle(data: bytes) -> RDMABuffer:
    buffer = RDMABuffer.__new__(RDMABuffer)
    buffer._handle = decode(data)  # pyright: ignore[reportPrivateUsage]
    buffer._keep = None  # pyright: ignore[reportPrivateUsage]
    buffer._unsent = buffer._dropped = False  # pyright: ignore[reportPrivateUsage]
    return buffer


class RDMAAction:
    """Several reads and writes that are submitted as one unit, in no particular order.

    It may be submitted repeatedly. It keeps the given local memory and buffers alive, as does a
    transfer until it is done. Only one thread at a time may add to it.
    """

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._buffers: list[RDMABuffer] = []
        self._read_into = Ranges()
        self._written_from = Ranges()

    def read_remote(self, dst: Registrable, src: RDMABuffer) -> RDMAAction:
        """Add a copy of all of `src` into the start of `dst`. Returns this action.

        Raises:
            TypeError, ValueError: the memory is unsuitable, too small or read-only, or it overlaps
                memory that another part of this action reads into or writes from.
            RDMAHandleError: this process has dropped `src`.
        """
        handle = _handle_of(src, "read_remote(dst, src)")
        memory = memory_of(dst, "the destination")
        if memory.readonly:
            raise ValueError(f"a read of {handle.text} needs a destination that can be written to")
        if memory.size < handle.size:
            raise ValueError(
                f"a read of {handle.text} needs a destination of {handle.size:,} bytes; this one "
                f"has {memory.size:,}"
            )
        end = memory.address + handle.size
        for others, what in ((self._read_into, "read into"), (self._written_from, "written from")):
            if others.overlaps(memory.address, end):
                raise ValueError(_overlap(handle, what))
        self._read_into.add(memory.address, end)
        self._ops.append(Op("read", handle, memory, handle.size))
        self._buffers.append(src)
        return self

    def write_remote(self, dst: RDMABuffer, src: Registrable) -> RDMAAction:
        """Add a copy of all of `src` to the start of `dst`. Returns this action.

        Raises:
            TypeError, ValueError: the memory is unsuitable or too large, `dst` is read-only, or the
                memory overlaps memory that another part of this action reads into.
            RDMAHandleError: this process has dropped `dst`.
        """
        handle = _handle_of(dst, "write_remote(dst, src)")
        memory = memory_of(src, "the source")
        if handle.readonly:
            raise ValueError(f"{handle.text} is read-only: its owner registered it as such")
        if memory.size > handle.size:
            raise ValueError(f"a write of {memory.size:,} bytes does not fit into {handle.text}")
        end = memory.address + memory.size
        if self._read_into.overlaps(memory.address, end):
            raise ValueError(_overlap(handle, "read into"))
        self._written_from.add(memory.address, end)
        self._ops.append(Op("write", handle, memory, memory.size))
        self._buffers.append(dst)
        return self

    def submit(self, *, timeout: float = TIMEOUT_S) -> Future[None]:
        """Start all transfers. The future is done when all are, and fails if any of them fails.

        Args:
            timeout: seconds for the whole action.

        Raises:
            ValueError: the time-out is negative or NaN, or the storage of a tensor was resized
                after the tensor had been added.
        """
        for op in self._ops:
            if not is_in_place(op.local):
                raise ValueError(
                    f"the tensor given for {op.handle.text} was resized after it was added to this "
                    "action, and its memory has moved: make a new action"
                )
        keep = tuple(self._buffers)
        return plane_of(runtime()).submit(tuple(self._ops), seconds_of(timeout), keep)

    def __len__(self) -> int:
        """The number of reads and writes."""
        return len(self._ops)

    def __repr__(self) -> str:
        total = sum(op.size for op in self._ops)
        return f"<RDMAAction of {len(self._ops)} transfers, {total:,} bytes>"


def _handle_of(buffer: object, where: str) -> Handle:
    if not isinstance(buffer, RDMABuffer):
        raise TypeError(f"{where} takes an RDMABuffer, not {type(buffer).__qualname__}")
    return buffer.handle()


def _overlap(handle: Handle, what: str) -> str:
    return (
        f"the local memory given for {handle.text} overlaps memory that is {what} in the same "
        "action: their order is not defined; submit them one after the other"
    )


def seconds_of(timeout: float) -> float:
    """A valid time-out in seconds, LONGEST_S at most. Raises ValueError or TypeError."""
    try:
        sensible = timeout >= 0
    except TypeError:
        raise TypeError(
            f"timeout={timeout!r}: give seconds, as a number; `math.inf` for no limit"
        ) from None
    if not sensible:  # also NaN
        raise ValueError(f"timeout={timeout}: give seconds of at least 0")
    return min(timeout, LONGEST_S)
