"""The actor that tests put on workers, and the program of another client."""

from __future__ import annotations

import os
import signal
from typing import Any

from monarch.actor import Actor, HostMesh, Port, context, current_rank, endpoint, this_host
from tests.workers import PATIENCE_S

# Has the workers that it is given, or says why not; holds them until its input ends.
CLIENT = """
import sys
from monarch.actor import attach_to_workers
try:
    mesh = attach_to_workers(ca="trust_all_connections", workers=sys.argv[1:])
    mesh.initialized.get(60)
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
else:
    mesh.spawn_procs({"gpus": 2}).initialized.get(60)
    print("has it", flush=True)
    sys.stdin.readline()
"""


class WorkerActor(Actor):
    """An actor that reports its host, and calls other actors."""

    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def host(self) -> HostMesh:
        return this_host()

    @endpoint
    def place(self) -> dict[str, int]:
        return dict(current_rank())

    @endpoint
    def add(self, amount: int) -> int:
        self.count += amount
        return self.count

    @endpoint
    def same(self, value: Any) -> Any:
        return value

    @endpoint
    def ask(self, other: WorkerActor) -> int:
        return other.pid.call_one().get()

    @endpoint
    def ask_all(self, others: WorkerActor) -> list[int]:
        return list(others.pid.call().get(timeout=PATIENCE_S).values())

    @endpoint
    def tell(self, port: Port[str], text: str) -> None:
        port.send(text)

    @endpoint
    def fail(self, why: str) -> None:
        raise ValueError(why)

    @endpoint
    def say(self, text: str) -> None:
        print(text, flush=True)

    @endpoint
    def creator(self) -> str:
        return str(context().actor_instance.creator)

    @endpoint
    def ask_back(self, other: WorkerActor, me: WorkerActor) -> int:
        return other.ask.call_one(me).get()

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def spawn_on(self, hosts: HostMesh) -> tuple[str, int]:
        self.procs = hosts.spawn_procs(name="from afar")
        pid = self.procs.spawn("inner", WorkerActor).pid.call_one().get(timeout=PATIENCE_S)
        return repr(self.procs), pid

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def spawn_here(self) -> list[int]:
        procs = this_host().spawn_procs({"inner": 2}, name="inner")
        inner = procs.spawn("inner", WorkerActor)
        pids = list(inner.pid.call().get(timeout=PATIENCE_S).values())
        procs.stop().get(timeout=PATIENCE_S)
        return pids
