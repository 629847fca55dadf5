"""A client that sends a host more than that takes, and uses another one meanwhile.

    floods_hosts.py KEYS SIZE ADDRESS ADDRESS

On its input: `flood client` or `flood rank`, send the ranks of the second host `TOTAL` bytes in
messages of that size, from here or from a rank of the first; `stalled`, say how many were sent when
that number does not change any more though calls to the first host are answered; `finish`, wait
until all have come.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import psutil

from monarch.actor import Actor, Channel, Port, PortReceiver, attach_to_workers, endpoint

TOTAL = 112 << 20
CALLS = 50


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


class Rank(Actor):
    """Takes numbers, and notes whether they come once and in order."""

    def __init__(self) -> None:
        self.got = 0
        self.in_order = True

    @endpoint
    def take(self, number: int, _filling: bytes) -> None:
        self.got += 1
        self.in_order &= number == self.got

    @endpoint
    def ping(self) -> int:
        return os.getpid()

    @endpoint
    def state(self) -> tuple[int, bool]:
        return self.got, self.in_order

    @endpoint
    def flood(self, other: Rank, size: int, told: Port[int]) -> list[tuple[int, bool]]:
        return flood(other, size, told.send)


def flood(other: Rank, size: int, told: Any) -> list[tuple[int, bool]]:
    """What the other ranks have got in the end."""
    for number in range(1, TOTAL // size + 1):
        other.take.broadcast(number, bytes(size))
        told(number)
    return list(other.state.call().get().values())


def follow(receiver: PortReceiver[int], size: int, sent: list[int]) -> None:
    while sent[-1] < TOTAL // size:
        sent.append(receiver.recv().get())


def main() -> None:
    ca, size, *addresses = sys.argv[1:]
    size = int(size)
    mesh = attach_to_workers(ca=ca, workers=addresses)
    ranks = mesh.spawn_procs({"gpus": 2}).spawn("ranks", Rank)
    agents = ranks.ping.call().get()
    quick, flooder = ranks.slice(hosts=0, gpus=0), ranks.slice(hosts=0, gpus=1)
    slow = ranks.slice(hosts=1)
    sent: list[int] = [0]
    states: list[tuple[int, bool]] = []
    threads: list[threading.Thread] = []

    def begin(target: Any, *given: Any) -> None:
        threads.append(threading.Thread(target=target, args=given))
        threads[-1].start()

    say(pids=list(agents.values()))
    for line in sys.stdin:
        if line == "flood client\n":
            begin(lambda: states.extend(flood(slow, size, sent.append)))
        elif line == "flood rank\n":
            port, receiver = Channel[int].open()
            call = flooder.flood.call_one(slow, size, port)
            begin(lambda call=call: states.extend(call.get()))
            begin(follow, receiver, size, sent)
        elif line == "stalled\n":
            before, since = -1, 0
            while not sent[-1] or before != sent[-1] or since < 10:
                since = since + 1 if before == sent[-1] else 0
                before = sent[-1]
                for _ in range(CALLS):
                    quick.ping.call_one().get()
            say(stalled=before * size, rss=psutil.Process().memory_info().rss)
        elif line == "finish\n":
            for thread in threads:
                thread.join()
            say(states=states)
            mesh.stop().get()
            say(ended=True)


if __name__ == "__main__":
    main()
