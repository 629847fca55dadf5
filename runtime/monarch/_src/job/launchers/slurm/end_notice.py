"""Says how a Slurm job has ended, while a client uses it.

Runs in: clients. Owns: a thread, from the failure of a rank until Slurm has said whether the job
has ended. Slurm kills ranks by SIGTERM, whether it cancels, preempts or times out their job, so
their own errors cannot say which.
Invariants: a process has one notice for each job, however many objects stand for the job. A notice
ends with the session in which the job is used.
"""

from __future__ import annotations

import logging
import threading
import time

from monarch._src.actor.runtime import runtime_or_none
from monarch._src.errors import JobError
from monarch._src.events import RankFailed, bus
from monarch._src.failures.report import RankFailure
from monarch._src.job.launchers.slurm import commands
from monarch._src.job.launchers.slurm.state.queue import Phase, ended

_SIGNALS = ("SIGTERM", "SIGKILL")
_LOST = ("host lost", "link lost", "out of reach")
log = logging.getLogger("monarch.job")
RUNS_S = 5.0  # a job that still runs after this has not ended by that failure
ENDING_S = 60.0  # to free the nodes; only then does Slurm say how the job has ended


class EndNotice:
    """Logs a warning if the job ends with its ranks."""

    def __init__(self, job: str, name: str) -> None:
        self._job, self._name = job, name
        self._session = runtime_or_none()
        self._lock = threading.Lock()
        self._asking = self._closed = False
        self._unsubscribe = bus.subscribe(RankFailed, self._on_rank_failed)

    @property
    def is_of_this_session(self) -> bool:
        """Whether the session in which the job is used has not ended."""
        return runtime_or_none() is self._session

    def close(self) -> None:
        """Say nothing from now on. Idempotent."""
        with self._lock:
            self._asking = self._closed = True
        self._unsubscribe()

    def _on_rank_failed(self, _event: RankFailed) -> None:
        if not self.is_of_this_session:
            self.close()
            return
        with self._lock:
            if self._asking:
                return
            self._asking = True
        threading.Thread(target=self._ask, name="asks-slurm", daemon=True).start()

    def _ask(self) -> None:
        if text := text_of_end(self._job, self._name):
            if not self._closed:
                log.warning("%s", text)
            return
        with self._lock:
            self._asking = self._closed  # the next failure asks again


def may_be_ended_by_slurm(failure: RankFailure) -> bool:
    """Whether a rank may have failed because Slurm has ended its job."""
    death = failure.death
    return death.signal_name in _SIGNALS if death is not None else failure.kind in _LOST


def text_of_end(job: str, name: str) -> str:
    """How a job has ended; empty if it has not within some seconds, or Slurm does not tell."""
    began = time.monotonic()
    try:
        while True:
            entry = commands.entry(job, name)
            if entry is None or entry.phase is Phase.ENDED:
                return ended(job, entry)
            bound = RUNS_S if entry.phase is Phase.RUNNING else ENDING_S
            if time.monotonic() - began > bound:
                return ""
            time.sleep(commands.EVERY_S)  # Slurm tells no client when the state changes
    except JobError as error:
        log.info("%s", error)
        return ""


_notices: dict[str, EndNotice] = {}  # by the number of the job
_changing = threading.Lock()


def begin_notice(job: str, name: str) -> None:
    """Give notice of the end of a job that this process uses. Idempotent."""
    with _changing:
        found = _notices.get(job)
        if found is not None and found.is_of_this_session:
            return
        if found is not None:
            found.close()
        _notices[job] = EndNotice(job, name)


def end_notice(job: str) -> None:
    """Give none from now on, as the job is killed. Idempotent."""
    with _changing:
        found = _notices.pop(job, None)
    if found is not None:
        found.close()
