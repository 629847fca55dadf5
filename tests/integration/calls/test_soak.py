"""What ends leaves nothing that grows: thousands of actors, streams, ports, calls, debug sessions
and meshes.

Counted are objects of the interpreter and bytes of the process, of the client and of a rank, before
and after. `MONARCH_SOAK` says how many of each; `make stress` gives it.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch._src.actor.state.history import HISTORY
from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    ProcMesh,
    SupervisionError,
    endpoint,
    shutdown_context,
    this_host,
)
from monarch.debug import attach, resume
from tests.conftest import Faults
from tests.integration.debugging import news

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("MONARCH_SOAK", "200"))
WARM = 64
OBJECTS = 0.5
"""Objects each that a collection may find more of: one that stays is told, noise is not."""
TOMBSTONE = 300
"""Bytes that may stay of an actor."""
SLACK = 2 << 20
"""Bytes by which a process may grow meanwhile for other reasons, such as arenas half full."""
REPEATS = 3


def holdings() -> tuple[int, int]:
    """Objects and bytes of this process."""
    HISTORY.clear()  # its rings hold so many rows at most
    gc.collect()
    return len(gc.get_objects()), psutil.Process().memory_info().rss


def growth(
    work: Callable[[], None], weigh: Callable[[], list[tuple[int, int]]], bound: int
) -> list[tuple[int, int]]:
    """The objects and bytes by which each process grows during the work.

    A process may return memory to the system late, or need more for another reason. What grows with
    the work grows each time, so the work is repeated while a process grows by more than `bound`.
    """
    found: list[tuple[int, int]] = []
    for _ in range(REPEATS):
        before = weigh()
        work()
        found = [
            (objects_then - objects, size_then - size)
            for (objects, size), (objects_then, size_then) in zip(before, weigh(), strict=True)
        ]
        if all(size < bound for _, size in found):
            break
    return found


class Scales(Actor):
    """Weighs its process."""

    @endpoint
    def weigh(self) -> tuple[int, int]:
        return holdings()


class Mayfly(Actor):
    """Ends soon."""

    @endpoint
    def one(self) -> int:
        return 1

    @endpoint
    def fail(self) -> None:
        raise ValueError("as it was told to")

    @endpoint
    def say(self, port: Port[int]) -> None:
        port.send(1)

    @endpoint
    def listen(self) -> int:
        port, receiver = Channel[int].open()
        port.send(1)
        return receiver.recv().get()

    @endpoint
    def pause(self) -> int:
        breakpoint()
        return 1


class AsyncMayfly(Actor):
    """The same on an event loop."""

    @endpoint
    async def one(self) -> int:
        return 1


def one_actor(procs: ProcMesh, _: Mayfly, number: int) -> None:
    kind = AsyncMayfly if number % 2 else Mayfly
    mesh = procs.spawn("mayfly", kind)
    assert mesh.one.call_one().get() == 1
    mesh.stop().get()


def one_actor_that_fails(procs: ProcMesh, _: Mayfly, number: int) -> None:
    mesh = procs.spawn("mayfly", Mayfly)
    mesh.fail.broadcast()
    assert isinstance(mesh.one.call_one().exception(), SupervisionError)
    mesh.stop().get()


def one_stream(_: ProcMesh, mayfly: Mayfly, number: int) -> None:
    stream = mayfly.one.stream()
    if number % 2:
        assert [future.get() for future in stream] == [1]
    mayfly.one.call_one().get()


def one_port(_: ProcMesh, mayfly: Mayfly, number: int) -> None:
    port, receiver = Channel[int].open(once=bool(number % 2))
    mayfly.say.call_one(port).get()
    if number % 3:
        assert receiver.recv().get() == 1


def one_channel_on_a_rank(_: ProcMesh, mayfly: Mayfly, number: int) -> None:
    assert mayfly.listen.call_one().get() == 1


def one_call_that_is_dropped(_: ProcMesh, mayfly: Mayfly, number: int) -> None:
    mayfly.one.call()
    with pytest.raises(ActorError):
        mayfly.fail.call_one().get()


def one_debug_session(_: ProcMesh, mayfly: Mayfly, number: int) -> None:
    with news() as until:
        answer = mayfly.pause.call_one()
        (waits,) = until(1)
        if number % 2:
            with attach(waits.name) as console:
                assert console.send("p 40 + 2") == "42\n"
        resume()
        assert answer.get() == 1


@pytest.mark.parametrize(
    "once",
    [
        one_actor,
        one_actor_that_fails,
        one_stream,
        one_port,
        one_channel_on_a_rank,
        one_call_that_is_dropped,
        one_debug_session,
    ],
)
def test_nothing_that_grows_is_left_of(
    once: Callable[[ProcMesh, Mayfly, int], None], faults: Faults
) -> None:
    with this_host().spawn_procs() as procs, this_host().spawn_procs() as other:
        scales, mayfly = procs.spawn("scales", Scales), other.spawn("mayfly", Mayfly)
        # Actors end beside the scales; the rest goes on in the process of one that lives.
        there = scales if once in (one_actor, one_actor_that_fails) else other.spawn("s", Scales)
        where = procs

        def repeat(count: int) -> None:
            for number in range(count):
                once(where, mayfly, number)
            faults.untaken()

        def both_holdings() -> list[tuple[int, int]]:
            return [holdings(), there.weigh.call_one().get()]

        repeat(WARM + 2 * 128 if once is one_actor_that_fails else WARM)
        grown = growth(lambda: repeat(COUNT), both_holdings, COUNT * 2 * TOMBSTONE + SLACK)
    for objects, size in grown:
        assert objects < COUNT * OBJECTS + 64
        assert size < COUNT * 2 * TOMBSTONE + SLACK


class Tracer(Actor):
    """Counts the bytes that Python's allocator has given to its process since the first call."""

    @endpoint
    def weigh(self) -> int:
        HISTORY.clear()  # the last rows stay, and no more
        gc.collect()
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("once", [one_actor, one_actor_that_fails])
def test_an_ended_actor_leaves_less_than_600_bytes_on_its_rank(
    once: Callable[[ProcMesh, Mayfly, int], None], faults: Faults
) -> None:
    with this_host().spawn_procs() as procs:
        tracer, mayfly = procs.spawn("tracer", Tracer), procs.spawn("mayfly", Mayfly)

        def repeat(count: int) -> None:
            for number in range(count):
                once(procs, mayfly, number)
            faults.untaken()

        tracer.weigh.call_one().get()
        repeat(WARM + (2 * 128 if once is one_actor_that_fails else 0))
        before = tracer.weigh.call_one().get()
        repeat(COUNT)
        left = tracer.weigh.call_one().get() - before
        assert left < COUNT * 600


@pytest.mark.parametrize("what", ["meshes", "sessions"])
def test_nothing_that_grows_is_left_of_ended(what: str, own_base_directory: Path) -> None:
    def repeat(count: int) -> None:
        for _ in range(count):
            procs = this_host().spawn_procs()
            assert procs.spawn("mayfly", Mayfly).one.call_one().get() == 1
            procs.stop().get()
            if what == "sessions":
                shutdown_context().get()

    count = max(8, COUNT // 50)
    repeat(4)
    bound = count * 8192 + SLACK
    ((objects, size),) = growth(lambda: repeat(count), lambda: [holdings()], bound)
    shutdown_context().get()
    assert objects < count * 8 + 64
    assert size < bound
