"""Effects of an import on its process: variables that it reads, and state that it leaves behind.

Runs in: a zygote that imports modules for procs to come. Linux only.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import msgspec

from monarch._src.system.process_table import children

_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_OF_THE_C_LIBRARY = 1 << 31 | 1 << 32  # signals 32 and 33, which it handles once there are threads


@contextmanager
def variables_read() -> Generator[set[str]]:
    """Collect the names of all variables that Python code reads in the block, set or not."""
    names: set[str] = set()
    plain = type(os.environ)

    class Noting(plain):
        def __getitem__(self, key: str) -> str:
            names.add(key)
            return super().__getitem__(key)

    os.environ.__class__ = Noting
    try:
        yield names
    finally:
        os.environ.__class__ = plain


class ProcessState(msgspec.Struct, frozen=True):
    """State that a fork cannot carry over, or would share with its parent, at one moment."""

    handlers: list[object]
    caught: tuple[int, int]  # sets of signals, as bits: with a handler, ignored
    descriptors: dict[int, tuple[int, int]]  # and the device and inode of each
    processes: set[int]

    @classmethod
    def now(cls) -> ProcessState:
        """The state of this process."""
        return cls(
            [signal.getsignal(number) for number in signal.valid_signals()],
            _caught(), _descriptors(), children(),
        )  # fmt: skip

    def what_was_left(self) -> str:
        """State that was added since, in words; empty if this process can still fork safely.

        Forks once. Libraries that end their threads before a fork (OpenBLAS) have none after it.
        """
        after = ProcessState.now()
        if after.handlers != self.handlers or after.caught != self.caught:
            return "it changes how signals are handled"
        added = (fd for fd, _ in after.descriptors.items() - self.descriptors.items())
        kinds = sorted(kind for kind in map(_kind, added) if kind)
        if kinds:
            return f"it leaves open: {', '.join(kinds)}"
        if after.processes - self.processes:
            return "it starts a process"
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        if len(os.listdir("/proc/self/task")) > 1 or threading.active_count() > 1:
            return "it starts a thread"
        return ""


def _descriptors() -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that has listed the others
            status = os.fstat(int(name))
            found[int(name)] = status.st_dev, status.st_ino
    return found


def _kind(fd: int) -> str:
    """The target of that descriptor; empty if a fork may share it."""
    mode, target = os.fstat(fd).st_mode, os.readlink(f"/proc/self/fd/{fd}")
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or target in _HARMLESS_DEVICES:
        return ""
    return "a socket" if stat.S_ISSOCK(mode) else target


def _caught() -> tuple[int, int]:
    found: dict[str, int] = {}
    with open("/proc/self/status") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key in ("SigCgt", "SigIgn"):
                found[key] = int(value, 16) & ~_OF_THE_C_LIBRARY
    return found["SigCgt"], found["SigIgn"]
