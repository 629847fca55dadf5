"""Signals that were noted just as the main thread went to sleep: it is woken to see them.

Python's part of a signal is to note it; the handler is called by the main thread, between two
bytecodes, at a few kinds of them. A signal that comes behind the last look and before a system call
that blocks (waiting for the interpreter lock lies in between) ends no such call: the thread sleeps
on with the signal noted, for ever if nothing else wakes it. Whoever presses Ctrl-C presses it
again; a program that interrupts another one waits.

So Python writes into a pipe as it notes a signal (`signal.set_wakeup_fd`), and our handler reads it
empty. What is still there when another thread looks was not handled: that thread has the main one
look, if it waits in the runtime, and pokes it otherwise, with a signal that does nothing but end a
system call (which goes on, PEP 475, unless the handler raises).

Runs in: a proc; `look` on the thread that receives, pokes on a thread for the length of them. User
code that asks for such a descriptor itself (`loop.add_signal_handler`) takes this one away.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from monarch._src.net.local import interrupt
from monarch._src.net.local.interrupt import plain_signal

POKE = signal.SIGURG  # ignored by whoever has not asked for it
POKES_S = (0.01, 0.1, 1.0)


class NotedSignals:
    """Of one process, from `begin` on."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        """`nudge` has threads that wait in the runtime look around."""
        self._nudge = nudge
        self._handled = threading.Event()

    def begin(self) -> None:
        """Be told; `look` is to be called when `fd` can be read. On the main thread, once."""
        self.fd, self._note = os.pipe()  # for good, as the handler
        for fd in (self.fd, self._note):
            os.set_blocking(fd, False)
        if plain_signal.getsignal(POKE) == plain_signal.SIG_DFL:
            plain_signal.signal(POKE, _nothing)
        interrupt.on_handler = self._on_handler
        signal.set_wakeup_fd(self._note, warn_on_full_buffer=False)

    def look(self) -> None:
        """There is something to be read from `fd`, or was."""
        self._handled.clear()
        if signal.SIGINT not in self._read() or not interrupt.is_kept():
            return  # it was handled, or is the user's affair
        self._nudge()
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
