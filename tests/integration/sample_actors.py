"""Actors that the tests call. Imports nothing heavy: every proc of a test imports this module."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from monarch.actor import Actor, concurrent_endpoint, context, current_rank, current_size, endpoint
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
    def raw(self, *writes: bytes) -> None:
        for data in writes:
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


class AsyncHolder(Actor):
    """Awaits until it is told to go on."""

    def __init__(self) -> None:
        self.may_go: asyncio.Event | None = None

    @concurrent_endpoint
    async def hold(self, entered: str) -> None:
        self.may_go = asyncio.Event()
        write_byte(entered)
        await self.may_go.wait()

    @concurrent_endpoint
    async def let_go(self) -> None:
        assert self.may_go is not None
        self.may_go.set()


class Imports(Actor):
    """Says what its process has loaded."""

    @endpoint
    def loaded(self) -> list[str]:
        return list(sys.modules)
