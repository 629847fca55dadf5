"""The actions of an owner: stop a session, kill the process of a rank.

Runs in: the admin server, on a worker thread. Signals reach processes of this user on this machine
only. A process is signalled through a descriptor that was opened before the check that it belongs
to the session, so a pid that was given to another process meanwhile is safe.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from monarch._src.session import reap
from monarch._src.session.directories import Session
from monarch._src.system import process_table


class ActionRefusedError(Exception):
    """The server cannot carry out the action; the text has the reason."""


def stop_session(session: Session, timeout_s: float) -> Sequence[str]:
    """End a session as `monarch kill` does; returns a report of lines.

    Raises:
        ActionRefusedError: the session could not be ended.
    """
    outcome = reap.end([session], timeout_s)
    if outcome.complaints:
        raise ActionRefusedError("; ".join(outcome.complaints))
    return outcome.done


def kill_proc(session: Session, pid: int) -> None:
    """Kill a process of a session with SIGKILL.

    Raises:
        ActionRefusedError: it has ended, or does not belong to the session.
    """
    agent = session.agent
    if agent is None:
        raise ActionRefusedError(f"the host agent of session {session.name} is gone")
    descriptor = _open(pid)
    try:
        below = {one.pid for one in process_table.descendants(agent.pid)}
        if pid not in below:
            raise ActionRefusedError(f"process {pid} does not belong to session {session.name}")
        if descriptor is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        raise ActionRefusedError(f"process {pid} has ended") from None
    except PermissionError:
        raise ActionRefusedError(f"process {pid} belongs to another user") from None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(pid: int) -> int | None:
    """A descriptor of the process; None where the system has none (macOS)."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise ActionRefusedError(f"process {pid} has ended") from None
