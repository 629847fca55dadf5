"""The choice of the receiving thread: leader and followers, with an IO thread as a fallback.

Handing a message from a receiving thread to the thread that waits for it costs more than the
message: two such hand-overs turn a round trip of 66 us into 160. So a thread that waits receives
the messages itself. The *lead* is the right to receive and to handle messages; it is a plain lock.

- A thread that waits (in `.get()`, or in an idle sync actor) takes the lead if it is free. It then
  handles every message that arrives, for any thread, until its own wait is over.
- If the lead is taken, the thread *follows*: it sleeps until the leader has received its answer, or
  leaves. If it must still wait, it then leads.
- An *idle* wait is that of an actor without work; it may never end. It takes the lead if that is
  free when it begins. Once it has received a message for another thread it gives the lead up, so
  that busy threads receive without a hand-over, and sleeps until a message for its actor arrives.
- An idle event loop leads too, and waits for its own descriptors at the same time
  (`wait_with_loop`); its wait is idle unless it awaits an answer. Instead of following on a lock it
  sleeps as any loop does, and is woken as a follower is.
- The IO thread leads when no thread waits. It does not compete: threads that come and go leave the
  lead free for some microseconds each time, and an IO thread that took it then would make every
  call a hand-over. It checks once a `TICK`, and takes the lead only if that is free and no thread
  has led since the last check. While one leader blocks for long it sleeps without a timer. So a
  message that no thread waits for is handled at once when the process is quiet, and after two ticks
  at most when it is busy.

Handlers therefore run one at a time, on changing threads, and may not block. Prior art: the
leader/followers pattern (Schmidt et al., 2000).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING

from monarch._src.errors import BlockedLoopError
from monarch._src.net.local.interrupt import Guard, guard_for_this_thread
from monarch._src.net.local.spin import Spin
from monarch._src.net.local.waitable import SleepingLoop, Waitable, Waiter, release

if TYPE_CHECKING:
    from monarch._src.net.local.router import Router

log = logging.getLogger("monarch.net")
TICK, SLOWEST_TICK = 0.005, 0.02
LONGEST_S = 2e6
FRAMES_NEEDED = 120
LEAVE_S = 1.0  # for a leader to leave; it handles at most one more batch of messages


SHUT_DOWN = "the runtime was shut down before the answer came"
FORKED = (
    "this process is a fork of the one that has the mesh, and cannot call it; spawn meshes of its "
    "own here, or start it by another way than fork"
)


class ReceiveLeader:
    """Decides which thread waits on one router.

    `drain` handles all that can be read now.
    """

    def __init__(
        self,
        router: Router,
        drain: Callable[[], None],
    ) -> None:
        self._router = router
        self._drain = drain
        self._lead = threading.Lock()
        self._followers: deque[Waiter] = deque()  # busy threads that would take the lead
        self._idle_followers: deque[Waiter] = deque()  # idle actors that would take it too
        self._sleeping: set[Waiter] = set()  # all threads and loops that sleep
        self._wakeups = 0  # how often a thread was woken because another received its message
        self._watched: dict[int, Callable[[], None]] = {}
        self._turn_count = 0
        self._io_leads = False
        self._io_sleeps = False
        self._lead_is_wanted = False
        self._io_is_wanted = False
        self._closed = False
        self.ended = ""  # why waits return False for good
        self._io_lock = threading.Lock()
        self._io_lock.acquire()
        self._leader_thread = 0
        # Seconds after which to call `drain` again without a message; None: no need to.
        self.drain_again_s: float | None = None
        # The same, lasting: `drain` does work of links that depends on the time.
        self.drain_interval_s: float | None = None
        self._thread: threading.Thread | None = None
        # How busy threads and idle actors poll before they sleep.
        self._spin, self._idle_spin = Spin(), Spin(gives_up=True)

    def start(self, name: str, first_check_s: float | None = None) -> None:
        """Start the IO thread of the node of that name.

        `first_check_s`: the seconds until its first check for another leader; None: two ticks.
        """
        wait_s = 2 * TICK if first_check_s is None else first_check_s
        self._thread = threading.Thread(
            target=self._run_io, args=(wait_s,), name=f"monarch-io-{name}", daemon=True
        )
        self._thread.start()

    def spin(self, limit_s: float) -> None:
        """Poll for at most that time before sleeping, where that pays; see `net.local.spin`."""
        self._spin.limit_s = self._idle_spin.limit_s = limit_s

    def watch(self, fd: int, readable: Callable[[], None]) -> None:
        """Call `readable` whenever that descriptor is readable; it must empty or unwatch it."""
        self._watched[fd] = readable
        self._router.watch(fd)

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor; an unknown one is no error."""
        if self._watched.pop(fd, None) is not None:
            self._router.unwatch(fd)

    def wait(
        self,
        what: Waitable,
        timeout_s: float | None = None,
        *,
        idle: bool = False,
        unless: Waitable | None = None,
    ) -> bool:
        """Block this thread until `what` is done, receiving meanwhile; False on time-out.

        Also returns False as soon as `unless` is done; the thread that finishes `unless` must call
        `what.recheck()`. A time-out or a KeyboardInterrupt consumes no message.

        Raises:
            BlockedLoopError: called from a message handler, which must not block.
        """
        if what.done:
            return True
        if self._leader_thread == get_ident():
            raise BlockedLoopError(
                "a blocking wait on the thread that handles messages would never end; "
                "await the future instead, or wait on a thread of your own"
            )
        deadline = None if timeout_s is None else _deadline(timeout_s)
        with guard_for_this_thread() as guard:
            # A handler that runs out of stack would lose its message, so a deep thread leaves the
            # lead to others. The stack of an idle actor is empty.
            declines = not idle and not _room_on_the_stack()
            while not what.done and not self._closed and (unless is None or not unless.done):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                if not declines and self._lead.acquire(False):
                    try:
                        declines = self._lead_until(what, deadline, guard, idle, unless)
                    finally:
                        self._release_lead()
                else:
                    queue = self._idle_followers if idle else self._followers
                    self._follow(what, left, guard, None if declines else queue, unless)
        return what.done

    def wait_with_loop(self, loop: SleepingLoop, timeout_s: float | None) -> None:
        """Let an event loop sleep until it has work or the time is up; may return early.

        Its thread receives meanwhile unless another thread leads. A KeyboardInterrupt consumes no
        message.
        """
        deadline = None if timeout_s is None else _deadline(timeout_s)
        turn, idle = loop.turn, not loop.awaits
        with guard_for_this_thread() as guard:
            declines = not _room_on_the_stack()
            if not declines and not self._closed and self._lead.acquire(False):
                try:
                    self.watch(loop.fd, loop.found)
                    declines = self._lead_until(turn, deadline, guard, idle, None)
                finally:
                    self.unwatch(loop.fd)
                    self._release_lead()
                if not declines:
                    return
                timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            queue = self._idle_followers if idle else self._followers
            self._sleep_with_loop(loop, timeout_s, guard, None if declines else queue)

    def receive_now(self) -> None:
        """Have the IO thread lead at once if no thread does: a caller awaits without blocking."""
        if not self._lead.locked():
            self._io_is_wanted = True
            release(self._io_lock)

    def handles(self) -> bool:
        """Whether this thread is handling a message."""
        return self._leader_thread == get_ident()

    def wake_leader(self) -> None:
        """Have the leader check its waitable, which another thread has finished."""
        if self._leader_thread != get_ident():
            self._router.wake()

    def wake_all(self) -> None:
        """Have every waiting thread check whether it must still wait. Any thread."""
        self._router.wake()
        for lock in list(self._sleeping):
            release(lock)

    def close(self) -> None:
        """End the IO thread, and all waits, which return False. Idempotent.

        On return no thread uses the router any more, so it can be closed.
        """
        first, self._closed = not self._closed, True
        self.ended = self.ended or SHUT_DOWN
        self._router.wake()
        release(self._io_lock)
        for lock in list(self._sleeping):
            release(lock)
        thread = self._thread
        if thread is not None and thread.is_alive() and thread.ident != get_ident():
            thread.join()
        if first and self._leader_thread != get_ident():
            self._lead.acquire(timeout=LEAVE_S)  # never released

    def forked(self) -> None:
        """In a fork, which cannot receive: have every wait return False."""
        self._closed, self.ended = True, FORKED
        self._thread = None  # it runs in the parent only

    # --- leading ------------------------------------------------------------------------------

    def _lead_until(
        self,
        what: Waitable,
        deadline: float | None,
        guard: Guard | None,
        idle: bool,
        unless: Waitable | None,
    ) -> bool:
        """Receive until `what` is done; True if an idle wait gives the lead up before that."""
        self._turn_count += 1
        what.leader = self
        wakeups = self._wakeups
        spin = self._idle_spin if idle else self._spin
        me = get_ident()
        # No need to drain first if the wait may block: a pending message ends it at once. Links to
        # other hosts have work that no descriptor shows.
        drains = self.drain_interval_s is not None or (
            deadline is not None and deadline <= time.monotonic()
        )
        try:
            while True:
                if drains:
                    self._leader_thread = me
                    try:
                        self._drain()
                    finally:
                        self._leader_thread = 0
                drains = True
                if what.done or self._closed or (unless is not None and unless.done):
                    return False
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if idle and self._wakeups != wakeups:
                    return True
                soon = self.drain_again_s or self.drain_interval_s
                if soon is not None and (left is None or soon < left):
                    left = soon
                for fd, _ in self._router.wait(left, guard, spin):
                    self._fire(fd)
        finally:
            what.leader = None

    def _fire(self, fd: int) -> None:
        readable = self._watched.get(fd)
        if readable is None:
            return
        self._leader_thread = get_ident()
        try:
            readable()
        except Exception:
            log.exception("a watcher of descriptor %d raised", fd)
            self.unwatch(fd)
        finally:
            self._leader_thread = 0

    def _release_lead(self) -> None:
        self._lead.release()
        if self._followers or self._io_sleeps:
            self._offer()

    def _offer(self, *, for_good: bool = False) -> None:
        """Wake a thread that will take the free lead.

        A busy thread that leaves is likely to be back soon, so idle actors sleep on; the IO thread
        leaves `for_good`.
        """
        followers = self._followers or (self._idle_followers if for_good else None)
        if followers:
            try:
                release(followers[0])
            except IndexError:
                pass
        elif self._io_sleeps:
            self._io_sleeps = False
            release(self._io_lock)

    def _follow(
        self,
        what: Waitable,
        left: float | None,
        guard: Guard | None,
        queue: deque[Waiter] | None,
        unless: Waitable | None,
    ) -> None:
        """Sleep until `what` is done or the lead may be free; no `queue`: never take the lead."""
        lock = what.add_sleeper()
        self._sleeping.add(lock)
        if queue is not None:
            queue.append(lock)
        self._lead_is_wanted = self._io_leads
        try:
            # Check again after registering: a thread that finishes or leaves now sees the lock.
            if what.done or self._closed or not (queue is None or self._lead.locked()):
                return
            if unless is not None and unless.done:
                return
            if guard is not None:
                guard.let_through()
                left = guard.block_s(left)
            lock.acquire(timeout=-1 if left is None else left)
            if guard is not None:
                guard.open = False
        finally:
            if guard is not None:
                guard.open = False
            what.remove_sleeper(lock)
            self._sleeping.discard(lock)
            if queue is not None:
                queue.remove(lock)
            if what.done:
                self._wakeups += 1
            # The wake-up may have offered the lead to this thread only, which no longer needs it.
            if not self._lead.locked():
                self._offer()

    def _sleep_with_loop(
        self,
        loop: SleepingLoop,
        left: float | None,
        guard: Guard | None,
        queue: deque[Waiter] | None,
    ) -> None:
        """Sleep as any loop does, or until the lead may be free; no `queue`: never lead."""
        if self._closed:
            queue = None
        self._sleeping.add(loop)
        if queue is not None:
            queue.append(loop)
            self._lead_is_wanted = self._io_leads
        try:
            # Check again after registering: a thread that leaves now sees the loop.
            if queue is not None and not self._lead.locked():
                return
            if guard is not None:
                guard.let_through()
                left = guard.block_s(left)
            loop.sleep(left)
        finally:
            if guard is not None:
                guard.open = False
            self._sleeping.discard(loop)
            if queue is not None:
                queue.remove(loop)
            if loop.turn.done:
                self._wakeups += 1
            # The wake-up may have offered the lead to this loop only, which no longer needs it.
            if not self._lead.locked():
                self._offer()

    # --- the IO thread ------------------------------------------------------------------------

    def _run_io(self, first_check_s: float) -> None:
        seen, tick = self._turn_count, TICK
        self._io_lock.acquire(timeout=first_check_s)
        while not self._closed:
            if (seen == self._turn_count or self._io_is_wanted) and self._lead.acquire(False):
                self._io_is_wanted = False
                self._io_lead()
                tick = TICK
            elif seen == self._turn_count or self._sleeping:
                tick = TICK
            else:  # leaders come and go, and no thread sleeps
                tick = min(2 * tick, SLOWEST_TICK)
            seen = self._turn_count
            if self._lead.locked() and not self._followers:
                # Sleep until the leader leaves, unless it left just now.
                self._io_lock.acquire(timeout=tick)
                if seen == self._turn_count and self._lead.locked():
                    self._io_sleeps = True
                    if seen == self._turn_count and self._lead.locked() and not self._closed:
                        self._io_lock.acquire()
                    self._io_sleeps = False
            else:
                self._io_lock.acquire(timeout=tick)

    def _io_lead(self) -> None:
        self._io_leads = True
        try:
            while not self._closed and not self._lead_is_wanted:
                self._leader_thread = get_ident()
                try:
                    self._drain()
                finally:
                    self._leader_thread = 0
                if self._lead_is_wanted or self._closed:
                    break
                for fd, _ in self._router.wait(self.drain_again_s or self.drain_interval_s):
                    self._fire(fd)
        except Exception:
            log.exception("the IO thread failed while handling messages")
        finally:
            self._io_leads = False
            self._lead_is_wanted = False
            self._lead.release()
            self._offer(for_good=True)


def _deadline(timeout_s: float) -> float | None:
    # The system cannot count further (24 days, by `poll`): such a wait has no deadline.
    return time.monotonic() + timeout_s if timeout_s < LONGEST_S else None


def _room_on_the_stack() -> bool:
    """Whether the stack of this thread has room for a message handler; takes 0.2 us."""
    try:
        sys._getframe(sys.getrecursionlimit() - FRAMES_NEEDED)  # pyright: ignore[reportPrivateUsage]
    except ValueError:
        return True  # the stack has fewer frames
    return False
