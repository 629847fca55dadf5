"""Where jobs are found again: records by name, and the keys of those that have some.

Runs in: any process. Not in the runtime directory, which ends with the last login of its user: a
job outlives that, and without its record nobody knows what to end.
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
    """The directory of this user's jobs: of mode 0700, made if it is not there.

    Raises:
        PermissionError: others could enter it.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    found = Path(state).expanduser() / "monarch" / "jobs"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(found)
    return found


def new() -> Path:
    """A new one in it, for what belongs to one job and to nobody else."""
    return Path(tempfile.mkdtemp(prefix=local_workers.PREFIX, dir=jobs_directory()))


def job_path(name: str) -> Path:
    """Where the record of the job of that name is, for `state`, `dump` and `job_load`.

    Raises:
        ValueError: that is no name: letters, digits, `_`, `.` and `-`.
    """
    if not _is_name(name):
        raise ValueError(f"{name!r} is no name of a job; use letters, digits, _, . and -")
    return jobs_directory() / name


def job_names() -> list[str]:
    """The names of all jobs of this user that have one."""
    found = (path for path in jobs_directory().iterdir() if path.is_file())
    return sorted(path.name for path in found if _is_name(path.name))


def _is_name(name: str) -> bool:
    return _NAME.match(name) is not None and not name.startswith(local_workers.PREFIX)
