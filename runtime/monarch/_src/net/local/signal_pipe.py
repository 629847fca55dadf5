"""Wakes the main thread for a signal that arrived just before the thread fell asleep.

When a signal arrives, Python only sets a flag; the main thread calls the handler later, between two
bytecodes. A signal that arrives after the last check of the flag and before a blocking system call
does not interrupt that call (the wait for the interpreter lock lies between the two): the thread
sleeps on with the flag set, perhaps for ever. A user presses Ctrl-C again; a program that
interrupts another one waits.

So Python writes into a pipe when it sets the flag (`signal.set_wakeup_fd`), and our handler empties
the pipe. Bytes that another thread finds there belong to a signal that is not handled yet. That
thread wakes the main thread if it waits in the runtime, and otherwise pokes it: it sends a signal
whose only effect is to end a system call (which is repeated, PEP 475, unless the handler raises).

Runs in: a proc; `look` on the receiving thread, pokes on a short-lived thread. User code that sets
such a descriptor itself (`loop.add_signal_handler`) replaces this one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from monarch._src.net.local import interrupt
from monarch._src.net.local.interrupt import plain_signal

POKE = signal.SIGURG  # ignored by default
POKES_S = (0.01, 0.1, 1.0)


class NotedSignals:
    """The signals of this process whose handlers have not run yet."""

    def __init__(self, wake_all: Callable[[], None]) -> None:
        """`wake_all` has the threads that wait in the runtime check for signals."""
        self._wake_all = wake_all
        self._handled = threading.Event()

    def begin(self) -> None:
        """Install the pipe; call `look` when `fd` is readable. On the main thread, once."""
        self.fd, self._note = os.pipe()  # never closed, as the handler stays
        for fd in (self.fd, self._note):
            os.set_blocking(fd, False)
        if plain_signal.getsignal(POKE) == plain_signal.SIG_DFL:
            plain_signal.signal(POKE, _nothing)
        interrupt.on_handler = self._on_handler
        signal.set_wakeup_fd(self._note, warn_on_full_buffer=False)

    def look(self) -> None:
        """`fd` is or was readable: wake the main thread if SIGINT was not handled."""
        self._handled.clear()
        if signal.SIGINT not in self._read() or not interrupt.is_permanent_handler_installed():
            return  # it was handled, or user code handles SIGINT
        self._wake_all()
        threading.Thread(target=self._poke, name="monarch-signals", daemon=True).start()

    def _poke(self) -> None:
        main = threading.main_thread().ident or 0
        for pause in POKES_S:
            if self._handled.wait(pause):
                return
            signal.pthread_kill(main, POKE)

    def _on_handler(self) -> None:
        self._read()
        self._handled.set()

    def _read(self) -> bytes:
        try:
            return os.read(self.fd, 4096)
        except BlockingIOError:
            return b""


def _nothing(*_: object) -> None:
    pass
