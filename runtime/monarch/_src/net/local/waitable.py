"""Waitables: a thread finishes one once, and wakes the threads that wait for it.

Runs in: every process, on any thread. `net.local.leader` decides how a thread waits;
`UnmanagedWait` waits in a process without a runtime.
Invariants: a waiting thread registers its lock, then checks `done`; a finishing thread sets `done`,
then wakes. So no thread sleeps on a finished waitable.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Protocol

from monarch._src.net.local.interrupt import guard_for_this_thread

_registering = threading.Lock()


class RuntimeEnded(RuntimeError):
    """The wait can never end, because the runtime of this process has ended."""


class Leader(Protocol):
    """Waits on a socket for its thread; see `net.local.leader.ReceiveLeader`."""

    def wake_leader(self) -> None:
        """End that wait. Any thread."""
        ...


class Waitable:
    """An event that happens once; threads wait for it by a ReceiveLeader.

    `sleepers` are the locks of the threads that sleep until then. `leader` is set while a thread
    that waits for it leads.
    """

    __slots__ = ("done", "leader", "sleepers")

    def __init__(self) -> None:
        self.done = False
        self.leader: Leader | None = None
        self.sleepers: list[threading.Lock] | None = None

    def finish(self) -> None:
        """Mark as done and wake the waiting threads. Any thread."""
        # Order matters: a sleeper, or a leader, registers first and checks `done` after.
        self.done = True
        if self.leader is not None:
            self.leader.wake_leader()
        sleepers = self.sleepers
        if sleepers:
            for lock in list(sleepers):
                release(lock)

    def recheck(self) -> None:
        """Have the waiting threads check their other conditions. Any thread."""
        if self.leader is not None:
            self.leader.wake_leader()
        for lock in list(self.sleepers or ()):
            release(lock)

    def add_sleeper(self) -> threading.Lock:
        """A held lock that `finish` releases. Under a guard; check `done` afterwards."""
        lock = threading.Lock()
        lock.acquire()
        with _registering:  # two first sleepers at once must not each make a list
            if self.sleepers is None:
                self.sleepers = []
            self.sleepers.append(lock)
        return lock

    def remove_sleeper(self, lock: threading.Lock) -> None:
        """Remove a lock that no thread sleeps on any more."""
        assert self.sleepers is not None
        self.sleepers.remove(lock)


class UnmanagedWait:
    """Waits without receiving, for processes without a runtime: another thread must finish."""

    ended = ""

    def wait(self, what: Waitable, timeout_s: float | None = None, **_: object) -> bool:
        """Block this thread until `what` is done; False on time-out."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        with guard_for_this_thread() as guard:
            lock = what.add_sleeper()
            try:
                while not what.done:
                    left = None if deadline is None else deadline - monotonic()
                    if left is not None and left <= 0:
                        break
                    if guard is not None:
                        guard.let_through()
                        left = guard.block_s(left)
                    lock.acquire(timeout=-1 if left is None else left)
                    if guard is not None:
                        guard.open = False
                return what.done
            finally:
                if guard is not None:
                    guard.open = False
                what.remove_sleeper(lock)

    def receive_now(self) -> None:
        """Nothing to do: there is no socket."""


class Waiter(Protocol):
    """Ends the sleep of a thread: the lock that it sleeps on, or its event loop. Any thread."""

    def release(self) -> None: ...


class SleepingLoop(Waiter, Protocol):
    """An idle event loop.

    `turn` is done once a message has scheduled a callback; `fd` is readable while one of the
    loop's own descriptors is ready; `awaits` counts the answers that it awaits.
    """

    turn: Waitable
    fd: int
    awaits: int

    def found(self) -> None:
        """Finish `turn`, because one of the loop's descriptors is ready."""
        ...

    def sleep(self, timeout_s: float | None) -> None:
        """Block until a descriptor is ready, the loop is released, or the time is up."""
        ...


def release(sleeper: Waiter) -> None:
    """Wake a sleeper that may be awake already."""
    try:
        sleeper.release()
    except RuntimeError:
        pass  # the lock was released before, or the loop has ended
