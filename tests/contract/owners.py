"""Actors that own others, for the tests of supervision. Every proc of a test imports this."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from monarch.actor import (
    Actor,
    ActorMesh,
    BootstrapCommand,
    Channel,
    MeshFailure,
    Port,
    ProcMesh,
    Undeliverable,
    context,
    endpoint,
    this_host,
)
from tests.integration.gates import Gate, write_byte
from tests.integration.sample_actors import append


class Leaf(Actor):
    """Owns nothing, fails as it is told, and says when it cleans up."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self, text: str = "the leaf is ill") -> None:
        raise ValueError(text)

    @endpoint
    def die(self, status: int = 7) -> None:
        os._exit(status)

    @endpoint
    def hold(self, gate: Gate) -> str:
        gate.pass_through()
        return "let go"

    @endpoint
    def note(self, text: str) -> None:
        append(self.path, text)

    @endpoint
    def leave(self) -> None:
        context().actor_instance.stop("I have had enough")

    def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, "leaf cleaned up")


class Slow(Leaf):
    """Does not finish its clean-up."""

    def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, "leaf begins to clean up")
        threading.Event().wait()


class Owning(Actor):
    """What owners of both kinds remember; `answers`: what one says to each failure, if anything."""

    def __init__(self, path: str, name: str = "owner", *answers: Any) -> None:
        self.path = path
        self.name = name
        self.answers = answers
        self.said: list[str] = []
        self.procs: Any = None
        self.below: Any = None
        self.on_failure: str = ""


class Owner(Owning):
    """Owns leaves, or another owner."""

    @endpoint
    def own(self, size: int, kind: type[Actor], *args: Any) -> Any:
        self.procs = this_host().spawn_procs({"gpus": size}, name=f"below_{self.name}")
        self.below = self.procs.spawn("below", kind, self.path, *args)
        return self.below

    @endpoint
    def own_on(self, procs: ProcMesh) -> Any:
        self.below = procs.spawn("below", Leaf, self.path)
        return self.below

    @endpoint
    def do(self, method: str, *args: Any, rank: int = 0, way: str = "call_one") -> Any:
        part = self.below.slice(gpus=rank) if len(self.below) > 1 else self.below
        answer = getattr(getattr(part, method), way)(*args)
        return answer.get() if way == "call_one" else None

    @endpoint
    def hold_while(self, gate: Gate, how: str) -> str:
        """Wait for rank 0, which only the supervisor lets go, while rank 1 fails."""
        self.on_failure = gate.leave
        held = self.below.slice(gpus=0).hold.call_one(gate)
        getattr(self.below.slice(gpus=1), how).broadcast()
        return held.get()

    @endpoint
    def receive_while(self, how: str) -> str:
        """Read a port to which only the supervisor sends."""
        self.port, receiver = Channel[str].open()
        getattr(self.below.slice(gpus=1), how).broadcast()
        return receiver.recv().get(timeout=60)

    @endpoint
    def spawn_more(self) -> Any:
        return self.procs.spawn("more", Leaf, self.path).pid.call().get().values()

    @endpoint
    def own_what_never_starts(self) -> None:
        never = BootstrapCommand("/bin/false")
        self.procs = this_host().spawn_procs({"gpus": 2}, name="never", bootstrap_command=never)
        self.procs.initialized.get()

    @endpoint
    def stop_below(self) -> None:
        self.procs.stop("by its owner's will").get()

    @endpoint
    def told(self) -> list[str]:
        return self.said

    @endpoint
    def stop_self(self) -> None:
        context().actor_instance.stop("enough")

    @endpoint
    def abort_self(self) -> None:
        context().actor_instance.abort("enough")

    @endpoint
    def raise_it(self) -> None:
        raise KeyError("owner")

    @endpoint
    def fine(self) -> str:
        return "fine"

    def __supervise__(self, failure: MeshFailure) -> Any:
        return supervise(self, failure)

    def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, f"{self.name} cleaned up after {type(exception).__name__}")


class Late(Owner):
    """Would make something when it is too late, and something that is nobody's."""

    @endpoint
    def let_a_thread_own(self) -> None:
        def make() -> None:
            procs = this_host().spawn_procs({"gpus": 2}, name="below_owner")
            procs.spawn("below", Leaf, self.path).slice(gpus=1).fail.broadcast()

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()

    def __cleanup__(self, exception: BaseException | None) -> None:
        try:
            this_host().spawn_procs(name="late")
        except RuntimeError as error:
            append(self.path, str(error))


class Restarting(Owner):
    """Replaces what has failed."""

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.said.append(failure.report())
        self.procs.stop().get()
        self.procs = this_host().spawn_procs({"gpus": 2}, name="again")
        self.below = self.procs.spawn("below", Leaf, self.path)
        self.below.pid.call().get()
        return failure.mesh is not None


class AsyncOwner(Owning):
    """The same on an event loop."""

    @endpoint
    async def own(self, size: int, kind: type[Actor], *args: Any) -> Any:
        self.procs = this_host().spawn_procs({"gpus": size}, name=f"below_{self.name}")
        self.below = self.procs.spawn("below", kind, self.path, *args)
        return self.below

    @endpoint
    async def own_in_task_and_thread(self) -> Any:
        async def in_task() -> ProcMesh:
            return this_host().spawn_procs({"gpus": 1}, name="by_task")

        self.procs = await asyncio.create_task(in_task())
        self.below = await asyncio.to_thread(self.procs.spawn, "below", Leaf, self.path)
        return self.below

    @endpoint
    async def own_on(self, procs: ProcMesh) -> Any:
        self.below = procs.spawn("below", Leaf, self.path)
        return self.below

    @endpoint
    async def do(self, method: str, *args: Any, rank: int = 0, way: str = "call_one") -> Any:
        part = self.below.slice(gpus=rank) if len(self.below) > 1 else self.below
        answer = getattr(getattr(part, method), way)(*args)
        return await answer if way == "call_one" else None

    @endpoint
    async def hold_while(self, gate: Gate, how: str) -> str:
        self.on_failure = gate.leave
        held = self.below.slice(gpus=0).hold.call_one(gate)
        getattr(self.below.slice(gpus=1), how).broadcast()
        return await held

    @endpoint
    async def receive_while(self, how: str) -> str:
        self.port, receiver = Channel[str].open()
        getattr(self.below.slice(gpus=1), how).broadcast()
        return await receiver.recv()

    @endpoint
    async def spawn_more(self) -> Any:
        return (await self.procs.spawn("more", Leaf, self.path).pid.call()).values()

    @endpoint
    async def own_what_never_starts(self) -> None:
        never = BootstrapCommand("/bin/false")
        self.procs = this_host().spawn_procs({"gpus": 2}, name="never", bootstrap_command=never)
        await self.procs.initialized

    @endpoint
    async def stop_below(self) -> None:
        await self.procs.stop("by its owner's will")

    @endpoint
    async def told(self) -> list[str]:
        return self.said

    @endpoint
    async def stop_self(self) -> None:
        context().actor_instance.stop("enough")

    @endpoint
    async def abort_self(self) -> None:
        context().actor_instance.abort("enough")

    @endpoint
    async def raise_it(self) -> None:
        raise KeyError("owner")

    @endpoint
    async def fine(self) -> str:
        return "fine"

    async def __supervise__(self, failure: MeshFailure) -> Any:
        await asyncio.sleep(0)
        return supervise(self, failure)

    async def __cleanup__(self, exception: BaseException | None) -> None:
        await asyncio.sleep(0)
        append(self.path, f"{self.name} cleaned up after {type(exception).__name__}")


def supervise(owner: Any, failure: MeshFailure) -> Any:
    """Note it, do what was asked for, and give the next answer; the last one again and again."""
    owner.said.append(f"{failure.mesh_name}: {len(failure.failures)}: {failure.report()}")
    if owner.on_failure:
        write_to_gate(owner.on_failure)
    if hasattr(owner, "port"):
        owner.port.send("from the supervisor")
    at = min(len(owner.said), len(owner.answers)) - 1
    answer = owner.answers[at] if at >= 0 else False
    if isinstance(answer, BaseException):
        raise answer
    return answer


def write_to_gate(leave: str) -> None:
    """Let one through a gate, from a rank."""
    write_byte(leave)


class Sender(Actor):
    """Sends what cannot arrive."""

    def __init__(self, handled: Any = None, told: str = "") -> None:
        self.handled = handled
        self.path = told

    @endpoint
    def send(self, mesh: ActorMesh, method: str) -> None:
        getattr(mesh, method).broadcast()

    @endpoint
    def send_to(self, port: Port[int]) -> None:
        port.send(1)

    @endpoint
    def fine(self) -> str:
        return "fine"


class Handling(Sender):
    """And says what becomes of it."""

    def _handle_undeliverable_message(self, message: Undeliverable) -> bool:
        append(self.path, f"{message.sender()} | {message.dest()} | {message.error_msg()}")
        if isinstance(self.handled, BaseException):
            raise self.handled
        return self.handled
