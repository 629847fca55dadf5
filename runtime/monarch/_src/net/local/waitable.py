"""What threads wait for: done once, by any thread, which wakes who waits.

Runs in: every process, on any thread. How a thread waits, `net.local.leader` decides;
`UnmanagedWait` waits where there is no socket to receive from.
Invariants: who sleeps has registered first and looked at `done` after, and who finishes marks first
and wakes after; so nobody sleeps beside what is done.
"""

from __future__ import annotations

import threading
from typing import Protocol

from monarch._src.net.local.interrupt import guard_for_this_thread

_registering = threading.Lock()


class RuntimeEnded(RuntimeError):
    """What was waited for can never come: the runtime of this process has ended."""


class Leader(Protocol):
    """Waits on a socket for its thread; see `net.local.leader.ReceiveLeader`."""

    def wake_leader(self) -> None:
        """End that wait. Any thread."""
        ...


class Waitable:
    """Something that becomes done once, at which threads may wait through a Baton.

    `sleepers` are the locks of the threads that sleep until then, `leader` the baton of the one
    that waits on the socket until then.
    """

    __slots__ = ("done", "leader", "sleepers")

    def __init__(self) -> None:
        self.done = False
        self.leader: Leader | None = None
        self.sleepers: list[threading.Lock] | None = None

    def finish(self) -> None:
        """Mark as done and wake who waits. Any thread."""
        # Order matters: a sleeper, or a leader, registers first and looks at `done` after.
        self.done = True
        if self.leader is not None:
            self.leader.wake_leader()
        sleepers = self.sleepers
        if sleepers:
            for lock in list(sleepers):
                release(lock)

    def stir(self) -> None:
        """Have who waits look at what else it waits for. Any thread."""
        if self.leader is not None:
            self.leader.wake_leader()
        for lock in list(self.sleepers or ()):
            release(lock)

    def new_sleeper(self) -> threading.Lock:
        """A lock that is taken, and released when this is done. To be looked at `done` after.

        Called under a guard.
        """
        lock = threading.Lock()
        lock.acquire()
        with _registering:  # two first sleepers at once must not each make a list
            if self.sleepers is None:
                self.sleepers = []
            self.sleepers.append(lock)
        return lock

    def sleeps_no_more(self, lock: threading.Lock) -> None:
        """Nobody waits for that lock any more."""
        assert self.sleepers is not None
        self.sleepers.remove(lock)


class UnmanagedWait:
    """Lets threads wait where there is no runtime, for what some other thread brings about."""

    ended = ""

    def wait(self, what: Waitable, timeout_s: float | None = None, **_: object) -> bool:
        """Block this thread until `what` is done; False on time-out."""
        with guard_for_this_thread() as guard:
            lock = what.new_sleeper()
            try:
                if what.done:
                    return True
                if guard is not None:
                    guard.let_through()
                return lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
            finally:
                if guard is not None:
                    guard.open = False
                what.sleeps_no_more(lock)

    def receive_now(self) -> None:
        """There is nothing to receive."""


class Waiter(Protocol):
    """What ends a thread's sleep: a lock that it waits for, or an event loop. Any thread."""

    def release(self) -> None: ...


class SleepingLoop(Waiter, Protocol):
    """An event loop that has nothing to do.

    `turn` is done once a message has scheduled something in it; `fd` is readable while its own
    descriptors have something; `awaits` counts the answers that it waits for.
    """

    turn: Waitable
    fd: int
    awaits: int

    def found(self) -> None:
        """Its own descriptors have something. Finishes `turn`."""
        ...

    def sleep(self, timeout_s: float | None) -> None:
        """Block until they have, it is released, or the time is up."""
        ...


def release(sleeper: Waiter) -> None:
    """Wake it, which may be awake already."""
    try:
        sleeper.release()
    except RuntimeError:
        pass  # it was free already, a second wake-up; or the loop has ended
