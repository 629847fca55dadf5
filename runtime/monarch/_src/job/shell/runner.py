"""The actor that runs a shell in a pseudo-terminal.

Runs in: the one rank of the proc that `shell` spawns; a second thread reads the terminal.
Owns: the terminal, and the session of processes on it, until the shell has ended or the call is
cancelled.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.actor.ports import Channel, Port, PortReceiver, unheeded
from monarch._src.job.command_runner import BY_SIGNAL, GRACE_S
from monarch._src.job.shell.channel import (
    Data,
    Ended,
    HungUp,
    Message,
    Opened,
    Resized,
    Taken,
    WindowedSender,
)
from monarch._src.job.state.send_window import PIECE
from monarch._src.system.process import undebugged

# Takes its standard input as controlling terminal, and becomes the shell. In a process of its own,
# because the rank has threads, so it may not run Python code between fork and exec.
_BECOME_SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.execvp(sys.argv[1], sys.argv[1:])
"""


class ShellRunner(Actor):
    """Runs one shell."""

    __monarch_label__ = "the shell"

    @endpoint
    def run(
        self,
        shown: Port[Message],
        size: tuple[int, int],
        env: Mapping[str, str],
        workdir: str | None,
        words: Sequence[str] | None,
    ) -> int:
        """Run the shell to its end, and return its status; 128 + N if signal N ended it.

        Args:
            shown: where its output goes.
            size: rows and columns of the terminal.
            words: the command; None: the login shell of the user.

        Raises:
            OSError: there is no terminal to be had, or no such directory.
        """
        variables = {**os.environ, **env}
        command = list(words) if words is not None else [_login_shell(variables)]
        master, slave = os.openpty()
        try:
            _resize(master, *size)
            try:
                process = subprocess.Popen(
                    undebugged([sys.executable, "-I", "-S", "-c", _BECOME_SHELL, *command]),
                    env=variables, cwd=workdir, stdin=slave, stdout=slave, stderr=slave,
                    start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(slave)
            typed, receiver = Channel[Message].open()
            unheeded(shown).send(Opened(typed))
            _Terminal(master, process, shown, typed).serve(receiver)
            status = process.wait()
        finally:
            os.close(master)
        return status if status >= 0 else BY_SIGNAL - status


class _Terminal:
    """The near end of a pseudo-terminal, and the process on its far end."""

    def __init__(
        self,
        master: int,
        process: subprocess.Popen[bytes],
        shown: Port[Message],
        typed: Port[Message],
    ) -> None:
        self._master = master
        self._process = process
        self._sender = WindowedSender(shown)
        self._taken = unheeded(shown)
        self._typed = unheeded(typed)
        self._reader = threading.Thread(target=self._read, name="reads-a-terminal", daemon=True)

    def serve(self, receiver: PortReceiver[Message]) -> None:
        """Write the input to the terminal, until its far end is closed."""
        self._reader.start()
        try:
            while not isinstance(message := receiver.recv().get(), Ended):
                self._on_message(message)
        except BaseException:
            self._end()
            raise
        finally:
            self._sender.close()
            self._reader.join()

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Data):
            view = memoryview(message.data)
            with suppress(OSError):  # the far end was closed; `Ended` follows
                while view:
                    view = view[os.write(self._master, view) :]
            self._taken.send(Taken(len(message.data)))
        elif isinstance(message, Taken):
            self._sender.on_taken(message.written)
        elif isinstance(message, Resized):
            with suppress(OSError):
                _resize(self._master, message.rows, message.columns)
        elif isinstance(message, HungUp):
            self._end()

    def _read(self) -> None:
        """Send the output of the far end. Runs in the second thread."""
        try:
            # Linux tells the end by EIO, others by an empty read.
            while data := os.read(self._master, PIECE):
                if not self._sender.send(data):
                    break
        except OSError:
            pass
        self._typed.send(Ended())

    def _end(self) -> None:
        """End the shell as a terminal that is closed does, by force if that is not enough."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
                return


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _login_shell(env: Mapping[str, str]) -> str:
    found = env.get("SHELL")
    if not found:
        with suppress(KeyError):  # a user without an entry, as in some containers
            found = pwd.getpwuid(os.getuid()).pw_shell
    return found or "/bin/sh"
