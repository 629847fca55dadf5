"""The process of a host agent: a child of this client, or the agent it attached to.

Runs in: a client, any thread. Owns nothing of the agent's, but reaps a child, so that it leaves no
zombie.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress

from monarch._src.system import process_table
from monarch._src.system.process import TERMINATED, pidfd


class AgentProcess:
    """One host agent. `child` is None if another client has started it."""

    def __init__(self, pid: int, began: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._entry = process_table.Entry(pid, 0, 0, "", began)
        self._child = child

    def descriptor(self) -> int | None:
        """A new descriptor that becomes readable when the agent ends; None if there is none."""
        fd = pidfd(self.pid)
        if fd is not None and self._child is None and not process_table.lives(self._entry):
            os.close(fd)  # another process has this pid now
            return None
        return fd

    def has_ended(self) -> bool:
        """Whether the agent has ended. Does not block."""
        if self._child is None or not hasattr(os, "waitid"):  # as on macOS before Python 3.13
            # `poll` returns None for a child that another thread is waiting for at this moment.
            polled = self._child is not None and self._child.poll() is not None
            return polled or not process_table.lives(self._entry)
        if self._child.returncode is not None:
            return True
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, how) is not None
        except ChildProcessError:
            return True

    def end_text(self) -> str:
        """How the agent ended, for people. Blocks until it has."""
        if self._child is None:
            return f"its process (pid {self.pid}) has ended"
        status = self._child.wait()
        text = f"its process (pid {self.pid}) ended with status {status}"
        if status in (TERMINATED, -signal.SIGTERM):
            text += ", after a SIGTERM (`monarch kill` sends one)"
        return text

    def wait(self, timeout_s: float) -> bool:
        """Wait for the agent to end; False after `timeout_s` seconds."""
        if self._child is None:
            return not process_table.wait_ended([self._entry], timeout_s)
        try:
            self._child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL, and wait until the agent is gone."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        elif process_table.lives(self._entry):
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            process_table.wait_ended([self._entry], 1.0)

    def let_live(self) -> None:
        """Leave the agent running. A thread of its own reaps it if it is a child."""
        if self._child is not None:
            threading.Thread(target=self._child.wait, name="reaps-an-agent", daemon=True).start()
