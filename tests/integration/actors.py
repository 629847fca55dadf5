"""Actors that the tests call. Imports nothing heavy: every proc of a test imports this module."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from monarch.actor import (
    Actor,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    this_host,
    this_proc,
)
from tests.integration.gates import Gate, write_byte


def append(path: str, line: str) -> None:
    """A line at the end of a file."""
    with open(path, "a") as file:
        file.write(line + "\n")


class Counter(Actor):
    """Counts."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step

    @endpoint
    def value_now(self) -> int:
        return self.value

    @endpoint
    def add(self, amount: int | None = None) -> int:
        self.value += self.step if amount is None else amount
        return self.value


class Teller(Actor):
    """Says where it is."""

    @endpoint
    def places(self) -> dict[str, Any]:
        here = context()
        me = here.actor_instance
        return {
            "actor_rank": dict(me.rank),
            "actor_rank_number": me.rank.rank,
            "message_rank": dict(here.message_rank),
            "message_rank_number": here.message_rank.rank,
            "message_sizes": dict(here.message_rank.extent),
            "current_rank": dict(current_rank()),
            "current_size": dict(current_size()),
            "name": me.name,
            "class": me.class_name,
            "pid": os.getpid(),
        }

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def process_world(self) -> dict[str, Any]:
        return {
            "cwd": os.getcwd(),
            "path": list(sys.path),
            "env": dict(os.environ),
            "executable": sys.executable,
            "session": os.getsid(0),
            "modules": sorted(sys.modules),
            "argv": list(sys.argv),
        }

    @endpoint
    def identity(self) -> tuple[str, str]:
        me = context().actor_instance
        return str(me.actor_id), me.proc_id

    @endpoint
    def fresh_random(self) -> tuple[float, bytes]:
        import random

        return random.random(), os.urandom(8)


class Echo(Actor):
    """Gives back what it is given."""

    @endpoint
    def same(self, value: Any) -> Any:
        return value

    @endpoint
    def all(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    @endpoint
    def named(self, first: Any, second: Any = 2, *, third: Any = 3) -> Any:
        return first, second, third

    @endpoint
    def apply(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    @endpoint
    def length(self, value: Any) -> int:
        return len(value)

    @endpoint
    def nothing(self) -> None:
        return None

    @endpoint
    def rank(self) -> int:
        return context().message_rank.rank

    @endpoint
    def unpicklable(self) -> Any:
        return threading.Lock()

    @endpoint
    def pass_gate(self, gate: Gate, then: Any = None) -> Any:
        gate.pass_through()
        return then


class Arrays(Actor):
    """Arrays in and out."""

    def __init__(self) -> None:
        import numpy

        self.kept = numpy.zeros(100_000)

    @endpoint
    def add_one_in_place(self, array: Any) -> tuple[float, bool]:
        array += 1
        return float(array.sum()), bool(array.flags.writeable)

    @endpoint
    def total(self, array: Any) -> float:
        return float(array.sum())

    @endpoint
    def ones(self, count: int) -> Any:
        import numpy

        return numpy.ones(count)

    @endpoint
    def grown(self) -> Any:
        """Its own array, changed again by the next call."""
        self.kept += 1
        return self.kept


class Recorder(Actor):
    """Keeps what it is sent, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def note(self, item: Any) -> Any:
        self.seen.append(item)
        return item

    @endpoint
    def note_too(self, item: Any) -> Any:
        self.seen.append(item)
        return item

    @endpoint
    def count(self) -> int:
        return len(self.seen)

    @endpoint
    def take(self) -> list[Any]:
        seen, self.seen = self.seen, []
        return seen


class AsyncRecorder(Actor):
    """The same with a loop; an await in each endpoint would let others in, if they were let."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    async def note(self, item: Any) -> Any:
        await asyncio.sleep(0)
        self.seen.append(item)
        await asyncio.sleep(0)
        return item

    @endpoint
    async def take(self) -> list[Any]:
        seen, self.seen = self.seen, []
        return seen


class Meeting(Actor):
    """Concurrent endpoints that can only end together."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.inside = 0
        self.most = 0
        self.all_here: asyncio.Event | None = None

    @concurrent_endpoint
    async def meet(self, number: int, expected: int) -> list[int]:
        self.began.append(number)
        if self.all_here is None:
            self.all_here = asyncio.Event()
        if len(self.began) == expected:
            self.all_here.set()
        await self.all_here.wait()
        return list(self.began)

    @endpoint
    async def alone(self) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        for _ in range(5):
            await asyncio.sleep(0)
        self.inside -= 1
        return self.most

    @concurrent_endpoint
    async def wait_for_ever(self, path: str, gate: Gate) -> None:
        try:
            await asyncio.to_thread(gate.pass_through)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            append(path, "cancelled")
            raise

    @endpoint
    async def thread_and_loop(self) -> tuple[int, bool]:
        return threading.get_ident(), asyncio.get_running_loop().is_running()


class Failing(Actor):
    """Raises what it is told."""

    @endpoint
    def raise_value_error(self, text: str = "a bad value") -> None:
        raise ValueError(text)

    @endpoint
    def raise_on(self, ranks: list[int], text: str = "not here") -> int:
        rank = context().message_rank.rank
        if rank in ranks:
            raise ValueError(text)
        return rank

    @endpoint
    def raise_at_gate(self, ranks: list[int], gate: Gate) -> int:
        rank = context().message_rank.rank
        if rank in ranks:
            raise ValueError("at once")
        gate.pass_through()
        return rank

    @endpoint
    def raise_with_cause(self) -> None:
        try:
            {}["absent"]
        except KeyError as error:
            raise RuntimeError("could not look it up") from error

    @endpoint
    def recurse(self, depth: int = 0) -> None:
        self.deeper(depth)

    def deeper(self, depth: int) -> None:
        self.deeper(depth + 1)

    @endpoint
    def recurse_in_turns(self) -> None:
        self.turn()

    def turn(self) -> None:
        self.other_turn()

    def other_turn(self) -> None:
        self.turn()

    @endpoint
    def raise_with_note(self) -> None:
        error = ValueError("wrong")
        error.add_note("in the second batch")
        raise error

    @endpoint
    def raise_unpicklable(self) -> None:
        raise HoldsALock("has a lock")

    @endpoint
    def raise_picky(self) -> None:
        raise Picky("one", "two")

    @endpoint
    def raise_mute(self) -> None:
        raise Mute

    @endpoint
    def raise_base(self) -> None:
        raise KeyboardInterrupt

    @endpoint
    def leave(self) -> None:
        sys.exit(3)

    @endpoint
    def fine(self) -> str:
        return "fine"


class HoldsALock(Exception):
    """Can't be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Picky(Exception):
    """Pickles, but can't be rebuilt: pickle calls it with one argument."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Mute(Exception):
    """Can't even say what it is."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class BadConstructor(Actor):
    """Never lives, on the ranks it is told."""

    def __init__(self, ranks: list[int] | None = None) -> None:
        rank = context().actor_instance.rank.rank
        if ranks is None or rank in ranks:
            raise LookupError(f"no data for rank {rank}")

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank


class Ring(Actor):
    """Actors that call each other."""

    @endpoint
    def meet(self, ring: Ring) -> int:
        self.ring = ring
        self.me = context().actor_instance.rank.rank
        return len(ring)

    @endpoint
    def who(self) -> int:
        return context().actor_instance.rank.rank

    @endpoint
    def ask(self, other: Echo, value: Any) -> Any:
        return other.same.call_one(value).get()

    @endpoint
    def ask_all(self, others: Echo, value: Any) -> list[Any]:
        return others.same.call(value).get().values()

    @endpoint
    def who_do_you_reach(self, others: Teller) -> list[tuple[int, int]]:
        found = others.places.call().get()
        return [(v["message_rank_number"], v["actor_rank_number"]) for v in found.values()]

    @endpoint
    def broadcast_many(self, to: Recorder, count: int) -> None:
        for number in range(count):
            to.note.broadcast((context().actor_instance.rank.rank, number))
        to.count.call().get()  # answered when all that came before it has been handled

    @endpoint
    def stream_of(self, others: Echo) -> list[int]:
        return sorted(answer.get() for answer in others.rank.stream())

    @endpoint
    def neighbour_on_this_proc(self) -> tuple[int, int]:
        neighbour = this_proc().spawn("neighbour", Teller)
        pid = neighbour.pid.call_one().get()
        neighbour.stop().get()
        return os.getpid(), pid

    @endpoint
    def try_to_stop(self, mesh: Any) -> str:
        try:
            mesh.stop()
        except ValueError as error:
            return str(error)
        return "stopped it"

    @endpoint
    def arrays_of_neighbour(self, arrays: Arrays, count: int) -> tuple[float, float, bool]:
        import numpy

        mine = numpy.zeros(count)
        total, writable = arrays.add_one_in_place.call_one(mine).get()
        return float(mine.sum()), total, writable

    @endpoint
    def what_went_wrong(self, failing: Failing) -> BaseException | None:
        return failing.raise_value_error.call_one("inner").exception()

    @endpoint
    def let_it_escape(self, failing: Failing) -> None:
        failing.raise_value_error.call_one("inner").get()


class AsyncRing(Actor):
    """An async actor that awaits others."""

    @endpoint
    async def ask_all(self, others: Echo, values: list[Any]) -> list[Any]:
        answers = [others.same.call(value) for value in values]
        return [(await answer).values() for answer in answers]

    @endpoint
    async def gathered(self, others: Echo, count: int) -> list[int]:
        found = await asyncio.gather(*(others.same.call_one(i) for i in range(count)))
        return list(found)


class Spawner(Actor):
    """Owns a mesh of its own."""

    @endpoint
    def spawn(self, count: int) -> Any:
        self.procs = this_host().spawn_procs({"at": count}, name="children")
        self.children = self.procs.spawn("children", Teller)
        return self.children.pid.call().get().values()

    @endpoint
    def children_mesh(self) -> Any:
        return self.children

    @endpoint
    def stop_children(self) -> None:
        self.procs.stop().get()


class Tidy(Actor):
    """Writes down that it was cleaned up."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def note(self, text: str) -> None:
        append(self.path, text)

    @endpoint
    def note_at_gate(self, text: str, gate: Gate) -> None:
        gate.pass_through()
        append(self.path, text)

    def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, f"cleaned up {context().actor_instance.rank.rank} after {exception!r}")


class AsyncTidy(Actor):
    """The same with a loop."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    async def nothing(self) -> None:
        return None

    async def __cleanup__(self, exception: BaseException | None) -> None:
        await asyncio.sleep(0)
        append(self.path, f"cleaned up after {exception!r}")


class Printer(Actor):
    """Writes to its streams."""

    @endpoint
    def out(self, *lines: str) -> None:
        for line in lines:
            print(line)

    @endpoint
    def err(self, *lines: str) -> None:
        for line in lines:
            print(line, file=sys.stderr)

    @endpoint
    def raw(self, data: bytes) -> None:
        os.write(1, data)

    @endpoint
    def many(self, count: int) -> None:
        rank = context().actor_instance.rank.rank
        for number in range(count):
            print(f"line {number} of {rank}")

    @endpoint
    def print_and_pass(self, text: str, gate: Gate) -> None:
        print(text)
        gate.pass_through()


class Mortal(Actor):
    """Dies as it is told."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def say_on_stderr(self, *lines: str) -> None:
        for line in lines:
            print(line, file=sys.stderr)

    @endpoint
    def kill_self(self, number: int) -> None:
        os.kill(os.getpid(), number)
        signal.pause()

    @endpoint
    def kill_self_on(self, ranks: list[int], number: int) -> int:
        rank = context().actor_instance.rank.rank
        if rank in ranks:
            os.kill(os.getpid(), number)
            signal.pause()
        return rank

    @endpoint
    def exit_hard(self, status: int) -> None:
        os._exit(status)

    @endpoint
    def crash(self) -> None:
        ctypes.string_at(0)

    @endpoint
    def hold(self, gate: Gate) -> int:
        gate.pass_through()
        return context().actor_instance.rank.rank

    @endpoint
    def hold_on(self, ranks: list[int], gate: Gate) -> int:
        rank = context().actor_instance.rank.rank
        if rank in ranks:
            gate.pass_through()
        return rank

    @endpoint
    def hold_the_gil(self, gate: Gate) -> None:
        """In C, without giving the interpreter away, until the gate opens."""
        pipe = os.open(gate.leave, os.O_RDONLY)
        write_byte(gate.entered)
        ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
        os.close(pipe)

    @endpoint
    def start_grandchild(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid


class HoldsInConstructor(Actor):
    """Its constructor stands at a gate."""

    def __init__(self, gate: Gate, ranks: list[int]) -> None:
        if context().actor_instance.rank.rank in ranks:
            gate.pass_through()

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank


class HoldsInCleanup(Actor):
    """Its clean-up stands at a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    def __cleanup__(self, exception: BaseException | None) -> None:
        self.gate.pass_through()


class DiesInConstructor(Actor):
    """Its process ends while it is made."""

    def __init__(self, ranks: list[int]) -> None:
        if context().actor_instance.rank.rank in ranks:
            os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank
