"""A terminal for a program: its keyboard, its screen as text, its size.

Runs in: the process of pytest, which has the near end; the program has the far end as its
controlling terminal, so keys such as Ctrl-C act as for a user.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tests.integration.programs import PATIENCE_S

# In a process of its own: the controlling terminal has to be taken between fork and exec.
_TAKE = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """The near end of a pseudo-terminal."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.process = process
        self.screen = ""  # all that was shown and not expected yet

    def type(self, text: str) -> None:
        """Press those keys."""
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the system signals the program."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until that is shown; what is before it is forgotten."""
        while (found := re.search(pattern, self.screen)) is None:
            more = self._read()
            assert more, f"the terminal was closed, and shows {self.screen!r}"
            self.screen += more
        self.screen = self.screen[found.end() :]
        return found

    def until(self, text: str) -> str:
        """Wait until that is shown, and return what is before it."""
        while text not in self.screen[-2 * len(text) - 65536 :]:
            more = self._read()
            assert more, f"the terminal was closed, and shows {self.screen[-1000:]!r}"
            self.screen += more
        shown, _, self.screen = self.screen.partition(text)
        return shown

    def is_raw(self) -> bool:
        """Whether keys reach the program as they are pressed, without echo."""
        flags = termios.tcgetattr(self._master)[3]
        return not flags & (termios.ICANON | termios.ECHO | termios.ISIG)

    def end(self) -> int:
        """Wait for the end of the program: its status."""
        while more := self._read():
            self.screen += more
        return self.process.wait(PATIENCE_S)

    def _read(self) -> str:
        ready, _, _ = select.select([self._master], [], [], PATIENCE_S)
        assert ready, f"nothing more is shown after {self.screen!r}"
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # Linux: no process has the far end
            return ""


@contextmanager
def terminal(words: Sequence[str], *, rows: int = 30, columns: int = 100) -> Generator[Terminal]:
    """Run a Python program with those arguments in a terminal; what is left of it is killed."""
    master, slave = os.openpty()
    path = os.pathsep.join(p for p in sys.path if p)
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, sys.executable, *words],
            env={**os.environ, "PYTHONPATH": path, "TERM": "xterm", "PS1": "ready> "},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(slave)
    with process:
        try:
            yield Terminal(master, process)
        finally:
            os.close(master)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
