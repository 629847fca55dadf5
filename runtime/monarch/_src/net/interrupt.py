"""SIGINT while the main thread waits or sends: raise while it blocks, and otherwise hold back.

Python runs signal handlers in the main thread between any two bytecodes. A KeyboardInterrupt that
lands between taking a message off the socket and handing it on would lose the message; one between
two frames of a message would make the next message a part of it. So for the length of a wait or a
send the handler is ours: it passes the signal on at once while the thread is blocked (`open`), and
otherwise before it blocks, or at the end.

Only SIGINT is held back, since it is the one that interactive users send to a program that means to
go on; only the main thread needs a guard, since no other thread runs handlers.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# The wrappers in `signal` convert to enums, 2.5 us a call on the path of every call; this is 0.2
# us.
_low: Any = getattr(signal, "_signal", signal)
_SIGINT = int(signal.SIGINT)
_guarded = False  # whether the main thread is under a guard; only it looks and changes


class InterruptGuard:
    """A context manager for one wait, or one send, of the main thread."""

    __slots__ = ("_held", "_installed", "_previous", "open")

    def __init__(self) -> None:
        self.open = False
        self._held: FrameType | bool = False
        self._installed = False
        self._previous: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> InterruptGuard:
        global _guarded
        previous = _low.getsignal(_SIGINT)
        if callable(previous):
            self._previous = previous
            self._installed = True
            _low.signal(_SIGINT, self._handle)
            _guarded = True
        return self

    def __exit__(self, *_: object) -> None:
        global _guarded
        if not self._installed:
            return
        self._installed = False
        _guarded = False
        _low.signal(_SIGINT, self._previous)
        self._pass_on_held()

    def let_through(self) -> None:
        """The thread is about to block: raise what was held back, and from now on at once."""
        self.open = True
        while self._held is not False:
            self.open = False
            self._pass_on_held()
            self.open = True

    def _handle(self, _signum: int, frame: FrameType | None) -> None:
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


class NoGuard:
    """The same for threads that never run signal handlers."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_no_guard = NoGuard()


def uninterrupted() -> InterruptGuard | NoGuard:
    """Hold SIGINT back for the length of a `with` block on the main thread; may be nested."""
    return _no_guard if _guarded else guard_for_this_thread()


def guard_for_this_thread() -> InterruptGuard | NoGuard:
    """A guard if this is the main thread."""
    if threading.get_ident() == threading.main_thread().ident:
        return InterruptGuard()
    return _no_guard
