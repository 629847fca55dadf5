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
- An event loop that has nothing to do leads too, and waits for its own descriptors at the same
  time (`wait_beside`): patiently, unless it awaits an answer. It does not follow on a lock, but
  sleeps as any loop does, and is woken as a follower is.
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
LEAVE_S = 1.0  # how long a leader may take to leave; it handles one batch of messages at most


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
        self._followers: deque[Waiter] = deque()  # those who would lead
        self._patients: deque[Waiter] = deque()  # idle actors, who would lead too
        self._asleep: set[Waiter] = set()  # all who sleep
        self._served = 0  # how often somebody was woken by another's receiving
        self._watched: dict[int, Callable[[], None]] = {}
        self._turns = 0
        self._io_leads = False
        self._io_sleeps = False
        self._wanted = False
        self._urged = False
        self._closed = False
        self.ended = ""  # why nothing can be waited for any more
        self._io_lock = threading.Lock()
        self._io_lock.acquire()
        self._leader_thread = 0
        # Seconds after which to call `drain` again though nothing has come; None: no need to.
        self.look_again_s: float | None = None
        # As that, but for ever: something of this process looks at the time when it is called.
        self.look_often_s: float | None = None
        self._thread: threading.Thread | None = None
        # How who waits for something looks before it sleeps, and how an idle actor does.
        self._spin, self._idle_spin = Spin(), Spin(gives_up=True)

    def start(self, name: str, first_look_s: float | None = None) -> None:
        """Start the IO thread, that of the node of that name.

        `first_look_s`: the seconds after which it first checks whether another thread leads; None:
        two ticks.
        """
        wait_s = 2 * TICK if first_look_s is None else first_look_s
        self._thread = threading.Thread(
            target=self._io, args=(wait_s,), name=f"monarch-io-{name}", daemon=True
        )
        self._thread.start()

    def spin(self, limit_s: float) -> None:
        """Look for so long before sleeping, where that pays."""
        self._spin.limit_s = self._idle_spin.limit_s = limit_s

    def watch(self, fd: int, readable: Callable[[], None]) -> None:
        """Call `readable` whenever that descriptor is; it must unwatch or read it empty."""
        self._watched[fd] = readable
        self._router.watch(fd)

    def unwatch(self, fd: int) -> None:
        """Stop watching; unknown descriptors are no error."""
        if self._watched.pop(fd, None) is not None:
            self._router.unwatch(fd)

    def wait(
        self,
        what: Waitable,
        timeout_s: float | None = None,
        *,
        patient: bool = False,
        unless: Waitable | None = None,
    ) -> bool:
        """Block this thread until `what` is done, receiving meanwhile; False on time-out.

        False too as soon as `unless` is done; whoever makes it so has to `stir` what is waited for.
        A time-out or a KeyboardInterrupt consumes nothing.

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
            # A handler that runs out of stack would lose its message: let others receive. Who is
            # patient has nothing else to do, and so nothing on its stack.
            gave_up = not patient and not _room_on_the_stack()
            while not what.done and not self._closed and (unless is None or not unless.done):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                if not gave_up and self._lead.acquire(False):
                    try:
                        gave_up = self._lead_until(what, deadline, guard, patient, unless)
                    finally:
                        self._pass_on()
                else:
                    queue = self._patients if patient else self._followers
                    self._follow(what, left, guard, None if gave_up else queue, unless)
        return what.done

    def wait_beside(self, loop: SleepingLoop, timeout_s: float | None) -> None:
        """Let an event loop sleep: until it has something to do, the time is up, or for no reason.

        Its thread receives meanwhile if nobody else does. A KeyboardInterrupt consumes nothing.
        """
        deadline = None if timeout_s is None else _deadline(timeout_s)
        turn, patient = loop.turn, not loop.awaits
        with guard_for_this_thread() as guard:
            gave_up = not _room_on_the_stack()
            if not gave_up and not self._closed and self._lead.acquire(False):
                try:
                    self.watch(loop.fd, loop.found)
                    gave_up = self._lead_until(turn, deadline, guard, patient, None)
                finally:
                    self.unwatch(loop.fd)
                    self._pass_on()
                if not gave_up:
                    return
                timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            queue = self._patients if patient else self._followers
            self._sleep_beside(loop, timeout_s, guard, None if gave_up else queue)

    def receive_now(self) -> None:
        """Let the IO thread lead at once if nobody does: somebody awaits without blocking."""
        if not self._lead.locked():
            self._urged = True
            release(self._io_lock)

    def handles(self) -> bool:
        """Whether this thread handles a message now."""
        return self._leader_thread == get_ident()

    def wake_leader(self) -> None:
        """What the leader waits for was done by a thread that does not receive: have it look."""
        if self._leader_thread != get_ident():
            self._router.wake()

    def nudge(self) -> None:
        """Have every thread that waits look whether it still should. Any thread."""
        self._router.wake()
        for lock in list(self._asleep):
            release(lock)

    def close(self) -> None:
        """End the IO thread. Idempotent; waits of other threads return False.

        When it returns nobody is on the socket any more, and it can be closed.
        """
        first, self._closed = not self._closed, True
        self.ended = self.ended or SHUT_DOWN
        self._router.wake()
        release(self._io_lock)
        for lock in list(self._asleep):
            release(lock)
        thread = self._thread
        if thread is not None and thread.is_alive() and thread.ident != get_ident():
            thread.join()
        if first and self._leader_thread != get_ident():
            self._lead.acquire(timeout=LEAVE_S)  # and never given back

    def forked(self) -> None:
        """This is a fork, in which nothing can be received: every wait returns False."""
        self._closed, self.ended = True, FORKED
        self._thread = None  # it is its parent's

    # --- leading ------------------------------------------------------------------------------

    def _lead_until(
        self,
        what: Waitable,
        deadline: float | None,
        guard: Guard | None,
        patient: bool,
        unless: Waitable | None,
    ) -> bool:
        """Receive until `what` is done; True if it is not, and the baton is given up for others."""
        self._turns += 1
        what.leader = self
        served = self._served
        spin = self._idle_spin if patient else self._spin
        me = get_ident()
        # Who has time need not look first: what has come ends the wait at once. Links to other
        # hosts have things to do that no descriptor tells of.
        looks = self.look_often_s is not None or (
            deadline is not None and deadline <= time.monotonic()
        )
        try:
            while True:
                if looks:
                    self._leader_thread = me
                    try:
                        self._drain()
                    finally:
                        self._leader_thread = 0
                looks = True
                if what.done or self._closed or (unless is not None and unless.done):
                    return False
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if patient and self._served != served:
                    return True
                soon = self.look_again_s or self.look_often_s
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

    def _pass_on(self) -> None:
        self._lead.release()
        if self._followers or self._io_sleeps:
            self._offer()

    def _offer(self, *, for_good: bool = False) -> None:
        """The baton is free: wake somebody who will look after the socket.

        A thread that leaves is likely to be back in no time, and idle actors are not woken for
        that; the IO thread leaves `for_good`.
        """
        followers = self._followers or (self._patients if for_good else None)
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
        """Sleep until `what` is done or the baton may be had; no `queue`: it is not wanted."""
        lock = what.new_sleeper()
        self._asleep.add(lock)
        if queue is not None:
            queue.append(lock)
        self._wanted = self._io_leads
        try:
            # Looked at again after registering: whoever finishes or leaves now sees the lock.
            if what.done or self._closed or not (queue is None or self._lead.locked()):
                return
            if unless is not None and unless.done:
                return
            if guard is not None:
                guard.let_through()
            lock.acquire(timeout=-1 if left is None else left)
            if guard is not None:
                guard.open = False
        finally:
            if guard is not None:
                guard.open = False
            what.sleeps_no_more(lock)
            self._asleep.discard(lock)
            if queue is not None:
                queue.remove(lock)
            if what.done:
                self._served += 1
            # The wake-up may have been the baton, offered to us alone, and we may not need it.
            if not self._lead.locked():
                self._offer()

    def _sleep_beside(
        self,
        loop: SleepingLoop,
        left: float | None,
        guard: Guard | None,
        queue: deque[Waiter] | None,
    ) -> None:
        """Sleep as any loop does, or until the baton may be had; no `queue`: it is not wanted."""
        if self._closed:
            queue = None
        self._asleep.add(loop)
        if queue is not None:
            queue.append(loop)
            self._wanted = self._io_leads
        try:
            # Looked at again after registering: whoever leaves now sees the loop.
            if queue is not None and not self._lead.locked():
                return
            if guard is not None:
                guard.let_through()
            loop.sleep(left)
        finally:
            if guard is not None:
                guard.open = False
            self._asleep.discard(loop)
            if queue is not None:
                queue.remove(loop)
            if loop.turn.done:
                self._served += 1
            # The wake-up may have been the baton, offered to us alone, and we may not need it.
            if not self._lead.locked():
                self._offer()

    # --- the IO thread ------------------------------------------------------------------------

    def _io(self, first_look_s: float) -> None:
        seen, tick = self._turns, TICK
        self._io_lock.acquire(timeout=first_look_s)
        while not self._closed:
            if (seen == self._turns or self._urged) and self._lead.acquire(False):
                self._urged = False
                self._io_lead()
                tick = TICK
            elif seen == self._turns or self._asleep:
                tick = TICK
            else:  # leaders come and go, and nobody sleeps beside them
                tick = min(2 * tick, SLOWEST_TICK)
            seen = self._turns
            if self._lead.locked() and not self._followers:
                # Somebody leads: sleep until the leader leaves, unless it left just now.
                self._io_lock.acquire(timeout=tick)
                if seen == self._turns and self._lead.locked():
                    self._io_sleeps = True
                    if seen == self._turns and self._lead.locked() and not self._closed:
                        self._io_lock.acquire()
                    self._io_sleeps = False
            else:
                self._io_lock.acquire(timeout=tick)

    def _io_lead(self) -> None:
        self._io_leads = True
        try:
            while not self._closed and not self._wanted:
                self._leader_thread = get_ident()
                try:
                    self._drain()
                finally:
                    self._leader_thread = 0
                if self._wanted or self._closed:
                    break
                for fd, _ in self._router.wait(self.look_again_s or self.look_often_s):
                    self._fire(fd)
        except Exception:
            log.exception("the IO thread failed while handling messages")
        finally:
            self._io_leads = False
            self._wanted = False
            self._lead.release()
            self._offer(for_good=True)


def _deadline(timeout_s: float) -> float | None:
    # What the system can't count to (24 days, by `poll`) is for ever.
    return time.monotonic() + timeout_s if timeout_s < LONGEST_S else None


def _room_on_the_stack() -> bool:
    """Whether this thread has room for what handles messages: asked in 0.2 us."""
    try:
        sys._getframe(sys.getrecursionlimit() - FRAMES_NEEDED)  # pyright: ignore[reportPrivateUsage]
    except ValueError:
        return True  # there are not so many frames
    return False
