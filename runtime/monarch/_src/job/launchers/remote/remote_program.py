"""The program that a launcher runs on a host of its job, to start or end a worker there.

Runs in: a process on that host, on its main thread. `launchers.remote.remote_shell` has the shell
lines that start it. It reads requests from standard input, and answers on standard output.
Owns: a worker, until the launcher sends `KEEP`; if the input ends before that, it ends the worker.
As a task of a scheduler (`Serve`) it owns its worker until the end.
Files with keys, until the worker has read them. The rest of the job's directory is removed when the
worker is ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from monarch._src.job.launchers import local_workers
from monarch._src.job.launchers.local_workers import Starting, WorkerRecord
from monarch._src.net import session_directory as sessions
from monarch._src.net.hosts import keys
from monarch._src.net.hosts.keys import Secret
from monarch._src.net.state.addresses import parse_listening
from monarch._src.session.workers.options import Report, WorkerOptions
from monarch._src.system import process_table

ANSWER = b"monarch-answer "  # tells answers from the output of shells and profiles
KEEP = b"keep\n"
LOG = "worker.log"
# How long ranks may go on after the SIGTERM of a scheduler, which kills them much sooner.
RANKS_END_S = 3600.0
GOODBYE_S = 12.0  # for a worker to end in order; Slurm kills it after KillWait, 30 s usually
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)  # they end a `Serve`


class Start(msgspec.Struct, frozen=True):
    """Start a worker: where it listens, its keys by file name, its ranks' working directory."""

    address: str
    keys: dict[str, str]
    cwd: str

    def __repr__(self) -> str:
        return f"<Start at {self.address}>"


class Started(msgspec.Struct, frozen=True):
    """The worker listens: its port, and the addresses by which other hosts may reach it.

    `site`: the name by which it answers there.
    """

    pid: int
    began: str
    session: str
    directory: str
    port: int
    others: list[str]
    site: str


class EndWorker(msgspec.Struct, frozen=True):
    """End that worker, and remove its files."""

    pid: int
    began: str
    session: str
    directory: str


class Serve(msgspec.Struct, frozen=True):
    """Serve as a worker until this program is told to end, as a task of a scheduler.

    Every task reads the same request, and takes `addresses[index of the task]`, or the last one.
    Tasks of one host add the index on their host to a port that is not 0.
    """

    addresses: list[str]
    keys: dict[str, str]

    def __repr__(self) -> str:
        return f"<Serve at {', '.join(self.addresses)}>"


class Done(msgspec.Struct, frozen=True):
    """The last request is done."""


class Problem(msgspec.Struct, frozen=True):
    """The last request has failed."""

    text: str


def main(call: str) -> int:
    """Carry out the request on the next line; returns the exit status."""
    said = _line()
    calls: dict[str, Callable[[bytes], None]] = {"start": _start, "end": _end, "serve": _serve}
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
        _answer(_started(starting, directory, report))
        kept = _line() == KEEP
    finally:
        if not kept:
            if starting is not None:
                local_workers.end([starting.record("", 0, "")])
            shutil.rmtree(directory, ignore_errors=True)
    if kept:
        _answer(Done())


def _started(starting: Starting, directory: Path, report: Report) -> Started:
    port = int(report.listening.rpartition(":")[2])
    return Started(
        starting.pid, starting.began, starting.session, str(directory), port, report.others,
        report.site,
    )  # fmt: skip


def _serve(said: bytes) -> None:
    """Serve until a signal or the end of the worker. The worker also ends with this process."""
    asked = msgspec.json.decode(said, type=Serve)
    for number in _ENDS:
        signal.signal(number, _leave)
    # A signal between the making of the directory and the `try` would leave the directory behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    directory = Path(
        tempfile.mkdtemp(prefix=local_workers.PREFIX, dir=sessions.base_directory(logs=True))
    )
    lifeline_r, lifeline_w = os.pipe()
    starting: Starting | None = None
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
            own = directory / "keys"
            keys.install(own, {name: Secret(text.encode()) for name, text in asked.keys.items()})
            address = task_address(asked.addresses, os.environ)
            options = WorkerOptions(
                address, str(own), lifeline=lifeline_r, grace_s=RANKS_END_S, tells_ranks=False
            )
            starting = Starting(options, directory / LOG, {})
            os.close(lifeline_r)
            report = starting.wait()
            shutil.rmtree(own)
            if report.problem:
                raise OSError(f"the worker did not start: {report.problem}")
            _answer(_started(starting, directory, report))
            signal.signal(signal.SIGTERM, partial(_leave_to_worker, starting.record("", 0, "")))
            starting.wait_ended()
        finally:
            # After a worker that ended by itself, a signal must not cut the removal short.
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)
    finally:
        if starting is not None:
            # Slurm has signalled the worker too, and a second SIGTERM would end it before it has
            # said goodbye to its client.
            os.close(lifeline_w)
            starting.wait_ended(GOODBYE_S)
            local_workers.end([starting.record("", 0, "")])
            _copy_log(directory / LOG)
        shutil.rmtree(directory, ignore_errors=True)


def task_address(addresses: Sequence[str], env: Mapping[str, str]) -> str:
    """Where this task of Slurm listens, of the addresses of a `Serve`."""
    task, local = int(env.get("SLURM_PROCID", "0")), int(env.get("SLURM_LOCALID", "0"))
    listening = parse_listening(addresses[min(task, len(addresses) - 1)])
    bind = listening.bind
    if bind.port and local:
        bind = bind.with_port(bind.port + local)
    return str(listening.at(bind))


def _leave(_number: int, _frame: object) -> None:
    # A second signal does not interrupt the ending of the worker.
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(0)


def _leave_to_worker(worker: WorkerRecord, _number: int, _frame: object) -> None:
    """On the SIGTERM of a scheduler: the worker ends once its ranks have ended."""
    if process_table.lives(worker.entry()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)  # it may have got none


def _copy_log(log: Path) -> None:
    """Write the log of the worker to this program's output, which the scheduler keeps."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.flush()


def _end(said: bytes) -> None:
    asked = msgspec.json.decode(said, type=EndWorker)
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
