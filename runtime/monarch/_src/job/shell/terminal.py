"""The terminal of the user: raw while a shell runs on a host, and as before afterwards.

Runs in: the client. Owns: the settings of the terminal, the handler of SIGWINCH, and a thread that
reads the keyboard, from `open` to `close`.
"""

from __future__ import annotations

import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from monarch._src.job.state.send_window import PIECE

SIZE = (24, 80)  # of a terminal that tells none
_END_OF_INPUT = b"\x04"  # Ctrl-D, for input that is a pipe or a file


class LocalTerminal:
    """Standard input and output, as a terminal of a remote program."""

    def __init__(self, stdin: TextIO, stdout: TextIO) -> None:
        """The terminal of this process, by the descriptors of its standard input and output.

        Raises:
            RuntimeError: this process has no such files, as in a notebook.
        """
        try:
            self._stdin, self._stdout = stdin.fileno(), stdout.fileno()
        except (OSError, ValueError, AttributeError):  # io.UnsupportedOperation is an OSError
            raise RuntimeError(
                "shell needs the standard input and output of a process, and this program has "
                "none, as in a notebook; run `monarch shell` in a terminal"
            ) from None
        self._stdout_text = stdout
        self._is_terminal = os.isatty(self._stdin)
        self._settings: list[Any] | None = None
        self._wake_r, self._wake_w = os.pipe()
        self._old_handler: Any = None
        self._reader: threading.Thread | None = None
        self._ending = False

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        for fd in (self._stdin, self._stdout):
            with suppress(OSError):
                found = os.get_terminal_size(fd)
                if found.lines and found.columns:
                    return found.lines, found.columns
        return SIZE

    def watch_size(self) -> None:
        """Have changes of the size reported to `open`. Only the main thread can; see `signal`."""
        if threading.current_thread() is threading.main_thread():
            self._old_handler = signal.signal(signal.SIGWINCH, self._on_signal)

    def open(
        self, on_typed: Callable[[bytes], object], on_resized: Callable[[tuple[int, int]], object]
    ) -> None:
        """Begin to read. The callbacks run in another thread."""
        self._stdout_text.flush()
        if self._is_terminal:
            self._settings = termios.tcgetattr(self._stdin)
            tty.setraw(self._stdin)
        self._reader = threading.Thread(
            target=self._read, args=(on_typed, on_resized), name="reads-the-keyboard", daemon=True
        )
        self._reader.start()

    def write(self, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._stdout, view) :]

    def stop_reading(self) -> None:
        """End the thread that reads. Later keys are left for the next reader."""
        self._ending = True
        os.write(self._wake_w, b"e")
        if self._reader is not None:
            self._reader.join()

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._old_handler is not None:
            signal.signal(signal.SIGWINCH, self._old_handler)
        if self._settings is not None:
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._settings)
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _on_signal(self, _number: int, _frame: object) -> None:
        os.write(self._wake_w, b"r")

    def _read(
        self, on_typed: Callable[[bytes], object], on_resized: Callable[[tuple[int, int]], object]
    ) -> None:
        inputs = [self._wake_r, self._stdin]
        while True:
            ready, _, _ = select.select(inputs, [], [])
            if self._wake_r in ready:
                os.read(self._wake_r, 4096)
                if self._ending:
                    return
                on_resized(self.size)
            if self._stdin in ready:
                try:
                    data = os.read(self._stdin, PIECE)
                except OSError:  # the terminal was closed
                    data = b""
                on_typed(data or _END_OF_INPUT)
                if not data:
                    inputs.remove(self._stdin)
