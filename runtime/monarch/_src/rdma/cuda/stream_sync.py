"""Waits for the program's work on GPU streams before its memory is moved.

The streams are those that the submitting thread uses at that moment. The thread that moves the
bytes waits, so that an event loop is not blocked.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from monarch._src.rdma.cuda.driver import PER_THREAD_STREAM
from monarch._src.rdma.cuda.gpu import gpu
from monarch._src.rdma.memory import Memory, Queued
from monarch._src.rdma.transfer import Op
from monarch._src.rdma.transports.base import DeadlineExceeded

QUEUED_FAILED = "work that the program has queued on a GPU of this process has failed"
_SHORTEST_S, _LONGEST_S = 2e-5, 1e-3  # between polls; the driver has no wait with a time-out


def queued_by(ops: Sequence[Op], deadline: float | None = None) -> set[Queued]:
    """The streams to wait for. Call it on the thread that submits the transfers.

    Raises the errors of `wait_for`.
    """
    found = {op.local.queued() for op in ops if op.local.queued is not None}
    waits = {queued for queued in found if queued is not None}
    of_this_thread = {queued for queued in waits if queued.stream == PER_THREAD_STREAM}
    wait_for(of_this_thread, deadline)  # in another thread its number means another stream
    return waits - of_this_thread


def wait_for(waits: Collection[Queued], deadline: float | None = None) -> None:
    """Wait for all of them. Raises CudaError, and DeadlineExceeded at the deadline."""
    for queued in waits:
        if deadline is not None:
            _wait_until_idle(queued, deadline)
        gpu().synchronize(queued.ordinal, queued.stream)


def _wait_until_idle(queued: Queued, deadline: float) -> None:
    began = time.monotonic()
    while not gpu().is_idle(queued.ordinal, queued.stream):
        now = time.monotonic()
        if now >= deadline:
            raise DeadlineExceeded(
                "work that the program has queued on a GPU of this process was not done"
            )
        pause = min(max((now - began) / 8, _SHORTEST_S), _LONGEST_S)
        time.sleep(min(pause, deadline - now))


def settle(memory: Memory) -> None:
    """Wait for the work of this thread on that memory. Raises CudaError."""
    queued = None if memory.queued is None else memory.queued()
    if queued is not None:
        wait_for((queued,))
