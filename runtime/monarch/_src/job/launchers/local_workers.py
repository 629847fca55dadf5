"""Workers that a job has started on this machine: their begin, whether they live, their end.

Runs in: clients, and on a host of a job for as long as its launcher is there. Owns nothing: workers
outlive the program that has started them, and are known by pid and start time, which no other
process has.
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
from monarch._src.session.worker_options import Report, WorkerOptions, worker_command
from monarch._src.system import process_table
from monarch._src.system.process import undebugged
from monarch._src.system.process_table import began_of

GRACE_S = 10.0  # a worker ends its procs first, which may clean up
PREFIX = "mjob-"  # of directories of jobs; not that of sessions, which are swept


class WorkerRecord(msgspec.Struct, frozen=True):
    """One worker. `address` is where it listens; `began` is that of `table.Entry`.

    `session` is the directory that it keeps, and removes as it ends, if it is not killed.
    """

    mesh: str
    index: int
    address: str
    pid: int
    began: str
    session: str

    def entry(self) -> process_table.Entry:
        """It, in the table of processes."""
        return process_table.Entry(self.pid, 0, 0, "", self.began)


class Starting:
    """A worker that begins, detached from this process; what it says goes to `log`."""

    def __init__(self, options: WorkerOptions, log: Path, env: Mapping[str, str]) -> None:
        """`env` is added to the environment; `options.report` is seen to here."""
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
                    pass_fds=(report_w,),
                )
        except BaseException:
            os.close(self._report)
            sessions.remove(directory)
            raise
        finally:
            os.close(report_w)
        self.pid, self.began, self.session = child.pid, began_of(child.pid), str(directory)
        # So that no dead one is left behind while this process lives.
        threading.Thread(target=child.wait, name="reaps-a-worker", daemon=True).start()

    def record(self, mesh: str, index: int, address: str) -> WorkerRecord:
        """What is written of it."""
        return WorkerRecord(mesh, index, address, self.pid, self.began, self.session)

    def wait(self) -> Report:
        """How it has begun, with the end of its log if it has not."""
        with open(self._report, "rb", closefd=False) as reports:
            said = reports.readline()
        report = msgspec.json.decode(said, type=Report) if said else Report(problem="it has ended")
        if report.problem:
            lines = self._log.read_text(errors="replace").splitlines()
            more = f"; its log ends with: {lines[-1]}" if lines else ""
            report = msgspec.structs.replace(report, problem=report.problem + more)
        return report

    def close(self) -> None:
        """Listen to it no more. It lives on."""
        os.close(self._report)


def gone(workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """Those that do not live any more."""
    return [one for one in workers if not process_table.lives(one.entry())]


def end(workers: Sequence[WorkerRecord]) -> None:
    """End them: SIGTERM, and what has not ended then, SIGKILL. Returns when they are gone."""
    entries = [one.entry() for one in workers if process_table.lives(one.entry())]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in entries:
            with suppress(ProcessLookupError):  # it was quicker
                os.kill(one.pid, number)
                os.kill(one.pid, signal.SIGCONT)  # one that is stopped would not hear
        entries = process_table.wait_ended(entries, GRACE_S)
        if not entries:
            break
    for one in workers:
        sessions.remove(Path(one.session))
