"""Actors that pause, and waits for what they pause in."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from monarch.actor import Actor, concurrent_endpoint, current_rank, endpoint
from monarch.debug import WaitingRanks, waiting
from monarch.observe import RankPaused, on_change
from tests.integration.gates import Gate, write_byte
from tests.integration.programs import PATIENCE_S

ALL = tuple(range(64))


class PickledUntilBrokenInto:
    """Is a 1 when it is pickled, which takes until somebody breaks in."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __reduce__(self) -> tuple[Any, ...]:
        write_byte(self.gate.entered)
        while sys.gettrace() is None:
            os.sched_yield()
        return int, (1,)


class Stepper(Actor):
    """Pauses where it is told to."""

    def __init__(self, in_constructor: bool = False) -> None:
        self.total = 100
        if in_constructor:
            breakpoint()

    @endpoint
    def step(self, value: int, ranks: tuple[int, ...] = ALL) -> int:
        doubled = value * 2
        if current_rank().rank in ranks:
            breakpoint()
        result = doubled + self.total
        return result  # noqa: RET504  to be stepped to

    @endpoint
    def twice(self, value: int) -> int:
        result = self.helped(value)
        return result + self.helped(value)

    def helped(self, value: int) -> int:
        breakpoint()
        return value + 1

    @endpoint
    def ping(self) -> str:
        return "here"

    @endpoint
    def costs(self) -> tuple[list[str], int]:
        """The threads of this process, and on how many ports it listens."""
        listening = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                own = socket.socket(fileno=os.dup(int(name)))
            except OSError:  # no socket, or the directory that was just listed
                continue
            with own:
                listening += own.family in (socket.AF_INET, socket.AF_INET6) and bool(
                    own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                )
        return sorted(thread.name for thread in threading.enumerate()), listening

    @endpoint
    def fail(self, value: int) -> None:
        kept = value + 1
        raise ValueError(f"no {kept}")

    @endpoint
    def sleep(self) -> None:
        time.sleep(600)

    @endpoint
    def in_thread(self, value: int) -> int:
        found: list[int] = []

        def work() -> None:
            inner = value
            breakpoint()
            found.append(inner)

        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join()
        return found[0]

    @endpoint
    def wait_at(self, other: Any, gate: Gate) -> int:
        return other.step.call_one(PickledUntilBrokenInto(gate)).get()

    @endpoint
    def wait_for(self, other: Any, timeout: float) -> int:
        return other.step.call_one(1).get(timeout=timeout)


class AsyncStepper(Actor):
    """The same in a loop."""

    @endpoint
    async def step(self, value: int) -> int:
        doubled = value * 2
        breakpoint()
        await asyncio.sleep(0)
        doubled += 1
        return doubled

    @concurrent_endpoint
    async def ping(self) -> str:
        return "here"


def await_no_pause() -> None:
    """Wait until no thread is paused.

    A rank tells its agent of the end of a pause, and answers its caller on another connection.
    """
    deadline = time.monotonic() + PATIENCE_S
    while found := waiting():
        assert time.monotonic() < deadline, found


@contextmanager
def news() -> Iterator[Callable[[int], WaitingRanks]]:
    """What waits until so many threads are paused, and returns what then waits."""
    came: queue.SimpleQueue[RankPaused] = queue.SimpleQueue()

    def heard(change: object) -> None:
        if isinstance(change, RankPaused):
            came.put(change)

    def until(count: int) -> WaitingRanks:
        while True:
            found = waiting()
            if sum(one.state == "paused" for one in found) >= count:
                return found
            came.get(timeout=PATIENCE_S)

    end = on_change(heard)
    try:
        yield until
    finally:
        end()
