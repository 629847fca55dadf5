"""Workers that a job has started on this machine: starts them, checks them, ends them.

Runs in: clients, and on a host of a job while its launcher is connected. Owns nothing: workers
outlive the program that has started them. They are identified by pid and start time, which are
unique together.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from monarch._src.net import session_directory as sessions
from monarch._src.session.workers.options import (
    JOB_PREFIX,
    Report,
    WorkerOptions,
    worker_command,
)
from monarch._src.system import process_table
from monarch._src.system.process import undebugged
from monarch._src.system.process_table import began_of

GRACE_S = 10.0  # a worker first ends its procs, whose actors may clean up
PREFIX = JOB_PREFIX


class WorkerRecord(msgspec.Struct, frozen=True):
    """One worker. `address` is where it listens; `began` is that of `table.Entry`.

    `session` is its session directory, which it removes as it ends, unless it is killed.
    """

    mesh: str
    index: int
    address: str
    pid: int
    began: str
    session: str

    def entry(self) -> process_table.Entry:
        """Its entry in the process table."""
        return process_table.Entry(self.pid, 0, 0, "", self.began)


class Starting:
    """A worker that is starting, detached from this process; its output goes to `log`."""

    def __init__(self, options: WorkerOptions, log: Path, env: Mapping[str, str]) -> None:
        """Args:
        env: added to the environment. `options.report` is set here.
        """
        self._log = log
        self._report, report_w = os.pipe()
        directory = sessions.make()
        try:
            options = msgspec.structs.replace(options, report=report_w)
            command, own = worker_command(options, directory)
            with open(log, "wb") as file:
                child = subprocess.Popen(
                    undebugged(command),
                    env={**own, **env},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    pass_fds=[fd for fd in (report_w, options.lifeline) if fd >= 0],
                )
        except BaseException:
            os.close(self._report)
            sessions.remove(directory)
            raise
        finally:
            os.close(report_w)
        self.pid, self.began, self.session = child.pid, began_of(child.pid), str(directory)
        # Reaps the worker, so that it is no zombie while this process lives.
        self._reaper = threading.Thread(target=child.wait, name="reaps-a-worker", daemon=True)
        self._reaper.start()

    def record(self, mesh: str, index: int, address: str) -> WorkerRecord:
        """The record of this worker."""
        return WorkerRecord(mesh, index, address, self.pid, self.began, self.session)

    def wait(self) -> Report:
        """Its report; if it has failed, with the end of its log. Blocks until it has reported."""
        with open(self._report, "rb", closefd=False) as reports:
            said = reports.readline()
        report = msgspec.json.decode(said, type=Report) if said else Report(problem="it has ended")
        if report.problem:
            lines = self._log.read_text(errors="replace").splitlines()
            more = f"; its log ends with: {lines[-1]}" if lines else ""
            report = msgspec.structs.replace(report, problem=report.problem + more)
        return report

    def wait_ended(self, timeout_s: float | None = None) -> None:
        """Return when the worker has ended, or after `timeout_s` seconds."""
        self._reaper.join(timeout_s)

    def close(self) -> None:
        """Stop listening to the worker, which goes on."""
        os.close(self._report)


def gone(workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """The workers that have ended."""
    return [one for one in workers if not process_table.lives(one.entry())]


def end(workers: Sequence[WorkerRecord]) -> None:
    """End workers: SIGTERM, then SIGKILL to those that remain. Blocks until all have ended."""
    entries = [one.entry() for one in workers if process_table.lives(one.entry())]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in entries:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(one.pid, number)
                os.kill(one.pid, signal.SIGCONT)  # a stopped process handles no signal
        entries = process_table.wait_ended(entries, GRACE_S)
        if not entries:
            break
    for one in workers:
        sessions.remove(Path(one.session))
