"""The options of a worker host, its report when it has started, and the command that runs it.

Runs in: the process that starts a worker, and the worker itself (`programs.worker`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from monarch._src.system.main_programs import WORKER, command
from monarch._src.system.process import CHILD_VARIABLE

JOB_PREFIX = "mjob-"
"""Of directories of jobs, and of sockets of workers; not that of session directories, which are
swept."""


class WorkerOptions(msgspec.Struct, frozen=True):
    """How to serve. `ca`, `private_key` and `audit` are paths; `ca` may be `TRUST_ALL`, or empty.

    `report` and `lifeline` are descriptors, or -1: the first is told a `Report`, the end of the
    second ends the worker. `cwd`: where its ranks are, in place of where their client is.
    `grace_s`: how long ranks may take to end after a SIGTERM to the worker; 0: their time for
    clean-up. `tells_ranks`: whether the worker hands SIGTERM on to ranks that handle it; a
    scheduler may signal all processes itself.
    """

    address: str
    ca: str
    private_key: str | None = None
    audit: str | None = None
    report: int = -1
    lifeline: int = -1
    cwd: str = ""
    grace_s: float = 0.0
    tells_ranks: bool = True


class Report(msgspec.Struct, frozen=True):
    """How it has begun: where it listens, and how others reach it; or why it does not.

    `kind` is the class of the exception that says so. `site`: the name by which it answers.
    """

    listening: str = ""
    others: list[str] = []
    no_others: str = ""  # why other hosts cannot reach it
    problem: str = ""
    kind: str = ""
    site: str = ""

    def as_text(self) -> str:
        """Where it listens, for people: two lines."""
        others = ", ".join(self.others) or f"no address: {self.no_others}"
        return f"listening at {self.listening}\nothers reach it at {others}\n"


def worker_command(options: WorkerOptions, directory: Path) -> tuple[list[str], Mapping[str, str]]:
    """The command for a worker in that session directory, which it removes at its end."""
    arguments = [str(directory), msgspec.json.encode(options).decode()]
    env = {**os.environ, CHILD_VARIABLE: str(directory)}
    env.setdefault("OMP_NUM_THREADS", "1")
    return command(WORKER, arguments), env
