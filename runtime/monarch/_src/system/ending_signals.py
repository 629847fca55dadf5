"""Signals that ask a program to end, as interrupts of what its main thread does.

Runs in: the command line, on the main thread. SIGTERM and the like go the way of Ctrl-C, which the
runtime holds back where an exception would lose a message (`net.local.interrupt`).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Sequence, Set
from contextlib import contextmanager
from types import FrameType

from monarch._src.system.process import signal_name

USUAL = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
# Seconds after a signal at which a call that waits is made to return. The first is soon enough for
# a person; a main thread that had not begun to wait by then gets the later ones.
WAKE_AFTER_S = (0.01, 0.1, 1.0)


class SignalInterrupt(KeyboardInterrupt):
    """This process has got the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"this process has got {signal_name(number)}")
        self.number = number


@contextmanager
def signals_as_interrupts(names: Sequence[str] = USUAL) -> Generator[None]:
    """Raise SignalInterrupt on the main thread for each of these signals. Main thread, not nested.

    A signal that is ignored, as by `nohup` or in a shell's background job, stays ignored.

    Args:
        names: such as `"SIGTERM"`.

    Raises:
        ValueError: one is no signal that a program can handle.
    """
    numbers = [number_of(name) for name in names]
    got: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        got.append(number)
        signal.raise_signal(signal.SIGINT)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if got:
            raise SignalInterrupt(got.pop())
        if heeds_interrupts:
            raise SignalInterrupt(number)

    before = {
        number: signal.getsignal(number) for number in {*numbers, signal.SIGINT, signal.SIGURG}
    }
    heeds_interrupts = signal.SIGINT in numbers and before[signal.SIGINT] is not signal.SIG_IGN
    try:
        for number, handler in before.items():
            if number == signal.SIGINT:
                signal.signal(number, interrupt)
            elif number == signal.SIGURG:
                signal.signal(number, _do_nothing)
            elif handler is not signal.SIG_IGN:
                signal.signal(number, handle)
        with _wake_main_thread_after({*numbers, signal.SIGINT}):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _wake_main_thread_after(numbers: Set[int]) -> Generator[None]:
    """Make a call of the main thread that waits return soon after each of these signals.

    Python runs a handler between two steps of the program. A signal that arrives after the last
    step before a call that waits, and before the system has begun the wait, does not end that wait,
    and its handler would run with the next message only. A second signal ends the wait.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()
    main = threading.get_ident()

    def wake() -> None:
        while arrived := os.read(reader, 64):
            for pause in WAKE_AFTER_S if numbers & set(arrived) else ():
                if ended.wait(pause):
                    return
                signal.pthread_kill(main, signal.SIGURG)

    thread = threading.Thread(target=wake, name="monarch-signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        os.close(writer)
        thread.join()
        os.close(reader)


def _do_nothing(*_: object) -> None:
    """Handle a signal that is sent only to end a wait."""


def number_of(name: str) -> int:
    """The number of a signal by its name. Raises ValueError if a program cannot handle it."""
    found = getattr(signal, name, None)
    if not isinstance(found, signal.Signals) or found in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"{name!r} is no signal that a program can handle")
    return int(found)
