"""What it saves to ask a socket again and again for a while instead of sleeping until it wakes us.

    python -m tests.benchmarks.asking

Two processes, ROUTER to ROUTER over ipc, two frames, one message in flight: how the runtime talks,
without the runtime. Each side waits by `poll` on the descriptor, or asks first.
"""

from __future__ import annotations

import os
import select
import tempfile
import time
from collections.abc import Callable
from typing import Any

import zmq

ROUND_TRIPS, ROUNDS = 3000, 5
ASKS = 200
MORE = int(zmq.SNDMORE)


def node(name: bytes) -> Any:
    """A socket by that name."""
    socket: Any = zmq.Context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTING_ID, name)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    return socket


def receiver(socket: Any, *, asks: bool) -> Callable[[], tuple[bytes, bytes]]:
    """What receives the next message."""
    poll = select.poll()
    poll.register(socket.getsockopt(zmq.FD), select.POLLIN)

    def receive() -> tuple[bytes, bytes]:
        asked = 0
        while not socket.get(zmq.EVENTS) & zmq.POLLIN:
            asked += 1
            if not asks or asked > ASKS:
                poll.poll()
        return socket.recv(), socket.recv()

    return receive


def echo(address: str, *, asks: bool) -> None:
    """The other side, until it is told to stop."""
    socket = node(b"b")
    socket.setsockopt(zmq.CONNECT_ROUTING_ID, b"a")
    socket.connect(address)
    socket.send(b"a", MORE)
    socket.send(b"here")
    receive = receiver(socket, asks=asks)
    while True:
        name, body = receive()
        if body == b"stop":
            os._exit(0)
        socket.send(name, MORE)
        socket.send(body)


def round_trip_us(address: str, *, here: bool, there: bool) -> float:
    """The best of some rounds."""
    child = os.fork()
    if child == 0:
        echo(address, asks=there)
    socket = node(b"a")
    socket.bind(address)
    socket.recv_multipart()
    receive = receiver(socket, asks=here)
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            socket.send(b"b", MORE)
            socket.send(b"x" * 64)
            receive()
        best = min(best, (time.perf_counter() - began) / ROUND_TRIPS)
    socket.send(b"b", MORE)
    socket.send(b"stop")
    os.waitpid(child, 0)
    socket.close(0)
    return 1e6 * best


def main() -> None:
    """Measure and print."""
    words = {False: "sleeps", True: "asks"}
    with tempfile.TemporaryDirectory() as folder:
        for here, there in [(False, False), (True, False), (False, True), (True, True)]:
            found = round_trip_us(f"ipc://{folder}/{here}{there}", here=here, there=there)
            print(f"caller {words[here]:6}  callee {words[there]:6}  {found:7.1f} us")


if __name__ == "__main__":
    main()
