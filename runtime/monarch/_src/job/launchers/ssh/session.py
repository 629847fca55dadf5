"""One ssh connection to a host of a job, and the conversation with the program there.

Runs in: clients. Owns: the process of the user's own `ssh`, and a thread that reads its output.
Invariants: the arguments of ssh hold the name of the host, options and the path of an interpreter,
and no more; ssh never prompts; a silent host ends the connection.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from monarch._src.errors import JobError
from monarch._src.job.launchers.remote import remote_program, remote_shell
from monarch._src.job.launchers.remote.remote_program import Problem
from monarch._src.job.launchers.remote.remote_shell import Arrived

# No terminal, no prompt, and no shared connection that would outlive this ssh and hold its pipes.
OPTIONS = (
    "-T", "-o", "BatchMode=yes", "-o", "ControlMaster=no", "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3",
)  # fmt: skip
FAREWELL_S = 5.0  # between the end of ssh's output and the end of its process
T = TypeVar("T", bound=msgspec.Struct)


class Conversation:
    """A conversation with the program on one host, by the process of one ssh."""

    def __init__(
        self, ssh: Sequence[str], destination: Sequence[str], host: str, python: str,
        connect_s: float,
    ) -> None:  # fmt: skip
        """Args:
        ssh: the program, with its own options. destination: options for the host, and the host.
        host: its name in errors. connect_s: how long connecting may take.

        Raises:
            JobError: there is no such program.
        """
        self.host, self._python = host, python
        self._again = " ".join([*ssh, "-o", "BatchMode=yes", *destination, "true"])
        timeout = ("-o", f"ConnectTimeout={max(1, int(connect_s))}")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        try:
            self._process = subprocess.Popen(
                [*ssh, *OPTIONS, *timeout, *destination, remote_shell.command(python)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                start_new_session=True,  # an interrupt of the notebook must not reach it
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            raise JobError(
                f"{ssh[0]} cannot be run ({error.strerror}); install an OpenSSH client, or give "
                "ssh= where it is"
            ) from None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="reads-an-ssh", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(remote_program.ANSWER):
                self._lines.put(line[len(remote_program.ANSWER) :])
        self._lines.put(b"")

    def send(self, said: bytes) -> None:
        """Write to the program there. If it has ended, the next `answer` says so."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(said)
            self._process.stdin.flush()

    def check_interpreter(self, until: float) -> None:
        """Wait for the interpreter there, and check it. Raises as `answer`."""
        arrived = self._next(Arrived, until)
        problem = remote_shell.arrived_problem(self.host, arrived)
        if problem:
            raise JobError(problem)

    def answer(self, kind: type[T], until: float) -> T:
        """The next answer from there.

        Raises:
            JobError: the answer reports a problem, there is none in time, or ssh has ended.
        """
        return self._next(kind, until)

    def _next(self, kind: type[T], until: float) -> T:
        try:
            line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise JobError(
                f"{self.host} has not answered in time; `{self._again}` shows whether it can"
            ) from None
        if not line:
            raise JobError(self._why_ended())
        found: dict[str, Any] = msgspec.json.decode(line)
        if "text" in found and kind is not Arrived:
            raise JobError(f"{msgspec.convert(found, Problem).text} (on {self.host})")
        return msgspec.convert(found, kind)

    def _why_ended(self) -> str:
        try:
            status = self._process.wait(timeout=FAREWELL_S)
        except subprocess.TimeoutExpired:  # the program there has closed its output, but goes on
            self._process.kill()
            status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").splitlines()
        return remote_shell.status_problem(self.host, self._python, status, said, self._again)

    def hang_up(self) -> None:
        """Close the input of the program there, which then ends a worker that was not kept."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()

    def end(self, until: float) -> None:
        """Wait until the program there has ended, but no longer than that; then end ssh."""
        assert self._process.stdout is not None
        self.hang_up()
        try:
            self._process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # the host is cut off; its sshd will close the input of the program there
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()
            self._errors.close()
