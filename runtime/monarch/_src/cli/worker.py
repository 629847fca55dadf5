"""`monarch worker`: make this host a worker, which serves one client at a time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from monarch._src.net import session_directory as sessions
from monarch._src.net.state.access import TRUST_ALL
from monarch._src.net.state.addresses import parse_listening
from monarch._src.session.workers.options import WorkerOptions, worker_command

LONGEST_GRACE_S = 86_400.0


def run(address: str, keys: str | None, key: str | None, audit: str | None, grace_s: float) -> int:
    """Replace this process by the worker; return 1 if that fails, otherwise never."""
    try:
        if not 0 <= grace_s <= LONGEST_GRACE_S:
            raise ValueError(
                f"--grace is a time of 0 to {LONGEST_GRACE_S:.0f} seconds, not {grace_s:g}"
            )
        options = WorkerOptions(
            str(parse_listening(address)), keys if keys == TRUST_ALL else _path(keys),
            _path(key) or None, _path(audit) or None, grace_s=grace_s,
        )  # fmt: skip
        command, env = worker_command(options, sessions.make())
        sys.stdout.flush()
        os.execve(command[0], command, env)
    except (OSError, ValueError) as error:
        print(f"monarch worker: {error}", file=sys.stderr)
    return 1


def _path(path: str | None) -> str:
    return "" if path is None else str(Path(path).expanduser().absolute())
