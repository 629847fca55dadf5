"""Who waits on the socket: leader and followers, with a standing thread of last resort.

Handing a message from a receiving thread to the thread that wants it costs more than the message:
two such hand-overs turn a round trip of 66 us into 160. So whoever waits for something receives.
The *baton* is the right to receive and to handle what was received; it is a plain lock.

- A thread that waits (a `.get()`, an idle sync actor) takes the baton if it is free and *leads*:
  handles every message that comes, whoever it is for, until its own wait is over.
- If the baton is taken it *follows*: sleeps until the leader has done its thing or leaves, and
  leads if it still must wait.
- A *patient* wait is that of an idle actor, which may last for ever. It leads if the baton is free
  when it begins; once it has received for somebody else it gives the baton up, so that whoever is
  busy receives without a hand-over, and sleeps until something comes for it.
- A *brisk* wait is that for a single answer, with no other call open. Between falling asleep and
  being woken lies a third of a round trip, so such a wait first asks the socket again and again
  for `BRISK_S`. Where that is in vain (the endpoint computes, the machine is full) it is tried ever
  more rarely, so that long calls pay nothing for it.
- The IO thread leads when nobody waits. It does not compete: threads that come and go leave the
  baton free for some microseconds each time, and an IO thread that jumped in would make every call
  a hand-over. It looks once a `TICK`; only if no turn was begun since the last look, and nobody
  leads, does it take the baton. While one leader blocks on and on it sleeps without a timer.
  So a message that nobody waits for is handled at once when the process is quiet, and after two
  ticks at most when it is busy.

Handlers therefore run one at a time, on changing threads, and may not block. Prior art: the
leader/followers pattern (Schmidt et al., 2000).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch._src.errors import BlockedLoopError
from monarch._src.net.interrupt import InterruptGuard, guard_for_this_thread

if TYPE_CHECKING:
    from monarch._src.net.router import Router

log = logging.getLogger("monarch.net")
TICK = 0.005
BRISK_S = 150e-6
RAREST = 6  # of 2**6 brisk waits one asks, when all before were in vain
LONGEST_S = 2e6
FRAMES_NEEDED = 120
LEAVE_S = 1.0  # how long a leader may take to leave; it handles one batch of messages at most
_registering = threading.Lock()


class Waitable:
    """Something that becomes done once, at which threads may wait through a Baton.

    `sleepers` are the locks of the threads that sleep until then, `leader` the baton of the one
    that waits on the socket until then; only a Baton touches them.
    """

    __slots__ = ("done", "leader", "sleepers")

    def __init__(self) -> None:
        self.done = False
        self.leader: Baton | None = None
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
                _release(lock)


class Baton:
    """Decides which thread waits on one router. `drain` handles all that can be read now."""

    def __init__(self, router: Router, drain: Callable[[], None], name: str) -> None:
        self._router = router
        self._drain = drain
        self._lead = threading.Lock()
        self._followers: deque[threading.Lock] = deque()  # those who would lead
        self._patients: deque[threading.Lock] = deque()  # idle actors, who would lead too
        self._asleep: set[threading.Lock] = set()  # all who sleep
        self._served = 0  # how often somebody was woken by another's receiving
        self._poller = router.poller()
        self._watched: dict[int, Callable[[], None]] = {}
        self._turns = 0
        self._in_vain = 0 if usable_cpus() > 1 else None  # how often in a row; None: never ask
        self._sit_out = 0
        self._io_leads = False
        self._io_sleeps = False
        self._wanted = False
        self._urged = False
        self._closed = False
        self._io_lock = threading.Lock()
        self._io_lock.acquire()
        self._leader_thread = 0
        # Seconds after which to call `drain` again though nothing has come; None: no need to.
        self.look_again_s: float | None = None
        self._thread = threading.Thread(target=self._io, name=f"monarch-io-{name}", daemon=True)

    def start(self) -> None:
        """Start the IO thread."""
        self._thread.start()

    def watch(self, fd: int, readable: Callable[[], None]) -> None:
        """Call `readable` whenever that descriptor is; it must unwatch or read it empty."""
        self._watched[fd] = readable
        self._poller.register(fd)
        self._router.wake()

    def unwatch(self, fd: int) -> None:
        """Stop watching; unknown descriptors are no error."""
        if self._watched.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def wait(
        self,
        what: Waitable,
        timeout_s: float | None = None,
        *,
        patient: bool = False,
        brisk: bool = False,
    ) -> bool:
        """Block this thread until `what` is done, receiving meanwhile; False on time-out.

        A time-out or a KeyboardInterrupt consumes nothing.

        Raises:
            BlockedLoopError: called from a message handler, which must not block.
        """
        if what.done:
            return True
        if self._leader_thread == threading.get_ident():
            raise BlockedLoopError(
                "a blocking wait on the thread that handles messages would never end; "
                "await the future instead, or wait on a thread of your own"
            )
        # What the system can't count to (24 days, by `poll`) is for ever.
        bounded = timeout_s is not None and timeout_s < LONGEST_S
        deadline = time.monotonic() + timeout_s if bounded and timeout_s is not None else None
        with guard_for_this_thread() as guard:
            # A handler that runs out of stack would lose its message: let others receive.
            gave_up = not _room_on_the_stack()
            while not what.done and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                if not gave_up and self._lead.acquire(False):
                    try:
                        gave_up = self._lead_until(what, deadline, guard, patient, brisk)
                    finally:
                        self._pass_on()
                else:
                    queue = self._patients if patient else self._followers
                    self._follow(what, left, guard, None if gave_up else queue)
        return what.done

    def receive_now(self) -> None:
        """Let the IO thread lead at once if nobody does: somebody awaits without blocking."""
        if not self._lead.locked():
            self._urged = True
            _release(self._io_lock)

    def wake_leader(self) -> None:
        """What the leader waits for was done by a thread that does not receive: have it look."""
        if self._leader_thread != threading.get_ident():
            self._router.wake()

    def close(self) -> None:
        """End the IO thread. Idempotent; waits of other threads return False.

        When it returns nobody is on the socket any more, and it can be closed.
        """
        first, self._closed = not self._closed, True
        self._router.wake()
        _release(self._io_lock)
        for lock in list(self._asleep):
            _release(lock)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        if first and self._leader_thread != threading.get_ident():
            self._lead.acquire(timeout=LEAVE_S)  # and never given back

    # --- leading ------------------------------------------------------------------------------

    def _lead_until(
        self,
        what: Waitable,
        deadline: float | None,
        guard: InterruptGuard | None,
        patient: bool,
        brisk: bool,
    ) -> bool:
        """Receive until `what` is done; True if it is not, and the baton is given up for others."""
        self._turns += 1
        what.leader = self
        try:
            return self._receive_until(what, deadline, guard, patient, brisk)
        finally:
            what.leader = None

    def _receive_until(
        self,
        what: Waitable,
        deadline: float | None,
        guard: InterruptGuard | None,
        patient: bool,
        brisk: bool,
    ) -> bool:
        served = self._served
        me = threading.get_ident()
        while True:
            self._leader_thread = me
            try:
                self._drain()
            finally:
                self._leader_thread = 0
            if what.done or self._closed:
                return False
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if patient and self._served != served:
                return True
            if brisk and self._comes_at_once():
                continue
            soon = self.look_again_s
            if soon is not None and (left is None or soon < left):
                left = soon
            for fd, _ in self._router.wait(self._poller, left, guard):
                self._fire(fd)

    def _comes_at_once(self) -> bool:
        """Ask the socket for a little while whether something has come."""
        if self._in_vain is None:
            return False
        if self._sit_out:
            self._sit_out -= 1
            return False
        readable, clock = self._router.readable, time.perf_counter
        until = clock() + BRISK_S
        while clock() < until:
            if readable():
                self._in_vain = 0
                return True
        self._in_vain = min(self._in_vain + 1, RAREST)
        self._sit_out = (1 << self._in_vain) - 1
        return False

    def _fire(self, fd: int) -> None:
        readable = self._watched.get(fd)
        if readable is None:
            return
        self._leader_thread = threading.get_ident()
        try:
            readable()
        except Exception:
            log.exception("a watcher of descriptor %d raised", fd)
            self.unwatch(fd)
        finally:
            self._leader_thread = 0

    def _pass_on(self, *, for_good: bool = False) -> None:
        self._lead.release()
        self._offer(for_good=for_good)

    def _offer(self, *, for_good: bool = False) -> None:
        """The baton is free: wake somebody who will look after the socket.

        A thread that leaves is likely to be back in no time, and idle actors are not woken for
        that; the IO thread leaves `for_good`.
        """
        followers = self._followers or (self._patients if for_good else None)
        if followers:
            try:
                _release(followers[0])
            except IndexError:
                pass
        elif self._io_sleeps:
            self._io_sleeps = False
            _release(self._io_lock)

    def _follow(
        self,
        what: Waitable,
        left: float | None,
        guard: InterruptGuard | None,
        queue: deque[threading.Lock] | None,
    ) -> None:
        """Sleep until `what` is done or the baton may be had; no `queue`: it is not wanted."""
        lock = threading.Lock()
        lock.acquire()
        with _registering:  # two first sleepers at once must not each make a list
            if what.sleepers is None:
                what.sleepers = []
            sleepers = what.sleepers
            sleepers.append(lock)
        self._asleep.add(lock)
        if queue is not None:
            queue.append(lock)
        self._wanted = self._io_leads
        try:
            # Looked at again after registering: whoever finishes or leaves now sees the lock.
            if what.done or self._closed or not (queue is None or self._lead.locked()):
                return
            if guard is not None:
                guard.let_through()
            lock.acquire(timeout=-1 if left is None else left)
            if guard is not None:
                guard.open = False
        finally:
            if guard is not None:
                guard.open = False
            sleepers.remove(lock)
            self._asleep.discard(lock)
            if queue is not None:
                queue.remove(lock)
            if what.done:
                self._served += 1
            # The wake-up may have been the baton, offered to us alone, and we may not need it.
            if not self._lead.locked():
                self._offer()

    # --- the IO thread ------------------------------------------------------------------------

    def _io(self) -> None:
        seen = -1
        while not self._closed:
            if (seen == self._turns or self._urged) and self._lead.acquire(False):
                self._urged = False
                self._io_lead()
            seen = self._turns
            if self._lead.locked() and not self._followers:
                # Somebody leads: sleep until the leader leaves, unless it left just now.
                self._io_lock.acquire(timeout=TICK)
                if seen == self._turns and self._lead.locked():
                    self._io_sleeps = True
                    if seen == self._turns and self._lead.locked() and not self._closed:
                        self._io_lock.acquire()
                    self._io_sleeps = False
            else:
                self._io_lock.acquire(timeout=TICK)

    def _io_lead(self) -> None:
        self._io_leads = True
        try:
            while not self._closed and not self._wanted:
                self._leader_thread = self._thread.ident or 0
                try:
                    self._drain()
                finally:
                    self._leader_thread = 0
                if self._wanted or self._closed:
                    break
                for fd, _ in self._router.wait(self._poller, self.look_again_s):
                    self._fire(fd)
        except Exception:
            log.exception("the IO thread failed while handling messages")
        finally:
            self._io_leads = False
            self._wanted = False
            self._pass_on(for_good=True)


def usable_cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _room_on_the_stack() -> bool:
    """Whether this thread has room for what handles messages: asked in 0.2 us."""
    try:
        sys._getframe(sys.getrecursionlimit() - FRAMES_NEEDED)  # pyright: ignore[reportPrivateUsage]
    except ValueError:
        return True  # there are not so many frames
    return False


def _release(lock: threading.Lock) -> None:
    try:
        lock.release()
    except RuntimeError:
        pass  # it was free already: a second wake-up
