"""An actor that dies as it is told, on meshes that are started again."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

from monarch._src.actor.deliver import routes
from monarch.actor import Actor, ProcMesh, context, current_rank, endpoint
from monarch.supervision import Restart
from tests.integration.sample_actors import append

Spawn = Callable[..., ProcMesh]
OFTEN = Restart(at_most=1000, back_off=0)


def casts_to_few() -> None:
    """A bootstrap function: what is called there on eight ranks goes by way of their host."""
    routes.CAST_FROM = 8


class Counting(Actor):
    """An actor that counts its calls, and that ends itself or its process on request."""

    def __init__(self, name: str, *, born: str = "", fails_while: str = "") -> None:
        if fails_while and os.path.exists(fails_while):
            os.unlink(fails_while)
            raise ValueError("not this time")
        self.name = name
        self.calls = 0
        self.order: list[int] = []
        if born:
            append(born, f"{name} {current_rank().rank}")

    @endpoint
    def count(self) -> tuple[str, int]:
        self.calls += 1
        return self.name, self.calls

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self, how: str) -> None:
        match how:
            case "exit":
                os._exit(3)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "base exception":
                raise SystemExit("I have had enough")
            case "abort":
                context().actor_instance.abort("it makes no sense")
            case _:
                raise ValueError(how)

    @endpoint
    def die_on(self, ranks: list[int]) -> int:
        if current_rank().rank in ranks:
            os.kill(os.getpid(), signal.SIGKILL)
        return current_rank().rank

    @endpoint
    def note(self, number: int) -> tuple[int, list[int]]:
        self.order.append(number)
        return os.getpid(), self.order

    @endpoint
    def ask(self, other: Any) -> list[Any]:
        return other.count.call().get(timeout=60).values()

    @endpoint
    def keep(self, other: Any) -> None:
        self.other = other

    @endpoint
    def ask_kept(self) -> list[Any]:
        return self.other.count.call().get(timeout=60).values()

    @endpoint
    def ask_pickled(self, data: bytes) -> list[Any]:
        return pickle.loads(data).count.call().get(timeout=60).values()

    @endpoint
    def ask_and_wait(self, other: Any, gate: Any) -> str:
        answer = other.hold.call_one(gate)
        return type(answer.exception(timeout=60)).__name__

    @endpoint
    def hold(self, gate: Any) -> int:
        gate.pass_through()
        return current_rank().rank

    @endpoint
    def spawn_on(self, procs: ProcMesh) -> Any:
        return procs.spawn("by an actor", Counting, "of an actor")


def counts(mesh: Any) -> list[int]:
    """One more call of each rank; how many each has had in its life."""
    return [count for _, count in mesh.count.call().get(timeout=60).values()]
