"""What a link costs beyond ZeroMQ: round trips and a stream over TCP with CURVE.

    python -m tests.benchmarks.link_against_zmq [--rounds 3]

The other side is a process of its own on loopback. Bare sockets with CURVE are measured in the same
run, and the best of each is compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from monarch._src.net.hosts import keys
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.link_ends import bounds_of
from monarch._src.net.hosts.links import Links, Notice
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address, Listening
from monarch._src.net.state.link import NoRoomError
from monarch._src.net.state.link_actions import PeerLeft

NUMBER = 2000
PIECE, PIECES = 1 << 20, 256


class Linked:
    """One end that is pumped by who waits for it."""

    def __init__(self, name: str, directory: Path, role: Role, *, echo: bool) -> None:
        self.got = 0
        self.left = False
        self._echo = echo
        own = keys.load(directory, None, role)
        self.links = Links(name, own, Audit(None), bounds_of(30.0), 5.0, self._take, self._told)

    def _told(self, _peer: str, notice: Notice) -> None:
        self.left |= isinstance(notice, PeerLeft)

    def _take(self, peer: str, frames: Sequence[Any], size: int) -> None:
        self.got += 1
        self.links.handled(peer, size)
        if self._echo and size < PIECE:
            self.links.send(peer, [bytes(frames[0])])

    def until(self, done: Callable[[], Any]) -> None:
        while not done():
            self.links.wait(1.0)


def serve(directory: Path) -> None:
    """Both other sides: says where they listen, and answers until its input ends."""
    linked = Linked("worker", directory, Role.WORKER, echo=True)
    own = keys.load(directory, None, Role.WORKER)
    bare = zmq.Context.instance().socket(zmq.DEALER)
    bare.setsockopt(zmq.CURVE_SERVER, 1)
    bare.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
    bare.setsockopt(zmq.CURVE_SECRETKEY, own.secret.reveal())
    bare.setsockopt(zmq.RCVHWM, 0)
    bare.bind("tcp://127.0.0.1:*")
    at = linked.links.listen(Listening(Address("tcp", "127.0.0.1", 0)))
    print(at.port, bare.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    for line in sys.stdin:
        if line == "bare\n":
            while (message := bare.recv()) != b"stop":
                if len(message) < PIECE or message[:1] == b"!":
                    bare.send(message[:64])
        else:
            linked.until(lambda: linked.left)
    bare.close(0)
    linked.links.close()


def best(rounds: int, measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(rounds))


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "job"
        keys.make(directory)
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.link_against_zmq",
            "serve",
            str(directory),
        ]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            port, endpoint = process.stdout.readline().split()
            process.stdin.write("bare\n")
            process.stdin.flush()
            bare = measure_bare(rounds, directory, endpoint)
            process.stdin.write("linked\n")
            process.stdin.flush()
            linked = measure_linked(rounds, directory, int(port))
            process.stdin.close()
    for what, unit, ours, theirs in zip(
        ("round trip", "stream"), ("us", "MiB/s"), linked, bare, strict=True
    ):
        print(
            f"{what:12} link {ours:8.1f} {unit:6} bare {theirs:8.1f} {unit:6} {ours / theirs:.2f}"
        )


def measure_bare(rounds: int, directory: Path, endpoint: str) -> tuple[float, float]:
    """Round trip in us, and stream in MiB/s, of bare sockets."""
    own = keys.load(directory, None, Role.OWNER)
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.CURVE_SERVERKEY, own.allowed.of(Role.WORKER)[0].encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.reveal())
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.connect(endpoint)

    def trips() -> float:
        began = time.perf_counter()
        for _ in range(NUMBER):
            socket.send(b"x" * 64)
            socket.recv()
        return 1e6 * (time.perf_counter() - began) / NUMBER

    def stream() -> float:
        piece, last = b"." * PIECE, b"!" + b"." * (PIECE - 1)
        began = time.perf_counter()
        for _ in range(PIECES - 1):
            socket.send(piece, copy=False)
        socket.send(last)
        socket.recv()
        return (time.perf_counter() - began) / PIECES

    trips()
    found = best(rounds, trips), 1 / best(rounds, stream)
    socket.send(b"stop")
    socket.close(1000)
    context.term()
    return found


def measure_linked(rounds: int, directory: Path, port: int) -> tuple[float, float]:
    """The same of a link."""
    client = Linked("client", directory, Role.OWNER, echo=False)
    client.links.dial("worker", Address("tcp", "127.0.0.1", port))
    link = client.links.link_to("worker")
    client.until(lambda: link.session)

    def trips() -> float:
        began = time.perf_counter()
        for _ in range(NUMBER):
            wanted = client.got + 1
            client.links.send("worker", [b"x" * 64])
            client.until(lambda wanted=wanted: client.got >= wanted)
        return 1e6 * (time.perf_counter() - began) / NUMBER

    def stream() -> float:
        piece = bytes(PIECE)
        began = time.perf_counter()
        for _ in range(PIECES):
            while True:
                try:
                    client.links.send("worker", [piece])
                    break
                except NoRoomError:
                    client.until(lambda: link.has_room)
            client.links.work()
        client.links.probe("worker")
        client.until(lambda: not link.unacknowledged)
        return (time.perf_counter() - began) / PIECES

    trips()
    found = best(rounds, trips), 1 / best(rounds, stream)
    client.links.close()
    return found


if __name__ == "__main__":
    main()
