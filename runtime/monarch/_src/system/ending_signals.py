"""Signals that ask a program to end, as interrupts of what its main thread does.

Runs in: the command line, on the main thread. SIGTERM and the like go the way of Ctrl-C, which the
runtime holds back where an exception would lose a message (`net.local.interrupt`).
"""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType

from monarch._src.system.process import signal_name

USUAL = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


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

    before = {number: signal.getsignal(number) for number in {*numbers, signal.SIGINT}}
    heeds_interrupts = signal.SIGINT in numbers and before[signal.SIGINT] is not signal.SIG_IGN
    try:
        for number, handler in before.items():
            if number == signal.SIGINT:
                signal.signal(number, interrupt)
            elif handler is not signal.SIG_IGN:
                signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def number_of(name: str) -> int:
    """The number of a signal by its name. Raises ValueError if a program cannot handle it."""
    found = getattr(signal, name, None)
    if not isinstance(found, signal.Signals) or found in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"{name!r} is no signal that a program can handle")
    return int(found)
