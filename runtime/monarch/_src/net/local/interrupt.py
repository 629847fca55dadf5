"""SIGINT while the main thread waits or sends: raise while it blocks, and otherwise hold back.

Python runs signal handlers in the main thread between any two bytecodes. A KeyboardInterrupt that
lands between taking a message off the socket and handing it on would lose the message; one between
two frames of a message would make the next message a part of it. So for the length of a wait or a
send the handler is ours: it passes the signal on at once while the thread is blocked (`open`), and
otherwise before it blocks, or at the end.

To swap a handler is a system call, twice a guard. A process whose SIGINT is nobody else's affair,
a proc, has ours in place for good (`keep_handler`), and a guard only says that it is there.

Only SIGINT is held back, since it is the one that interactive users send to a program that means to
go on. Only the main thread runs handlers; a thread of an actor, in which another thread may raise
(`PyThreadState_SetAsyncExc`, when a call is cancelled), has a `Shield` for the same purpose.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, TypeAlias

# The wrappers in `signal` convert to enums, 2.5 us a call on the path of every call; this is 0.2
# us. In a fork they are 20 pages of its own.
plain_signal: Any = getattr(signal, "_signal", signal)
_low = plain_signal
_SIGINT = int(signal.SIGINT)
_guarded = False  # whether the main thread is under a guard; only it looks and changes
_active: InterruptGuard | None = None  # under which, if the handler that stays is in place
_behind: Callable[[int, FrameType | None], Any] = signal.default_int_handler


class InterruptGuard:
    """A context manager for one wait, or one send, of the main thread."""

    # No __init__: one is made for each wait and each send.
    open = False
    _held: FrameType | bool = False
    _installed = False
    _outer: InterruptGuard | None = None
    _previous: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> InterruptGuard:
        global _active, _guarded
        previous = _low.getsignal(_SIGINT)
        if previous is _that_stays:
            self._previous = _behind
            self._outer = _active
            _active = self  # the signal is held back from here on
            _guarded = True
        elif callable(previous):
            self._previous = previous
            self._installed = True
            _low.signal(_SIGINT, self.handle)
            _guarded = True
        return self

    def __exit__(self, *_: object) -> None:
        global _active, _guarded
        if _active is self:
            _guarded = self._outer is not None
            _active = self._outer  # the signal is raised from here on
        elif self._installed:
            self._installed = False
            _guarded = False
            _low.signal(_SIGINT, self._previous)
        else:
            return
        if self._held is not False:
            self._pass_on_held()

    def let_through(self) -> None:
        """The thread is about to block: raise what was held back, and from now on at once."""
        self.open = True
        while self._held is not False:
            self.open = False
            self._pass_on_held()
            self.open = True

    def handle(self, _signum: int, frame: FrameType | None) -> None:
        if self.open:
            self.open = False  # no second one while the first unwinds
            self._pass_on(frame)
            self.let_through()  # the user's handler did not raise: the thread blocks on
        else:
            self._held = frame or True

    def _pass_on_held(self) -> None:
        held, self._held = self._held, False
        if held is not False:
            self._pass_on(held if isinstance(held, FrameType) else None)

    def _pass_on(self, frame: FrameType | None) -> None:
        previous = self._previous
        if callable(previous):
            previous(_SIGINT, frame)


class _Attempt:
    """One `raise_in`: whether its thread has done all that it will do."""

    __slots__ = ("_turn", "over")

    def __init__(self) -> None:
        self.over = False
        self._turn = threading.Lock()
        self._turn.acquire()

    def end(self) -> None:
        """Mark the attempt as over, and wake the shielded thread if that waits."""
        self.over = True
        self._turn.release()

    def wait(self) -> None:
        """Return when the attempt is over. The shielded thread only; it may raise and be repeated.

        `over` is set before the release, so the lock is never asked for a second time.
        """
        while not self.over:
            self._turn.acquire()


class Shield:
    """Lets other threads raise `error` in this one while it runs one piece of work, not else.

    Work is code of the user; when that calls the runtime (a send, a wait), what is raised is held
    back until the thread blocks or is back in the work. The shielded thread brackets the work:

        try:
            shield.begin(work)
            ...
        finally:
            shield.work = None
            shield.end()

    and calls `end` once more in the handler of what comes out of that. `open`, `begin`, `end` and
    `with` are for the thread itself, `raise_in` is for any other.

    An exception that another thread raises arrives between any two bytecodes of this thread. From
    Python 3.14 on that includes the moment between the acquisition of a lock and the body of its
    `with`, and the lock stays taken. So the handshake has these rules:

    - The shielded thread takes no lock that another thread needs. `_raising` is for the threads
      that raise, and keeps their attempts one after another. What the shielded thread waits for
      belongs to one attempt, and is used up with it.
    - Each field of the handshake has one writer. The raising thread first stores its attempt in
      `_attempt` and then looks at `work` and `_depth`; the shielded thread first stores `work` or
      `_depth` and then looks at `_attempt`. So if the raising thread found the thread in the work,
      the thread finds the attempt when it leaves the work, waits until that is over, and takes
      what was raised (`_settle`). Both know an attempt by its identity, so a late one is never
      taken for an earlier one.
    - At most one exception arrives after such a store. An attempt first withdraws what an earlier
      one has raised and the thread has not received, and then looks once more.
    - Until such a store the thread is in the work, and whatever arrives, however often, is raised
      in the work. `shield.work = None` has no bytecode before it in its `finally` at which
      anything could arrive; `__enter__` raises again what arrived before it stored `_depth`.
    - After the store the one exception is expected: `__enter__` catches it. `end` may be hit by it
      before its first line, but then the second `end` is not.
    """

    __slots__ = (
        "_attempt",
        "_depth",
        "_error",
        "_raised",
        "_raising",
        "_settled",
        "_thread",
        "held",
        "open",
        "sleeper",
        "work",
    )

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error
        self._thread = threading.get_ident()
        # Written by the threads that raise, under `_raising`.
        self._raising = threading.Lock()
        self._attempt: _Attempt | None = None  # the newest one
        self._raised: _Attempt | None = None  # the newest one that raised something
        # Written by the shielded thread.
        self.work: object | None = None
        self._depth = 1  # 0: in the work, above: in the runtime
        self._settled: _Attempt | None = None  # nothing of this attempt can arrive any more
        self.held = False
        self.sleeper: threading.Lock | None = None  # what the thread sleeps on, in `time.sleep`
        self.open = False  # as of an InterruptGuard; nothing looks at it here

    def begin(self, work: object) -> None:
        """From here on `raise_in(work)` may raise here."""
        self._depth = 0
        self.work = work

    def end(self) -> None:
        """The work has ended: what was raised and has not arrived yet never will. Idempotent."""
        try:
            self.work = None
            self._depth = 1
            if self._attempt is not self._settled:
                self._settle()
        except self._error:
            self.work = None
            self._depth = 1
            self._settle()
        self.held = False

    def __enter__(self) -> Shield:
        depth = self._depth
        try:
            self._depth = depth + 1
            # Deeper in the runtime nothing can arrive; and an attempt that is not over may be one
            # that this thread makes.
            if not depth and self._attempt is not self._settled:
                self._settle()
        except self._error:
            if self._depth == depth:
                raise  # in the work: the block is not entered
            self.held = True
            self._settle()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._depth -= 1
        if self.held and kind is None and not self._depth:
            self.let_through()

    def let_through(self) -> None:
        """The thread is about to block, or back in its work: raise what was held back."""
        if self.held:
            self.held = False
            raise self._error

    def _settle(self) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.wait()
        for _ in (0, 0):  # what was not raised yet is raised at a jump back, so here
            pass
        self._settled = attempt

    def raise_in(self, work: object) -> bool:
        """Raise in that work, if it is what runs. Whoever asks wakes the thread if it blocks."""
        if not self._depth:
            _raise_function()  # loaded now, not while the thread waits for the attempt
        with uninterrupted(), self._raising:
            attempt = _Attempt()
            try:
                self._attempt = attempt
                if self.work is not work:
                    return False
                if self._raised is not None:
                    self._raised = None
                    _raise_in_thread(self._thread, None)
                if self._depth:
                    self.held = True
                    sleeper = self.sleeper
                    if sleeper is not None:
                        try:
                            sleeper.release()
                        except RuntimeError:
                            pass  # it has been woken before
                elif self.work is work:
                    self._raised = attempt
                    _raise_in_thread(self._thread, self._error)
                else:
                    return False
                return True
            finally:
                attempt.end()


class SignalShield:
    """The same for the main thread, where raising is a signal and its handler knows where it is.

    From its making until `restore` it handles SIGINT. One that somebody else has sent raises
    KeyboardInterrupt in the work, or `error` if that was wanted already; it does nothing while no
    work is done. Sends and waits hold it back, as an InterruptGuard does.

    The thread brackets work as with a `Shield`. After `shield.work = None` nothing is raised.
    """

    __slots__ = ("_before", "_error", "_sent", "_wanted", "work", "work_of")

    def __init__(
        self, error: type[BaseException], work_of: Callable[[], object | None] | None = None
    ) -> None:
        """`work_of`, called in the handler, says what runs; without it, what `begin` has said."""
        self._error = error
        self.work: object | None = None
        self._wanted: object | None = None
        self._sent = False
        self.work_of = work_of
        self._before = _stand_behind(self._handle)

    def begin(self, work: object) -> None:
        """From here on this work may be interrupted."""
        self.work = work

    def end(self) -> None:
        """It has ended. Idempotent."""
        self.work = None

    def raise_in(self, work: object) -> bool:
        """Raise in that work, also where it blocks, if it is what runs. Any thread."""
        if self.work_of is None and self.work is not work:
            return False
        self._wanted = work
        self._sent = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return True

    def restore(self) -> None:
        """Handle SIGINT no more."""
        _stand_behind(self._before)

    def _handle(self, _signum: int, _frame: FrameType | None) -> None:
        sent, self._sent = self._sent, False
        work = self.work if self.work_of is None else self.work_of()
        if work is None:
            return
        if work is self._wanted:
            raise self._error
        if not sent:
            raise KeyboardInterrupt


def _raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Have that raised in a thread; None: withdraw what has not been raised yet."""
    _raise_function()(thread, 0 if error is None else id(error))


def _raise_function() -> Callable[[int, int], int]:
    import ctypes  # only a cancellation needs it

    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raise_in.argtypes = (ctypes.c_ulong, ctypes.c_void_p)
    return raise_in


class NoGuard:
    """The same for threads that never run signal handlers."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


NO_GUARD = NoGuard()


def keep_handler() -> None:
    """Put a handler in place that stays, in front of the one that there is. Main thread.

    User code that sets another one takes it away, and guards swap handlers again.
    """
    global _behind
    previous = _low.getsignal(_SIGINT)
    if callable(previous) and previous is not _that_stays:
        _behind = previous
        _low.signal(_SIGINT, _that_stays)


def is_kept() -> bool:
    """Whether the handler that stays is in place: user code may have set another. Any thread."""
    return _low.getsignal(_SIGINT) is _that_stays


def _stand_behind(handler: Any) -> Any:
    """Handle SIGINT by this, behind the handler that stays if that is in place; what did before."""
    global _behind
    if not is_kept():
        return signal.signal(signal.SIGINT, handler)
    before, _behind = _behind, handler
    return before


def call_on_main(call: Callable[[FrameType | None], None]) -> bool:
    """Have that called on the main thread, wherever it is, with the frame that runs. Any thread.

    False where user code has taken our handler away. Also called in the middle of a guard, so it
    must not block where it finds the frame of one.
    """
    if not is_kept():
        return False
    _calls.append(call)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    return True


_calls: deque[Callable[[FrameType | None], None]] = deque()
on_handler: Callable[[], None] | None = (
    None  # called as the handler that stays is; see `net.local.signal_pipe`
)


def _that_stays(signum: int, frame: FrameType | None) -> None:
    if on_handler is not None:
        on_handler()
    if _calls:
        _calls.popleft()(frame)
    elif _active is not None:
        _active.handle(signum, frame)
    else:
        _behind(signum, frame)


def nothing_interrupts() -> None:
    """In this process SIGINT raises nothing: from now on nothing is held back on its account."""
    global _main
    _main = None


def _forked() -> None:
    global _main
    _main = threading.main_thread().ident
    _shields.clear()  # the threads that raised here are not in the fork


_main: int | None = threading.main_thread().ident
os.register_at_fork(after_in_child=_forked)
# By thread: those of actors that are not on the main thread.
_shields: dict[int, Shield] = {}


def shield_this_thread(error: type[BaseException]) -> Shield | SignalShield:
    """From here on `error` can be raised in this thread; until `unshield_this_thread`."""
    if threading.current_thread() is threading.main_thread():
        return SignalShield(error)
    shield = _shields[threading.get_ident()] = Shield(error)
    return shield


def unshield_this_thread(shield: Shield | SignalShield) -> None:
    """Nothing is raised here any more."""
    if isinstance(shield, SignalShield):
        shield.restore()
    else:
        _shields.pop(threading.get_ident(), None)


def shield_of_this_thread() -> Shield | None:
    """The one of an actor that is not on the main thread."""
    return _shields.get(threading.get_ident())


Guard: TypeAlias = "InterruptGuard | Shield"


def uninterrupted() -> Guard | NoGuard:
    """Hold back what would interrupt this thread for the length of a `with` block; may be nested.

    That is SIGINT on the main thread, and the end of a call on the thread of an actor.
    """
    thread = get_ident()
    if thread == _main:
        return NO_GUARD if _guarded else InterruptGuard()
    return _shields.get(thread, NO_GUARD)


class GuardedLock:
    """A lock for work that does not block; nothing is raised in the thread that has it.

    From Python 3.14 on an exception can arrive between the acquisition of a lock and the body of
    its `with`, and the lock stays taken. So a lock that a thread of the user takes is one of these,
    or is taken under a guard.
    """

    __slots__ = ("_guards", "_lock")

    def __init__(self, *, reentrant: bool = False) -> None:
        self._lock = threading.RLock() if reentrant else threading.Lock()
        self._guards: list[Guard | NoGuard] = []  # of the thread that has the lock

    def __enter__(self) -> None:
        guard = uninterrupted()
        guard.__enter__()
        self._lock.acquire()
        self._guards.append(guard)

    def __exit__(self, kind: object, *error: object) -> None:
        guard = self._guards.pop()
        self._lock.release()
        guard.__exit__(kind, *error)

    def enter_if_free(self) -> bool:
        """Take the lock unless a thread has it, this one included; `leave` gives it back."""
        guard = uninterrupted()
        guard.__enter__()
        if self._lock.acquire(blocking=False):
            self._guards.append(guard)
            return True
        guard.__exit__(None, None, None)
        return False

    def leave(self) -> None:
        """Give the lock back after `enter_if_free`."""
        self.__exit__(None)


def guard_for_this_thread() -> Guard | NoGuard:
    """The same for a wait, which lets through what it was held back when it blocks."""
    thread = get_ident()
    return InterruptGuard() if thread == _main else _shields.get(thread, NO_GUARD)
