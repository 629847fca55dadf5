"""Handle Ctrl-C at a prompt, even if it arrives just before CPython begins to wait for a key.

CPython's signal handler only sets a flag. Running Python code checks the flag, and so does a system
call that the signal interrupts. A signal between the last check and the start of the read
interrupts nothing, so the prompt would wait for a key with the flag set.

Runs in: the command line. A thread reads each Ctrl-C from the wake-up descriptor and interrupts the
main thread's read with SIGURG, several times.
Invariants: the handler of SIGURG does nothing; the earlier handlers are restored at the end.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
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
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(old_fd)
        writes.close()
        thread.join()
        reads.close()
        signal.signal(WAKE_SIGNAL, old_handler)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Only interrupt the system call, so that CPython checks for signals."""
