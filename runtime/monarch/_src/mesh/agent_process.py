"""The process of a host agent, as a client sees it: its child, or one that it has attached to.

Runs in: a client, any thread. Owns nothing of the agent's; waits for a child, so that no dead one
is left behind.
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
    """One host agent. `child` is None for one that another client has started."""

    def __init__(self, pid: int, began: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._entry = process_table.Entry(pid, 0, 0, "", began)
        self._child = child

    def descriptor(self) -> int | None:
        """A new descriptor that becomes readable when it ends; None where there is none."""
        fd = pidfd(self.pid)
        if fd is not None and self._child is None and not process_table.lives(self._entry):
            os.close(fd)  # of another process, which has its number now
            return None
        return fd

    def has_ended(self) -> bool:
        """Whether it has. Waits for nothing."""
        if self._child is None or not hasattr(os, "waitid"):  # as on macOS before Python 3.13
            # A child that another thread waits for at this moment is not polled: "still running".
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
        """How it has ended; waits until it has."""
        if self._child is None:
            return f"its process (pid {self.pid}) has ended"
        status = self._child.wait()
        text = f"its process (pid {self.pid}) ended with status {status}"
        if status in (TERMINATED, -signal.SIGTERM):
            text += ", since it was told to (SIGTERM, as `monarch kill` sends it)"
        return text

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False if it has not come in time."""
        if self._child is None:
            return not process_table.wait_ended([self._entry], timeout_s)
        try:
            self._child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        elif process_table.lives(self._entry):
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            process_table.wait_ended([self._entry], 1.0)

    def let_live(self) -> None:
        """It outlives our interest. A child is still waited for, on a thread of its own."""
        if self._child is not None:
            threading.Thread(target=self._child.wait, name="reaps-an-agent", daemon=True).start()
