"""Programs in processes of their own: what a script, or its death, does to the rest.

Runs in: the process of pytest. The file of a program exists while it runs, so that its source can
be shown in tracebacks as for any script.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_S = 60.0


class Program:
    """A running script; its lines can be read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self._read = b""

    def line(self) -> str:
        """The next line of its stdout, without the newline."""
        out = self.process.stdout
        assert out is not None
        # By descriptor: a line that waits in the buffer of a stream makes no descriptor ready.
        while b"\n" not in self._read:
            ready, _, _ = select.select([out.fileno()], [], [], PATIENCE_S)
            assert ready, f"the program said nothing after {self._read!r}"
            more = os.read(out.fileno(), 65536)
            assert more, f"the program closed its stdout after {self._read!r}"
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def say(self, line: str) -> None:
        """A line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: the status, and what of stdout and stderr was not read yet."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, self._read.decode() + out, err


@contextmanager
def running(
    folder: Path, source: str, *arguments: str, command: Sequence[str] = ()
) -> Iterator[Program]:
    """Run a script; what is left of it at the end is killed."""
    folder.mkdir(exist_ok=True)
    script = folder / "program.py"
    script.write_text(textwrap.dedent(source))
    path = os.pathsep.join(p for p in sys.path if p)
    process = subprocess.Popen(
        [*(command or [sys.executable]), str(script), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with process:
        try:
            yield Program(process)
        finally:
            if process.poll() is None:
                process.kill()


def run(
    folder: Path, source: str, *arguments: str, command: Sequence[str] = ()
) -> tuple[int, str, str]:
    """Run a script to its end: status, stdout, stderr."""
    with running(folder, source, *arguments, command=command) as program:
        return program.end()


class Watched:
    """Processes, whose ends are waited for even though they are no children of ours."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._fds: dict[int, int] = {}
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended already
                self._fds[os.pidfd_open(pid)] = pid

    def wait_all_ended(self) -> None:
        """Return when every one has ended."""
        poller = select.poll()
        for fd in self._fds:
            poller.register(fd, select.POLLIN)
        left = dict(self._fds)
        while left:
            ended = poller.poll(PATIENCE_S * 1000)
            assert ended, f"still alive: {sorted(left.values())}"
            for fd, _ in ended:
                poller.unregister(fd)
                del left[fd]

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in self._fds:
            os.close(fd)


@contextmanager
def watched(pids: Sequence[int]) -> Iterator[Watched]:
    """Watch these processes."""
    found = Watched(pids)
    try:
        yield found
    finally:
        found.close()
