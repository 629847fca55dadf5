"""What the program has queued on streams of its own is waited for before its memory is moved.

The streams are those of the thread that wants a transfer, at that moment; the wait is in the thread
that moves, so that an event loop is not held up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from monarch._src.data.cuda.driver import PER_THREAD_STREAM
from monarch._src.data.cuda.gpu import gpu
from monarch._src.data.memory import Memory, Queued
from monarch._src.data.transfer import Op

QUEUED_FAILED = "what the program has queued on a GPU of this process has failed"


def queued_by(ops: Sequence[Op]) -> set[Queued]:
    """What is to be waited for, said in the thread that wants those transfers."""
    found = {op.local.queued() for op in ops if op.local.queued is not None}
    waits = {queued for queued in found if queued is not None}
    of_this_thread = {queued for queued in waits if queued.stream == PER_THREAD_STREAM}
    wait_for(of_this_thread)  # its number means another one elsewhere
    return waits - of_this_thread


def wait_for(waits: Collection[Queued]) -> None:
    """Until it is done. Raises CudaError."""
    for queued in waits:
        gpu().synchronize(queued.ordinal, queued.stream)


def settle(memory: Memory) -> None:
    """All that this thread has queued for that memory is done. Raises CudaError."""
    queued = None if memory.queued is None else memory.queued()
    if queued is not None:
        wait_for((queued,))
