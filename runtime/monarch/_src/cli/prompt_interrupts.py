"""Ctrl-C at a prompt, also in the moment in which CPython begins to wait for a key.

CPython's handler only notes that a signal came. What looks at the note is Python code that runs, or
a wait that the signal has cut short; one that comes after the last look and before the wait begins
cuts nothing short, and the prompt waits for a key with the note in its pocket.

Runs in: the command line. A thread of its own hears of each Ctrl-C through the wake-up descriptor,
and cuts the wait of the main thread short by a signal that nobody has a use for, a few times.
Invariants: that signal does nothing but to have the main thread look; afterwards all is as before.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

NUDGE = signal.SIGURG  # ignored wherever nobody handles it
FIRST_S = 0.02  # a busy machine may hold a thread up between its look and its wait, so more follow
NUDGES = 7  # each after twice the time of the one before


@contextmanager
def heeding_interrupts() -> Generator[None]:
    """Have each Ctrl-C noticed while this is entered. The main thread only; not to be nested."""
    main = threading.main_thread().ident
    assert main is not None
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    over = threading.Event()

    def nudge() -> None:
        while numbers := reads.recv(64):
            if signal.SIGINT not in numbers:
                continue  # our own
            for number in range(NUDGES):
                if over.wait(FIRST_S * 2**number):
                    return
                signal.pthread_kill(main, NUDGE)

    thread = threading.Thread(target=nudge, name="interrupts", daemon=True)
    handled = signal.signal(NUDGE, _nothing)
    woken = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(woken)
        writes.close()
        thread.join()
        reads.close()
        signal.signal(NUDGE, handled)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """What has been cut short looks at its notes, and that is all."""
