"""What a call costs beyond ZeroMQ: one rank, one message in flight, against a bare round trip.

    python -m tests.benchmarks.call_against_zmq [--rounds 5]

Both are measured in turn in the same run, and the best of each is compared.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from monarch.actor import Actor, endpoint, this_host

NUMBER = 2000


class Echo(Actor):
    """Gives back what it gets."""

    @endpoint
    def echo(self, value: int) -> int:
        return value


class AsyncEcho(Actor):
    """The same on an event loop."""

    @endpoint
    async def echo(self, value: int) -> int:
        return value


class BareRoundTrip:
    """A DEALER in this process and one in a child that sends back what it gets."""

    def __init__(self, folder: Path) -> None:
        address = f"ipc://{folder}/bare"
        self._child = os.fork()
        if self._child == 0:
            _echo_until_stopped(address)
            os._exit(0)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.bind(address)
        self.once()

    def once(self) -> None:
        self._socket.send(b"x" * 64)
        self._socket.recv()

    def stop(self) -> None:
        self._socket.send(b"stop")
        os.waitpid(self._child, 0)
        self._context.destroy(linger=0)


def _echo_until_stopped(address: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(address)
    while (message := socket.recv()) != b"stop":
        socket.send(message)


def seconds_each(work: Callable[[], object]) -> float:
    """Seconds of one of many."""
    start = time.perf_counter()
    for _ in range(NUMBER):
        work()
    return (time.perf_counter() - start) / NUMBER


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        bare = BareRoundTrip(Path(folder))
        procs = this_host().spawn_procs({"gpus": 1})
        sync = procs.spawn("sync", Echo)
        loop = procs.spawn("async", AsyncEcho)
        works: dict[str, Callable[[], object]] = {
            "bare ZeroMQ round trip": bare.once,
            "call_one, sync actor": lambda: sync.echo.call_one(1).get(),
            "call_one, async actor": lambda: loop.echo.call_one(1).get(),
        }
        best = dict.fromkeys(works, float("inf"))
        for _ in range(rounds):
            for name, work in works.items():
                best[name] = min(best[name], seconds_each(work))
        procs.stop().get()
        bare.stop()
    floor = best["bare ZeroMQ round trip"]
    for name, seconds in best.items():
        print(f"{name:24} {1e6 * seconds:7.1f} us   {seconds / floor:5.2f} x")


if __name__ == "__main__":
    main()
