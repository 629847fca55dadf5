"""Regions of GPU memory, sent and received over a connection through pinned chunks.

Runs in: the owner, on the thread of a connection (`net/streams/server.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from monarch._src.net.streams.channel import Connection
from monarch._src.rdma.cuda.gpu import gpu
from monarch._src.rdma.cuda.pinned_chunks import rounds
from monarch._src.rdma.memory import Device, view_of


def send(
    connection: Connection, device: Device, address: int, size: int, begin: Callable[[], None],
    copied: Callable[[], None],
) -> None:  # fmt: skip
    """Send memory of a GPU. Raises GpuError.

    `begin` is called when the first bytes have come from the GPU; `copied` when all of them have,
    before the last ones are sent.
    """
    with gpu().chunks.taken(device.ordinal) as halves:
        todo = [cut for (cut,) in rounds([size], halves[0].size)]
        for n in range(len(todo) + 1):
            if n < len(todo):  # meanwhile the other half is being sent
                half, cut = halves[n % 2], todo[n]
                half.stream.copy(half.address, address + cut.offset, cut.size)
            if n:
                half, cut = halves[(n - 1) % 2], todo[n - 1]
                half.stream.wait()
                if n == 1:
                    begin()
                if n == len(todo):
                    copied()
                connection.send(view_of(half.address, cut.size))


def receive(
    connection: Connection, device: Device, address: int, size: int, begin: Callable[[], None]
) -> bool:
    """Receive into memory of a GPU; False if the other side has closed the connection.

    `begin` is called when memory for the bytes is available. Raises GpuError.
    """
    with gpu().chunks.taken(device.ordinal) as halves:
        begin()
        for n, (cut,) in enumerate(rounds([size], halves[0].size)):
            half = halves[n % 2]
            half.stream.wait()
            if not connection.receive(view_of(half.address, cut.size)):
                return False
            half.stream.copy(address + cut.offset, half.address, cut.size)
    return True
