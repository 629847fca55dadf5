"""The program that a launcher runs on a host of its job, to start or end a worker there.

Runs in: a process on that host, on its main thread. `job.launchers.ssh.remote_shell` has the shell
lines that start it. It reads requests from standard input, and answers on standard output.
Owns: a worker, until the launcher sends `KEEP`; if the input ends before that, it ends the worker.
Files with keys, until the worker has read them. The rest of the job's directory is removed when the
worker is ended.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from monarch._src.job.launchers import local_workers
from monarch._src.job.launchers.local_workers import Starting, WorkerRecord
from monarch._src.net import session_directory as sessions
from monarch._src.net.hosts import keys
from monarch._src.net.hosts.keys import Secret
from monarch._src.session.worker_options import WorkerOptions

ANSWER = b"monarch-answer "  # tells answers from the output of shells and profiles
KEEP = b"keep\n"
LOG = "worker.log"


class Start(msgspec.Struct, frozen=True):
    """Start a worker: where it listens, its keys by file name, its ranks' working directory."""

    address: str
    keys: dict[str, str]
    cwd: str

    def __repr__(self) -> str:
        return f"<Start at {self.address}>"


class Started(msgspec.Struct, frozen=True):
    """The worker listens: its port, and the addresses by which other hosts may reach it."""

    pid: int
    began: str
    session: str
    directory: str
    port: int
    others: list[str]


class End(msgspec.Struct, frozen=True):
    """End that worker, and remove its files."""

    pid: int
    began: str
    session: str
    directory: str


class Done(msgspec.Struct, frozen=True):
    """The last request is done."""


class Problem(msgspec.Struct, frozen=True):
    """The last request has failed."""

    text: str


def main(call: str) -> int:
    """Carry out the request on the next line; returns the exit status."""
    said = _line()
    calls: dict[str, Callable[[bytes], None]] = {"start": _start, "end": _end}
    try:
        calls[call](said)
    except (OSError, ValueError, msgspec.MsgspecError) as error:  # their texts quote no input
        _answer(Problem(str(error)))
        return 1
    return 0


def _start(said: bytes) -> None:
    asked = msgspec.json.decode(said, type=Start)
    directory = Path(
        tempfile.mkdtemp(prefix=local_workers.PREFIX, dir=sessions.base_directory(logs=True))
    )
    starting: Starting | None = None
    kept = False
    try:
        own = directory / "keys"
        keys.install(own, {name: Secret(text.encode()) for name, text in asked.keys.items()})
        options = WorkerOptions(asked.address, str(own), cwd=asked.cwd)
        starting = Starting(options, directory / LOG, {})
        report = starting.wait()
        shutil.rmtree(own)
        if report.problem:
            _answer(Problem(f"the worker did not start: {report.problem}"))
            return
        port = int(report.listening.rpartition(":")[2])
        _answer(
            Started(
                starting.pid, starting.began, starting.session, str(directory), port, report.others
            )
        )
        kept = _line() == KEEP
    finally:
        if not kept:
            if starting is not None:
                local_workers.end([starting.record("", 0, "")])
            shutil.rmtree(directory, ignore_errors=True)
    if kept:
        _answer(Done())


def _end(said: bytes) -> None:
    asked = msgspec.json.decode(said, type=End)
    directory = Path(asked.directory)
    if not directory.name.startswith(local_workers.PREFIX):
        raise ValueError(f"{directory} is not a directory of a job")
    local_workers.end([WorkerRecord("", 0, "", asked.pid, asked.began, asked.session)])
    shutil.rmtree(directory, ignore_errors=True)
    _answer(Done())


def _line() -> bytes:
    # Unbuffered: the next lines may be for another program.
    with open(0, "rb", buffering=0, closefd=False) as lines:
        return lines.readline()


def _answer(said: Any) -> None:
    os.write(sys.stdout.fileno(), ANSWER + msgspec.json.encode(said) + b"\n")
