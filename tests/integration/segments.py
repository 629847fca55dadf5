"""What a process has of segments, and an actor that takes, keeps and gives large things."""

from __future__ import annotations

import gc
import os
import re
import resource
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from monarch.actor import Actor, Port, endpoint
from monarch.observe import PayloadCounts
from monarch.observe import payload_counts as counts
from tests.integration.gates import Gate

MEBI = 1 << 20
PATIENCE_S = 60.0


def mappings() -> int:
    """How many segments of payloads this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("monarch-payload")


def descriptors() -> int:
    """How many it has open, of any kind."""
    return len(os.listdir("/proc/self/fd"))


def is_in_segment(array: Any) -> bool:
    """Whether an array's memory is that of a segment, and so was not copied out of it."""
    at = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= at < end:
            return "monarch-payload" in line
    return False


def numbers(size: int = MEBI, seed: int = 0) -> numpy.ndarray[Any, Any]:
    return numpy.arange(seed, seed + size // 8, dtype=numpy.int64)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + PATIENCE_S
    poller = select.poll()
    while not holds():
        assert time.monotonic() < deadline, what
        poller.poll(5)


def is_free_again() -> bool:
    """Whether nobody has anything of what this process sent, or got, any more."""
    gc.collect()
    return counts().segments == 0 and mappings() == 0


class Worker(Actor):
    """Takes, keeps, changes and gives large things."""

    def __init__(self, given: Any = None) -> None:
        self.given: Any = given
        self.kept: Any = None
        self.seen: list[Any] = []

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def fail(self, said: str) -> None:
        raise ValueError(said)

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def keep(self, value: Any) -> None:
        self.kept = value

    @endpoint
    def total(self) -> int:
        return int(self.kept.sum())

    @endpoint
    def given_total(self) -> int:
        return int(self.given.sum())

    @endpoint
    def drop(self) -> None:
        self.kept = self.given = None

    @endpoint
    def add(self, value: Any, number: int) -> tuple[bool, bool, int]:
        was_in_segment = is_in_segment(value)
        value += number
        return value.flags.writeable, was_in_segment, int(value[0])

    @endpoint
    def add_to_given(self, number: int) -> int:
        self.given += number
        return int(self.given[0])

    @endpoint
    def kinds(self, value: Any) -> list[str]:
        return [type(part).__name__ for part in value]

    @endpoint
    def see(self, value: Any) -> None:
        self.seen.append(value if isinstance(value, int) else int(value[0]))

    @endpoint
    def saw(self) -> list[int]:
        return self.seen

    @endpoint
    def wait_at(self, gate: Gate) -> None:
        gate.pass_through()

    @endpoint
    def send_to(self, other: Any, value: Any) -> None:
        other.see.broadcast(value)

    @endpoint
    def make(self, size: int, seed: int) -> Any:
        return numbers(size, seed)

    @endpoint
    def send_through(self, port: Port[Any], size: int) -> None:
        port.send(numbers(size))

    @endpoint
    def tight(self, spare: int) -> None:
        """From here on there is only so much room for further mappings."""
        text = Path("/proc/self/status").read_text()
        found = re.search(r"^VmSize:\s+(\d+) kB$", text, re.MULTILINE)
        assert found is not None
        limit = (int(found[1]) << 10) + spare
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))

    @endpoint
    def small_files(self, size: int) -> None:
        """From here on no file can be larger, and a segment is one."""
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    @endpoint
    def fork_with(self, value: Any) -> tuple[int, int]:
        """A fork that has the same array; it looks at it when it may, and says what it saw."""
        go_r, go_w = os.pipe()
        said_r, said_w = os.pipe()
        pid = os.fork()
        if not pid:
            os.read(go_r, 1)
            os.write(said_w, str(int(value.sum())).encode())
            os._exit(0)
        self.kept = (pid, go_w, said_r)
        return int(value.sum()), pid

    @endpoint
    def what_the_fork_sees(self) -> int:
        pid, go_w, said_r = self.kept
        os.write(go_w, b".")
        said = os.read(said_r, 100)
        os.waitpid(pid, 0)
        return int(said)

    @endpoint
    def counts(self) -> PayloadCounts:
        return counts()

    @endpoint
    def holds(self) -> tuple[int, int, int]:
        return counts().segments, mappings(), descriptors()
