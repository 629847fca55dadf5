"""Guards against SIGINT: it is raised while the main thread blocks, and otherwise held back.

Python runs signal handlers in the main thread between any two bytecodes. A KeyboardInterrupt
between taking a message off the socket and handing it on would lose the message; one between two
frames of a message would merge the next message into it. So during a wait or a send our handler is
in place. While the thread is blocked (`open`) it raises at once; otherwise it holds the signal back
until the thread blocks, or the guard ends.

Swapping the handler takes a system call, twice for each guard. In a proc, where no other code
handles SIGINT, our handler stays in place (`install_permanent_handler`), and a guard only registers
with it.

A signal that arrives after the last bytecode before a blocking system call does not end that call;
its handler runs when the call returns. In a proc `net.local.signal_pipe` then wakes the thread. In
other processes, whose descriptor for signals belongs to the program, a guarded wait blocks for
`LONGEST_BLOCK_S` at a stretch.

Only SIGINT is held back, because interactive users send it to a program that is to go on. Only the
main thread runs handlers. An actor on another thread, in which the runtime raises an exception when
a call is cancelled (`PyThreadState_SetAsyncExc`), has a `Shield` for the same purpose.
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
LONGEST_BLOCK_S = 0.5
"""Seconds after which a blocked main thread lets Python call the handlers of noted signals."""
_guarded = False  # whether the main thread is under a guard; used by the main thread only
_active: InterruptGuard | None = None  # that guard, if the permanent handler is in place
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
        if previous is _permanent_handler:
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
        """Before blocking: raise a signal that was held back, and further ones at once."""
        self.open = True
        while self._held is not False:
            self.open = False
            self._pass_on_held()
            self.open = True

    def block_s(self, timeout_s: float | None) -> float | None:
        """The seconds to block at a stretch, in a wait of at most `timeout_s`."""
        if not self._installed or (timeout_s is not None and timeout_s < LONGEST_BLOCK_S):
            return timeout_s
        return LONGEST_BLOCK_S

    def handle(self, _signum: int, frame: FrameType | None) -> None:
        if self.open:
            self.open = False  # no second signal while the first unwinds
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
    """One call of `raise_in`, and whether it is over."""

    __slots__ = ("_turn", "over")

    def __init__(self) -> None:
        self.over = False
        self._turn = threading.Lock()
        self._turn.acquire()

    def end(self) -> None:
        """Mark the attempt as over, and wake the shielded thread if it waits."""
        self.over = True
        self._turn.release()

    def wait(self) -> None:
        """Wait until the attempt is over. The shielded thread only; may raise and be repeated.

        `over` is set before the release, so the lock is never acquired a second time.
        """
        while not self.over:
            self._turn.acquire()


class Shield:
    """Lets other threads raise `error` in this thread, but only while it runs a given work.

    Work is user code. When it calls the runtime (a send, a wait), the error is held back until the
    thread blocks or is back in the work. The shielded thread brackets the work:

        try:
            shield.begin(work)
            ...
        finally:
            shield.work = None
            shield.end()

    and calls `end` once more in the handler of an exception from this block. `open`, `begin`, `end`
    and `with` are for the thread itself, `raise_in` is for any other.

    An exception that another thread raises arrives between any two bytecodes of this thread. From
    Python 3.14 on that includes the moment between the acquisition of a lock and the body of its
    `with`, and then the lock stays taken. So the handshake has these rules:

    - The shielded thread takes no lock that another thread needs. The raising threads use
      `_raising`, so their attempts do not overlap. The lock that the shielded thread waits on
      belongs to one attempt, and is not used again.
    - Each field of the handshake has one writer. The raising thread first stores its attempt in
      `_attempt` and then reads `work` and `_depth`; the shielded thread first stores `work` or
      `_depth` and then reads `_attempt`. So if the raising thread found the other in the work, that
      one finds the attempt when it leaves the work, waits until it is over, and receives the
      exception (`_settle`). Attempts are compared by identity, so a late one is never taken for an
      earlier one.
    - At most one exception arrives after such a store. An attempt first withdraws the exception of
      an earlier one if the thread has not received it, and then reads the fields once more.
    - Until such a store the thread is in the work, where every exception is raised.
      `shield.work = None` is the first bytecode of its `finally`, so no exception can arrive
      before it there; `__enter__` re-raises an exception that arrived before it stored `_depth`.
    - After the store, `__enter__` expects the one exception and catches it. It may hit `end` before
      its first line, but then it does not hit the second `end`.
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
        self._raised: _Attempt | None = None  # the newest one that raised the error
        # Written by the shielded thread.
        self.work: object | None = None
        self._depth = 1  # 0: in the work, above: in the runtime
        self._settled: _Attempt | None = None  # the error of this attempt can arrive no more
        self.held = False
        self.sleeper: threading.Lock | None = None  # the lock of the thread's `time.sleep`
        self.open = False  # as in an InterruptGuard; unused here

    def begin(self, work: object) -> None:
        """Allow `raise_in(work)` from here on."""
        self._depth = 0
        self.work = work

    def end(self) -> None:
        """End the work, and discard an error that has not arrived yet. Idempotent."""
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
            # Deeper in the runtime no error can arrive; and an attempt that is not over may be this
            # thread's own.
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
        """Before blocking, or back in the work: raise the error if it was held back."""
        if self.held:
            self.held = False
            raise self._error

    def block_s(self, timeout_s: float | None) -> float | None:
        """As in an InterruptGuard; the thread that raises also wakes this one."""
        return timeout_s

    def _settle(self) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.wait()
        for _ in (0, 0):  # Python raises a pending exception at a backward jump, so here
            pass
        self._settled = attempt

    def raise_in(self, work: object) -> bool:
        """Raise in that work if it is running. The caller wakes the thread if it blocks."""
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
                            pass  # it is awake already
                elif self.work is work:
                    self._raised = attempt
                    _raise_in_thread(self._thread, self._error)
                else:
                    return False
                return True
            finally:
                attempt.end()


class SignalShield:
    """A shield for the main thread: `raise_in` sends a signal, and the handler raises.

    It handles SIGINT until `restore`. A SIGINT from elsewhere raises KeyboardInterrupt in the work,
    or `error` if `raise_in` has requested that; between works it has no effect. Sends and waits
    hold it back by an InterruptGuard.

    The thread brackets work as with a `Shield`. After `shield.work = None` nothing is raised.
    """

    __slots__ = ("_before", "_error", "_sent", "_wanted", "work", "work_of")

    def __init__(
        self, error: type[BaseException], work_of: Callable[[], object | None] | None = None
    ) -> None:
        """`work_of`, called in the handler, returns the running work; default: that of `begin`."""
        self._error = error
        self.work: object | None = None
        self._wanted: object | None = None
        self._sent = False
        self.work_of = work_of
        self._before = _stand_behind(self._handle)

    def begin(self, work: object) -> None:
        """Allow `raise_in(work)` from here on."""
        self.work = work

    def end(self) -> None:
        """End the work. Idempotent."""
        self.work = None

    def raise_in(self, work: object) -> bool:
        """Raise in that work if it is running, also where it blocks. Any thread."""
        if self.work_of is None and self.work is not work:
            return False
        self._wanted = work
        self._sent = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return True

    def restore(self) -> None:
        """Put the previous handler of SIGINT back."""
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
    """Raise the error in a thread; None: withdraw an error that has not arrived yet."""
    _raise_function()(thread, 0 if error is None else id(error))


def _raise_function() -> Callable[[int, int], int]:
    import ctypes  # only a cancellation needs it

    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raise_in.argtypes = (ctypes.c_ulong, ctypes.c_void_p)
    return raise_in


class NoGuard:
    """A guard without effect, for threads that never run signal handlers."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


NO_GUARD = NoGuard()


def install_permanent_handler() -> None:
    """Install a permanent handler, which calls the present one. Main thread.

    When user code sets another handler, guards swap handlers again.
    """
    global _behind
    previous = _low.getsignal(_SIGINT)
    if callable(previous) and previous is not _permanent_handler:
        _behind = previous
        _low.signal(_SIGINT, _permanent_handler)


def is_permanent_handler_installed() -> bool:
    """Whether the permanent handler is in place: user code may replace it. Any thread."""
    return _low.getsignal(_SIGINT) is _permanent_handler


def _stand_behind(handler: Any) -> Any:
    """Handle SIGINT by this, behind the permanent handler if there is one; returns the previous."""
    global _behind
    if not is_permanent_handler_installed():
        return signal.signal(signal.SIGINT, handler)
    before, _behind = _behind, handler
    return before


def call_on_main_thread(call: Callable[[FrameType | None], None]) -> bool:
    """Call a function in a signal handler of the main thread, with the running frame. Any thread.

    Returns False if user code has replaced our handler. The function may be called inside a guard,
    and must not block if it finds the frame of one.
    """
    if not is_permanent_handler_installed():
        return False
    _calls.append(call)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    return True


_calls: deque[Callable[[FrameType | None], None]] = deque()
# The permanent handler calls it; see `net.local.signal_pipe`.
on_handler: Callable[[], None] | None = None


def _permanent_handler(signum: int, frame: FrameType | None) -> None:
    if on_handler is not None:
        on_handler()
    if _calls:
        _calls.popleft()(frame)
    elif _active is not None:
        _active.handle(signum, frame)
    else:
        _behind(signum, frame)


def disable_interrupts() -> None:
    """Disable the guards of the main thread, in a process where SIGINT never raises."""
    global _main
    _main = None


def _forked() -> None:
    global _main
    _main = threading.main_thread().ident
    _shields.clear()  # a fork has none of the other threads


_main: int | None = threading.main_thread().ident
os.register_at_fork(after_in_child=_forked)
# By thread, of actors on other threads than the main one.
_shields: dict[int, Shield] = {}


def shield_this_thread(error: type[BaseException]) -> Shield | SignalShield:
    """Let other threads raise `error` in this one, until `unshield_this_thread`."""
    if threading.current_thread() is threading.main_thread():
        return SignalShield(error)
    shield = _shields[threading.get_ident()] = Shield(error)
    return shield


def unshield_this_thread(shield: Shield | SignalShield) -> None:
    """Undo `shield_this_thread`."""
    if isinstance(shield, SignalShield):
        shield.restore()
    else:
        _shields.pop(threading.get_ident(), None)


def shield_of_this_thread() -> Shield | None:
    """The shield of this thread, if it runs an actor and is not the main thread."""
    return _shields.get(threading.get_ident())


Guard: TypeAlias = "InterruptGuard | Shield"


def uninterrupted() -> Guard | NoGuard:
    """Hold back interrupts of this thread during a `with` block; may be nested.

    On the main thread that is SIGINT, on the thread of an actor the cancellation of a call.
    """
    thread = get_ident()
    if thread == _main:
        return NO_GUARD if _guarded else InterruptGuard()
    return _shields.get(thread, NO_GUARD)


class GuardedLock:
    """A lock for work that does not block; the thread that holds it is not interrupted.

    From Python 3.14 on an exception can arrive between the acquisition of a lock and the body of
    its `with`, and then the lock stays taken. So each lock that a user's thread takes is a
    GuardedLock, or is taken under a guard.
    """

    __slots__ = ("_guards", "_lock")

    def __init__(self, *, reentrant: bool = False) -> None:
        self._lock = threading.RLock() if reentrant else threading.Lock()
        self._guards: list[Guard | NoGuard] = []  # of the thread that holds the lock

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
        """Take the lock unless a thread, this one included, holds it; `leave` releases it."""
        guard = uninterrupted()
        guard.__enter__()
        if self._lock.acquire(blocking=False):
            self._guards.append(guard)
            return True
        guard.__exit__(None, None, None)
        return False

    def leave(self) -> None:
        """Release the lock after `enter_if_free`."""
        self.__exit__(None)


def guard_for_this_thread() -> Guard | NoGuard:
    """A guard for a wait, which lets held-back interrupts through when it blocks."""
    thread = get_ident()
    return InterruptGuard() if thread == _main else _shields.get(thread, NO_GUARD)
