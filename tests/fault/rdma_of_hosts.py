"""A client that has two worker hosts, and moves bytes between a rank of each, one-sided.

    rdma_of_hosts.py [--through GATEWAY] KEYS ADDRESS ADDRESS

Says what happens as lines of JSON. On its input: `move`, read and write memory of the first host
from the second; `home`, read and write memory of the client and of a process beside it from there;
`gpu`, both of it with memory of GPUs, which are fakes;
`kill WHERE`, read from an owner on the host of a `worker`, or of the `client`, that is killed half
way; `lose`, read from an owner that stands still, until that is lost; `rate SIZE`, time reads and
writes, and a plain socket.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import numpy

import monarch.actor
from monarch.actor import Actor, attach, attach_to_workers, endpoint, this_host
from monarch.rdma import RDMABuffer, RDMAError, transports
from tests.support import fake_cuda
from tests.support.fake_gpu_arrays import DeviceArray

CHUNK = 1 << 21
ROUNDS = 5


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def pattern(size: int) -> Any:
    return numpy.arange(size, dtype=numpy.uint32).view(numpy.uint8)[:size].copy()


def tuned(family: int) -> socket.socket:
    found = socket.socket(family)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        found.setsockopt(socket.SOL_SOCKET, option, 1 << 22)
    return found


class Owner(Actor):
    """Has memory."""

    @endpoint
    def make(self, size: int) -> RDMABuffer:
        self.memory = pattern(size)
        return RDMABuffer(self.memory)

    @endpoint
    def is_reversed(self) -> bool:
        return bool((self.memory == pattern(len(self.memory))[::-1]).all())

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def stream(self, streams: int) -> int:
        """Send `memory` to each who connects, as one stream or several; the port."""
        listener = tuned(socket.AF_INET)
        listener.bind(("0.0.0.0", 0))
        listener.listen(streams)

        def serve() -> None:
            def send(connection: socket.socket, part: memoryview) -> None:
                while connection.recv(1):
                    for at in range(0, len(part), CHUNK):
                        connection.sendall(part[at : at + CHUNK])
                connection.close()

            size = len(self.memory) // streams
            view = memoryview(self.memory)
            for number in range(streams):
                part = view[number * size : (number + 1) * size]
                threading.Thread(target=send, args=(listener.accept()[0], part)).start()
            listener.close()

        threading.Thread(target=serve).start()
        return listener.getsockname()[1]


class Mover(Actor):
    """Moves them."""

    @endpoint
    def read(self, buffer: RDMABuffer) -> bool:
        room = numpy.zeros(buffer.size(), numpy.uint8)
        buffer.read_into(room).get()
        return bool((room == pattern(buffer.size())).all())

    @endpoint
    def write(self, buffer: RDMABuffer) -> None:
        buffer.write_from(pattern(buffer.size())[::-1].copy()).get()

    @endpoint
    def ways(self) -> list[str]:
        return [str(way) for way in transports()]

    @endpoint
    def fails(self, buffer: RDMABuffer) -> tuple[str, str]:
        try:
            buffer.read_into(bytearray(buffer.size())).get()
        except RDMAError as error:
            return type(error).__name__, str(error)
        return "", ""

    @endpoint
    def begin(self, buffer: RDMABuffer, owner: int) -> None:
        """Stop the owner as soon as the first bytes have come: they are not all."""
        room = numpy.zeros(buffer.size(), numpy.uint8)
        self.pending = buffer.read_into(room)
        while not room[4]:  # where the pattern has its first 1
            pass
        os.kill(owner, signal.SIGSTOP)

    @endpoint
    def end(self) -> tuple[str, str]:
        try:
            self.pending.get()
        except RDMAError as error:
            return type(error).__name__, str(error)
        return "", ""

    @endpoint
    def time(self, buffer: RDMABuffer, way: str) -> list[float]:
        room = numpy.zeros(buffer.size(), numpy.uint8)
        move = buffer.read_into if way == "read" else buffer.write_from
        return timed(lambda: move(room).get())

    @endpoint
    def time_plain(self, host: str, port: int, streams: int, size: int) -> list[float]:
        room = memoryview(bytearray(size))
        connections = [tuned(socket.AF_INET) for _ in range(streams)]
        for one in connections:
            one.connect((host, port))
        part = size // streams

        def receive(number: int) -> None:
            connections[number].sendall(b".")
            at, end = number * part, (number + 1) * part
            while at < end:
                at += connections[number].recv_into(room[at : min(end, at + CHUNK)])

        def all_of_it() -> None:
            threads = [threading.Thread(target=receive, args=(n,)) for n in range(1, streams)]
            for thread in threads:
                thread.start()
            receive(0)
            for thread in threads:
                thread.join()

        found = timed(all_of_it)
        for one in connections:
            one.close()
        return found


class GpuOwner(Owner):
    """Has memory of a GPU."""

    @endpoint
    def make(self, size: int) -> RDMABuffer:
        fake_cuda.install()
        self.memory = on_gpu(pattern(size))
        return RDMABuffer(self.memory)

    @endpoint
    def is_reversed(self) -> bool:
        return self.memory.tobytes() == pattern(len(self.memory))[::-1].tobytes()


class GpuMover(Mover):
    """Moves it to its own."""

    @endpoint
    def read(self, buffer: RDMABuffer) -> bool:
        fake_cuda.install()
        room = DeviceArray(buffer.size())
        buffer.read_into(room).get()
        return room.tobytes() == pattern(buffer.size()).tobytes()

    @endpoint
    def write(self, buffer: RDMABuffer) -> None:
        buffer.write_from(on_gpu(pattern(buffer.size())[::-1].copy())).get()


def on_gpu(data: Any) -> DeviceArray:
    found = DeviceArray(len(data))
    found.put(data)
    return found


def timed(work: Any) -> list[float]:
    work()
    found: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def rates(owner: Any, mover: Any, host: str, size: int) -> None:
    """Each in turn, so that what else the machine does meets all of them."""
    buffer = owner.make.call_one(size).get()
    for _ in range(3):
        for streams in (1, 4):
            port = owner.stream.call_one(streams).get()
            say(what=f"plain {streams}", seconds=mover.time_plain.call_one(
                host, port, streams, size).get())  # fmt: skip
        for way in ("read", "write"):
            say(what=way, seconds=mover.time.call_one(buffer, way).get())


def main() -> None:
    faults: list[Any] = []
    monarch.actor.unhandled_fault_hook = faults.append
    ca, *addresses = sys.argv[1:]
    if ca == "--through":
        gateway, ca, *addresses = addresses
        attach(gateway)
    mesh = attach_to_workers(ca=ca, workers=addresses)
    owner: Any = mesh.slice(hosts=0).spawn_procs(name="owner").spawn("owner", Owner)
    mover: Any = mesh.slice(hosts=1).spawn_procs(name="mover").spawn("mover", Mover)
    pid = owner.pid.call_one().get()
    say(pid=pid)
    memory = pattern(20_000_003)
    own = RDMABuffer(memory)
    for line in sys.stdin:
        what, *rest = line.split()
        if what == "move":
            buffer = owner.make.call_one(50_000_003).get()
            read = mover.read.call_one(buffer).get()
            mover.write.call_one(buffer).get()
            say(read=read, written=owner.is_reversed.call_one().get(),
                ways=mover.ways.call_one().get())  # fmt: skip
        elif what == "home":
            beside: Any = this_host().spawn_procs(name="beside").spawn("beside", Owner)
            buffer = beside.make.call_one(30_001).get()
            read = [mover.read.call_one(one).get() for one in (own, buffer)]
            for one in (own, buffer):
                mover.write.call_one(one).get()
            written = [
                bool((memory == pattern(len(memory))[::-1]).all()),
                beside.is_reversed.call_one().get(),
            ]
            say(home=True, read=read, written=written, ways=mover.ways.call_one().get())
        elif what == "gpu":
            fake_cuda.install()
            there = mesh.slice(hosts=0).spawn_procs(name="gpus").spawn("has", GpuOwner)
            moves: Any = mesh.slice(hosts=1).spawn_procs(name="others").spawn("moves", GpuMover)
            here = on_gpu(pattern(3_000_001))
            buffers = [there.make.call_one(9_000_001).get(), RDMABuffer(here)]
            read = [moves.read.call_one(one).get() for one in buffers]
            for one in buffers:
                moves.write.call_one(one).get()
            written = [
                there.is_reversed.call_one().get(),
                here.tobytes() == pattern(len(here))[::-1].tobytes(),
            ]
            say(gpu=True, read=read, written=written, ways=moves.ways.call_one().get())
        elif what == "kill":
            there = mesh.slice(hosts=0) if rest[0] == "worker" else this_host()
            ended = "", ""
            while not ended[0]:  # all of it may have come before the owner stood still
                dying: Any = there.spawn_procs(name="dying").spawn("dying", Owner)
                buffer = dying.make.call_one(200_000_003).get()
                dying_pid = dying.pid.call_one().get()
                mover.begin.call_one(buffer, dying_pid).get()
                os.kill(dying_pid, signal.SIGKILL)
                ended = mover.end.call_one().get()
            say(killed=ended)
        elif what == "lose":
            buffer = owner.make.call_one(50_000_003).get()
            assert mover.read.call_one(buffer).get()  # and so they are connected
            os.kill(pid, signal.SIGSTOP)
            pending = mover.fails.call_one(buffer)
            say(begun=True)
            say(lost=pending.get())
        elif what == "rate":
            rates(owner, mover, addresses[0].partition("//")[2].rpartition(":")[0], int(rest[0]))
            say(done=True)


if __name__ == "__main__":
    main()
