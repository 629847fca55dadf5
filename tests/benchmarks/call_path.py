"""What a call costs in Python alone, on each side: the runtime as it is, on a router that is none.

    python -m tests.benchmarks.call_path

No socket, no other process: what the router is to send is dropped, what it is to receive is there
at once. Best of many short series, so that other work on the machine does not show.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from monarch._src.actor.endpoint import actor_class
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.local_actors import run_actor
from monarch._src.actor.runtime import Runtime, set_runtime
from monarch._src.actor.serialize import pack_value
from monarch._src.host.status_board import Board, Slot
from monarch._src.mesh.actor_mesh import ActorMesh, Actors
from monarch._src.net.local.interrupt import install_permanent_handler
from monarch._src.net.peers import Peer
from monarch._src.shape import Extent
from monarch._src.wire.frames import encode
from monarch._src.wire.messages import OK, Call, Reply, SpawnActor
from monarch.actor import Actor, endpoint

RANKS, MESH, ACTOR = 8, 77, 5
SERIES, ROUNDS = 20, 200


class Counter(Actor):
    """Counts."""

    def __init__(self) -> None:
        self.n = 0

    @endpoint
    def add(self, x: int) -> int:
        self.n += x
        return self.n


class NoRouter:
    """Takes the place of a router: `receive` gives out what `source` says is there."""

    closed = False

    def __init__(self, node: Any, source: Callable[[], list[bytes] | None]) -> None:
        self.receive = source
        self.sent: list[bytes] = []
        node.router = node.leader._router = self

    def send(self, route: bytes, frames: object) -> bool:
        self.sent.append(route)
        return True

    def send_all(self, routes: Iterable[bytes], frames: object) -> list[bytes]:
        self.sent += routes
        return []

    def wake(self) -> None: ...

    def clear_wake_ups(self) -> None: ...

    def wait(self, *_: object) -> list[tuple[int, int]]:
        return []


def meet(run: Runtime, name: str) -> None:
    """Let `run` think that it has a pipe to that node."""
    peer = run.node._peers[name] = Peer(name, run.node.router.send, "", name.encode())
    run.node._by_route[name.encode()] = peer


def calling(folder: str, ref: ProcsRef) -> dict[str, float]:
    """Microseconds of a call at its caller, to one rank and to all, until it has the answers."""
    run = Runtime("client-1", "client", folder)
    set_runtime(run)
    answers: dict[bytes, bytes] = {}

    def receive() -> list[bytes] | None:
        if not router.sent:
            return None
        route = router.sent.pop()
        return [route, answers[route]]

    router = NoRouter(run.node, receive)
    for rank in range(RANKS):
        meet(run, ref.node(rank))
    region = ref.extent.region
    actors = Actors(ACTOR, "counter", actor_class(Counter), ref, region, owned=True)
    mesh: Any = ActorMesh(run, actors, region)
    one = mesh.slice(gpus=0)
    payload = pack_value(5)

    def once(work: Callable[[], object]) -> float:
        number = next(run.calls._ids)
        run.calls._ids = itertools.count(number)
        for rank in range(RANKS):
            answers[ref.node(rank).encode()] = bytes(encode(Reply(number, rank, OK), payload)[0])
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    works: dict[str, Callable[[], object]] = {
        "caller, one rank": lambda: one.add.call_one(1).get(),
        f"caller, {RANKS} ranks": lambda: mesh.add.call(1).get(),
    }
    return {
        name: 1e6 * min(sum(once(work) for _ in range(SERIES)) / SERIES for _ in range(ROUNDS))
        for name, work in works.items()
    }


class Enough(BaseException):
    """The callee has run often enough."""


def called(folder: str, ref: ProcsRef) -> dict[str, float]:
    """Microseconds of a call where it runs, from one message to the next."""
    board = Board(Path(folder) / "board", 1)
    run = Runtime(ref.node(0), "proc", folder, mesh=MESH, rank=0)
    run.slot, run.proc_ref = Slot(str(board.path), 0), ref
    install_permanent_handler()
    call = encode(Call(ACTOR, 3, "add", 0, ["gpus"], [RANKS]), pack_value(((1,), {}), 2))[0]
    looks, began, best = 0, 0.0, float("inf")

    def receive() -> list[Any] | None:
        nonlocal looks, began, best
        looks += 1
        if looks % 2:
            return None  # all was read: whoever waits is done, or goes to sleep
        if not looks % (2 * SERIES):
            now = time.perf_counter()
            if began:
                best = min(best, (now - began) / SERIES)
            began = now
        if looks > 2 * SERIES * ROUNDS:
            raise Enough
        return [b"client-1", call]

    NoRouter(run.node, receive)
    meet(run, "client-1")
    spec = SpawnActor(ACTOR, "counter", "Counter", MESH, ref.name, 0, ["gpus"], [RANKS], "client-1")
    worker = run.cells[ACTOR] = ActorCell(run, spec, pack_value((Counter, (), {}), 2))
    try:
        run_actor(worker)
    except Enough:
        pass
    return {"callee": 1e6 * best}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        ref = ProcsRef(MESH, "procs", ("gpus",), (RANKS,), folder, "client-1", os.uname().nodename)
        assert ref.extent == Extent(("gpus",), (RANKS,))
        for name, us in (calling(folder, ref) | called(folder, ref)).items():
            print(f"{name:18} {us:6.1f} us", flush=True)
    os._exit(0)  # nothing here was started in a way that could be ended


if __name__ == "__main__":
    main()
