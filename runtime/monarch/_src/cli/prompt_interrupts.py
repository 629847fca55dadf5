"""Handle Ctrl-C at a prompt, even if it arrives just before CPython begins to wait for a key.

CPython's signal handler only sets a flag. Running Python code checks the flag, and so does a system
call that the signal interrupts. A signal between the last check and the start of the read
interrupts nothing, so the prompt would wait for a key with the flag set.

A terminal discards typed keys at Ctrl-C. If readline has just seen that there is a key, it then
waits for one in a loop that checks no flag. So the terminal keeps them in this context (`NOFLSH`);
the line that they belong to is discarded anyway.

Runs in: the command line. A thread reads each Ctrl-C from the wake-up descriptor and interrupts the
main thread's read with SIGURG, several times.
Invariants: the handler of SIGURG does nothing; the earlier handlers and the earlier mode of the
terminal are restored at the end.
"""

from __future__ import annotations

import signal
import socket
import sys
import termios
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType

WAKE_SIGNAL = signal.SIGURG  # ignored by default
FIRST_S = 0.02
# Repeated, each after twice the time: a busy machine may delay the main thread before its read.
WAKE_UPS = 7


@contextmanager
def prompt_interrupts() -> Generator[None]:
    """Raise KeyboardInterrupt for each Ctrl-C in this context. Main thread only, not nested."""
    main = threading.main_thread().ident
    assert main is not None
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    over = threading.Event()

    def wake_main() -> None:
        while numbers := reads.recv(64):
            if signal.SIGINT not in numbers:
                continue  # WAKE_SIGNAL itself
            for number in range(WAKE_UPS):
                if over.wait(FIRST_S * 2**number):
                    return
                signal.pthread_kill(main, WAKE_SIGNAL)

    thread = threading.Thread(target=wake_main, name="interrupts", daemon=True)
    old_handler = signal.signal(WAKE_SIGNAL, _ignore)
    old_fd = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        with _keys_kept_at_interrupts():
            yield
    finally:
        over.set()
        signal.set_wakeup_fd(old_fd)
        writes.close()
        thread.join()
        reads.close()
        signal.signal(WAKE_SIGNAL, old_handler)


@contextmanager
def _keys_kept_at_interrupts() -> Generator[None]:
    """Set `NOFLSH` of the terminal that is standard input, if it is one."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    kept = list(before)
    kept[3] |= termios.NOFLSH  # the local modes
    termios.tcsetattr(fd, termios.TCSANOW, kept)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(fd, termios.TCSANOW, before)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Only interrupt the system call, so that CPython checks for signals."""
