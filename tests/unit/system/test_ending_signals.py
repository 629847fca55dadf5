"""A signal ends a wait of the main thread, also one that arrives just before the wait begins."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator

import pytest

from monarch._src.system.ending_signals import USUAL, SignalInterrupt, signals_as_interrupts

NUMBERS = [getattr(signal, name) for name in USUAL]


@pytest.fixture(autouse=True)
def default_handlers() -> Generator[None]:
    """Heed signals that are ignored in a shell's background job: SIGINT and SIGQUIT."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    for number in NUMBERS:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS, ids=USUAL)
def test_a_signal_of_another_thread_ends_a_wait(number: int) -> None:
    """The system gives the signal to that thread, so that it does not end the wait by itself."""
    silent, writer = os.pipe()

    def send() -> None:
        signal.pthread_kill(threading.get_ident(), number)

    def wait() -> None:
        with signals_as_interrupts():
            sender.start()
            os.read(silent, 1)

    sender = threading.Thread(target=send)
    with pytest.raises(SignalInterrupt) as raised:
        wait()
    sender.join()
    os.close(silent)
    os.close(writer)
    assert raised.value.number == number


def test_handlers_and_descriptors_are_as_before() -> None:
    """What the program had set for its signals is there again, and no thread is left."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    outer = signal.set_wakeup_fd(ends[1])
    numbers = [*NUMBERS, signal.SIGURG]
    before = [signal.getsignal(number) for number in numbers]
    with signals_as_interrupts():
        assert signal.getsignal(signal.SIGURG) not in before
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(outer) == ends[1]
    assert "monarch-signals" not in {thread.name for thread in threading.enumerate()}
    for end in ends:
        os.close(end)


def test_an_ignored_signal_stays_ignored() -> None:
    """As under `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_as_interrupts():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_name_that_is_no_signal_is_refused() -> None:
    """The error names it."""
    with pytest.raises(ValueError, match="SIGKILL"), signals_as_interrupts(["SIGKILL"]):
        pass
