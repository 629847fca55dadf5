"""What a call and a large argument cost between two hosts, against bare sockets there.

    [MIB=64] python -m tests.benchmarks.between_hosts [--rounds 5] [--profile]

As root: the hosts are network namespaces. A call to one rank of a worker is compared with a round
trip of bare ZeroMQ over TCP with CURVE, also while arguments of MIB mebibytes are on their way to
another rank, or an RDMABuffer is read. Such an argument, as `bytes` and as an array, and such an
answer are compared with an RDMABuffer of that size that is read, and with one TCP stream. All in
one run, in turn, a few of each in a row, the best and the median of all rounds. `--profile` says
where the client's time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy
import zmq

from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from monarch.actor import Actor, attach_to_workers, endpoint
from monarch.rdma import RDMABuffer
from tests.fault.test_rdma_of_hosts import alone
from tests.netns import hosts_up, v4
from tests.workers import worker

CALLS = 500
SIZE = int(os.environ.get("MIB", "64")) << 20
IN_A_ROW = 4  # messages: memory of the first is there for the next
PORT, BARE, STREAM = 26600, 26601, 26602


class Rank(Actor):
    """Answers."""

    @endpoint
    def add(self, x: int) -> int:
        return x + 1

    @endpoint
    def weigh(self, data: Any) -> int:
        return len(data)

    @endpoint
    def answer(self) -> Any:
        return self.memory()

    @endpoint
    def register(self) -> RDMABuffer:
        return RDMABuffer(self.memory())

    def memory(self) -> Any:
        if not hasattr(self, "_memory"):
            self._memory = numpy.ones(SIZE, numpy.uint8)
        return self._memory


# --- the other side of bare sockets ---------------------------------------------------------------


def serve(directory: str) -> None:
    """Echo what comes by ZeroMQ, swallow what comes by TCP, until the input ends."""
    own = keys.load(Path(directory), None, Role.WORKER)
    bare = zmq.Context.instance().socket(zmq.DEALER)
    bare.setsockopt(zmq.CURVE_SERVER, 1)
    bare.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
    bare.setsockopt(zmq.CURVE_SECRETKEY, own.secret.reveal())
    bare.bind(f"tcp://*:{BARE}")
    listener = socket.create_server(("", STREAM))

    def echo() -> None:
        while True:
            bare.send(bare.recv())

    def swallow() -> None:
        room = bytearray(1 << 20)
        while True:
            connection, _ = listener.accept()
            left = SIZE
            while left:
                left -= connection.recv_into(room)
            connection.sendall(b"!")
            connection.close()

    for target in (echo, swallow):
        threading.Thread(target=target, daemon=True).start()
    print(json.dumps({"serving": True}), flush=True)
    sys.stdin.read()


# --- the client -----------------------------------------------------------------------------------


def trips(step: Any) -> float:
    """Microseconds of one, the median of many."""
    times: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def stream(host: str) -> float:
    """MiB a second of one TCP stream."""
    data = b"x" * SIZE  # zeros that were never written have no memory of their own
    with socket.create_connection((host, STREAM)) as connection:
        began = time.perf_counter()
        connection.sendall(data)
        assert connection.recv(1) == b"!"
        return SIZE / (time.perf_counter() - began) / (1 << 20)


def client(directory: str, host: str, rounds: int, profile: bool) -> None:
    own = keys.load(Path(directory), None, Role.OWNER)
    bare = zmq.Context.instance().socket(zmq.DEALER)
    bare.setsockopt(zmq.CURVE_SERVERKEY, own.allowed.of(Role.WORKER)[0].encode())
    bare.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
    bare.setsockopt(zmq.CURVE_SECRETKEY, own.secret.reveal())
    bare.connect(f"tcp://{host}:{BARE}")
    hosts = attach_to_workers(ca=directory, workers=[f"tcp://{host}:{PORT}"])
    ranks = hosts.spawn_procs({"gpus": 2}).spawn("rank", Rank)
    rank, other = ranks.slice(gpus=0), ranks.slice(gpus=1)
    ranks.add.call(1).get()
    buffer = rank.register.call_one().get()
    room, data, array = numpy.ones(SIZE, numpy.uint8), b"x" * SIZE, numpy.ones(SIZE, numpy.uint8)

    def bare_trip() -> None:
        bare.send(b"x" * 64)
        bare.recv()

    def argument(data: Any) -> float:
        began = time.perf_counter()
        assert rank.weigh.call_one(data).get() == SIZE
        return SIZE / (time.perf_counter() - began) / (1 << 20)

    def rate(move: Any) -> float:
        began = time.perf_counter()
        move()
        return SIZE / (time.perf_counter() - began) / (1 << 20)

    def beside(move: Any) -> float:
        """Microseconds of a call while that is done a few times, the median."""

        def again() -> None:
            for _ in range(IN_A_ROW):
                move()

        times: list[float] = []
        moving = threading.Thread(target=again)
        moving.start()
        while moving.is_alive():
            began = time.perf_counter()
            rank.add.call_one(1).get()
            times.append(time.perf_counter() - began)
        return 1e6 * statistics.median(times)

    profiler = cProfile.Profile()
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        found["bare"].append(trips(bare_trip))
        found["call"].append(trips(lambda: rank.add.call_one(1).get()))
        found["tcp"].append(stream(host))
        if profile:
            profiler.enable()
        for _ in range(IN_A_ROW):
            found["bytes"].append(argument(data))
        profiler.disable()
        for _ in range(IN_A_ROW):
            found["array"].append(argument(array))
        for _ in range(IN_A_ROW):
            found["answer"].append(rate(lambda: rank.answer.call_one().get()))
        for _ in range(IN_A_ROW):
            found["read"].append(rate(lambda: buffer.read_into(room, timeout=60).get()))
        found["beside"].append(beside(lambda: other.weigh.call_one(array).get()))
        found["beside read"].append(beside(lambda: buffer.read_into(room, timeout=60).get()))
    if profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(12)
    print(json.dumps(found), flush=True)
    hosts.stop().get()
    bare.close(0)


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
        return
    if sys.argv[1:2] == ["client"]:
        client(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "True")
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, hosts_up(2) as hosts:
        job = os.path.join(folder, "job")
        keys.make(Path(job))
        address = ("--address", f"tcp://*:{PORT}", "--keys", job)
        module = ("-m", "tests.benchmarks.between_hosts")
        with (
            # By names of their own, or they would count as one host, with memory in common.
            worker(*address, before=hosts.command(1, *alone("host1"))),
            hosts.program(1, *module, "serve", job) as server,
        ):
            server.wait_for(lambda line: "serving" in line)
            status, out, err = hosts.run(
                2, *module, "client", job, v4(1), str(given.rounds), str(given.profile)
            )
    assert status == 0, err
    if given.profile:
        print(err)
    found = json.loads(out)
    # A bare trip is quick for as long as no processor falls asleep, which is luck: both are told.
    for what, of in (("best", (min, max)), ("median", (statistics.median, statistics.median))):
        time_of, rate_of = of
        bare, call = time_of(found["bare"]), time_of(found["call"])
        tcp, read = rate_of(found["tcp"]), rate_of(found["read"])
        print(
            f"{what:7}call_one {call:7.0f} us     bare CURVE {bare:7.0f} us     {call / bare:.2f}"
        )
        for name, of_what in (("beside", "an array"), ("beside read", "an RDMABuffer")):
            beside = time_of(found[name])
            print(
                f"{what:7}call_one {beside:7.0f} us     beside {of_what:15} "
                f"{beside / call:.2f} times as long"
            )
        for kind in ("bytes", "array", "answer"):
            rate = rate_of(found[kind])
            print(
                f"{what:7}{kind:8} {rate:7.0f} MiB/s  RDMABuffer {read:7.0f} MiB/s  "
                f"{rate / read:.2f}      one TCP {tcp:7.0f} MiB/s  {rate / tcp:.2f}"
            )


if __name__ == "__main__":
    main()
