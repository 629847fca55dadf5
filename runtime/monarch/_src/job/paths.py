"""Paths of job records, by name, and of the keys of jobs.

Runs in: any process. Not in the runtime directory, which is removed at the last logout of its
user: a job outlives that, and could not be ended without its record.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from monarch._src.job.launchers import local_workers
from monarch._src.net.session_directory import check_private

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


def jobs_directory() -> Path:
    """The directory of this user's jobs; made, with mode 0700, if it does not exist.

    Raises:
        PermissionError: other users could enter it.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    found = Path(state).expanduser() / "monarch" / "jobs"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(found)
    return found


def new() -> Path:
    """Make a directory in it for the files of one job."""
    return Path(tempfile.mkdtemp(prefix=local_workers.PREFIX, dir=jobs_directory()))


def job_path(name: str) -> Path:
    """The path of the record of a job, for `state`, `dump` and `job_load`.

    Raises:
        ValueError: the name has other characters than letters, digits, `_`, `.` and `-`.
    """
    if not _is_name(name):
        raise ValueError(f"{name!r} cannot name a job; use letters, digits, _, . and -")
    return jobs_directory() / name


def job_names() -> list[str]:
    """The names of all jobs of this user that have a record by name."""
    found = (path for path in jobs_directory().iterdir() if path.is_file())
    return sorted(path.name for path in found if _is_name(path.name))


def _is_name(name: str) -> bool:
    return _NAME.match(name) is not None and not name.startswith(local_workers.PREFIX)
