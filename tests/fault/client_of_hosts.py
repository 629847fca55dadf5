"""A client that has worker hosts: loads their ranks with calls, and says what becomes of them.

    client_of_hosts.py [--through GATEWAY] KEYS ADDRESS...

Says what happens as lines of JSON. On its input: `stop`, call no more, and say whether each rank
has done each call once and in order; `ask HOST OTHER`, have a rank of one host call one of another;
`call HOST`, call its first rank; `send HOST`, send it what is large, and wait for nothing; `free`,
wait until nobody has any of that any more; `end`, give the workers back.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np

import monarch.actor
from monarch.actor import (
    Actor,
    Future,
    SupervisionError,
    attach,
    attach_to_workers,
    endpoint,
)
from monarch.observe import payload_counts

LARGE = 1 << 24
EVERY = 200
WINDOW = 50  # calls to one rank that are not answered
GPUS = 2


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")  # whole, whichever thread


class Rank(Actor):
    """Takes numbers, and notes whether they come once and in order."""

    def __init__(self) -> None:
        self.got = 0
        self.in_order = True

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def take(self, number: int, _filling: bytes) -> int:
        self.got += 1
        self.in_order &= number == self.got
        return number

    @endpoint
    def ignore(self, _filling: object) -> None:
        pass

    @endpoint
    def ask(self, other: Rank) -> int:
        return other.pid.call_one().get()

    @endpoint
    def end(self) -> tuple[int, bool]:
        return self.got, self.in_order


class Load:
    """Calls one rank again and again, `WINDOW` calls at a time, until told to stop."""

    def __init__(self, rank: Rank, host: int) -> None:
        self.rank, self.host = rank, host
        self.sent = 0
        self.stopping = False
        self.lost = ""
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        waiting: list[Future[int]] = []
        answered = 0
        try:
            while waiting or not self.stopping:
                while len(waiting) < WINDOW and not self.stopping:
                    self.sent += 1
                    waiting.append(self.rank.take.call_one(self.sent, bytes(1000)))
                if waiting:
                    answered += 1
                    assert waiting.pop(0).get() == answered
                    if answered % EVERY == 0:
                        say(progress=answered, host=self.host)
        except SupervisionError as error:
            failure = error.failures[0]
            self.lost = failure.kind
            say(lost=self.host, kind=failure.kind, on=failure.host, why=str(error))


def main() -> None:
    faults: list[Any] = []
    monarch.actor.unhandled_fault_hook = faults.append
    ca, *addresses = sys.argv[1:]
    if ca == "--through":
        gateway, ca, *addresses = addresses
        attach(gateway)
    mesh = attach_to_workers(ca=ca, workers=addresses)
    procs = mesh.spawn_procs({"gpus": GPUS})
    ranks = procs.spawn("ranks", Rank)
    pids = list(ranks.pid.call().get().values())
    say(pids=[pids[at * GPUS : (at + 1) * GPUS] for at in range(len(addresses))])
    loads = [
        Load(ranks.slice(hosts=host, gpus=gpu), host)
        for host in range(len(addresses))
        for gpu in range(GPUS)
    ]
    in_place = bytes(LARGE)
    references = sys.getrefcount(in_place)
    for line in sys.stdin:
        what, *hosts = line.split()
        firsts = [ranks.slice(hosts=int(host), gpus=0) for host in hosts]
        try:
            if what == "ask":
                say(asked=firsts[0].ask.call_one(firsts[1]).get())
            elif what == "call":
                say(called=firsts[0].pid.call_one().get())
            elif what == "send":
                firsts[0].ignore.broadcast(np.ones(LARGE, np.uint8))  # by way of a segment
                firsts[0].ignore.broadcast(in_place)
                say(segments=payload_counts().segments)
            elif what == "free":
                while payload_counts().segments or sys.getrefcount(in_place) > references:
                    time.sleep(0.05)  # they are looked after by a thread, which tells nobody
                say(free=True)
            elif what == "stop":
                for load in loads:
                    load.stopping = True
                for load in loads:
                    load.thread.join()
                for load in loads:
                    if not load.lost:
                        got, in_order = load.rank.end.call_one().get()
                        say(host=load.host, got=got, of=load.sent, in_order=in_order)
            elif what == "end":
                mesh.stop().get()
                say(given_back=True)
        except Exception as error:
            say(error=type(error).__name__, text=str(error))
    for load in loads:
        load.stopping = True


if __name__ == "__main__":
    main()
