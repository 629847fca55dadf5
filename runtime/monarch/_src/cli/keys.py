"""`monarch keys`: make the key pairs of a job and list them by role. No command prints a key."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from monarch._src.cli.columns import columns
from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role, fingerprint

_MEANT_FOR = {
    Role.WORKER: "hosts that serve the job",
    Role.OWNER: "clients, which may spawn, call and stop, and so run any code there",
    Role.OBSERVER: "read-only tools such as `monarch ps --at`",
}


def run_make(directory: str, job: str) -> int:
    """Make the key pairs of a new job in `directory`."""
    try:
        allowed = keys.make(directory, job)
    except OSError as error:
        print(f"monarch keys: {_error_text(error)}", file=sys.stderr)
        return 1
    print(f"made the keys of job {allowed.job} in {directory}")
    rows = [(f"  {keys.PUBLIC}", "every host and client of the job")]
    rows += [(f"  {keys.key_file(role)}", _MEANT_FOR[role]) for role in Role]
    print("\n".join(columns(rows)))
    print(f"Copy {keys.PUBLIC} and the one key file it needs to each host (`scp -p`, mode 0600).")
    return 0


def run_show(directory: str) -> int:
    """Print the keys of the job by role and fingerprint, and which pairs can be used here."""
    path = Path(os.path.expanduser(directory))
    public = path / keys.PUBLIC if path.is_dir() else path
    try:
        allowed = keys.load_public(public)
    except (OSError, ValueError) as error:
        print(f"monarch keys: {_error_text(error)}", file=sys.stderr)
        return 1
    rows = [("ROLE", "FINGERPRINT", "HERE")]
    for role in Role:
        found, problem = _usable(public, role)
        rows += [
            (role.value, fingerprint(key), "yes" if key == found else problem)
            for key in allowed.of(role)
        ]
    print(f"job {allowed.job}")
    print("\n".join(columns(rows, indent="  ")))
    return 0


def _usable(public: Path, role: Role) -> tuple[str, str]:
    """The public key of the usable pair of that role, or why no pair is usable."""
    try:
        return keys.load(public, None, role).public, "no"
    except FileNotFoundError:
        return "", "no"
    except (OSError, ValueError) as error:
        return "", f"no: {_error_text(error)}"


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
