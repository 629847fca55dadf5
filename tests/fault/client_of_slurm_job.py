"""A client of a SlurmJob, told what to do line by line: `client_of_slurm_job.py OPTIONS`.

OPTIONS: the arguments of the job but its meshes, and the `path` of its record, as JSON. Says what
happens to it as JSON, a line each. On its input: `ask RANK OTHER`, have a rank call another one;
`wait`, call all ranks and wait for answers that never come; `state`, attach again; `kill`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from typing import Any

import monarch.actor
from monarch.actor import Actor, ProcMesh, SupervisionError, endpoint
from monarch.job import JobError, SlurmJob


class Teller(Actor):
    @endpoint
    def place(self) -> tuple[str, str]:
        return os.environ["SLURMD_NODENAME"], os.uname().nodename

    @endpoint
    def ask(self, other: Teller) -> tuple[str, str]:
        return other.place.call_one().get()

    @endpoint
    def wait(self) -> None:
        threading.Event().wait()


class Said(logging.Handler):
    """Warnings of jobs, as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        say(warning=record.getMessage())


def say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")  # whole, whichever thread


def attached(job: SlurmJob, path: str) -> ProcMesh | None:
    try:
        found = job.state(path).trainers.spawn_procs({"gpus": 1})
        found.initialized.get()
    except JobError as error:
        say(error=str(error))
        return None
    return found


def main() -> None:
    monarch.actor.unhandled_fault_hook = lambda failure: say(fault=str(failure))
    logging.getLogger("monarch.job").addHandler(Said())
    options = json.loads(sys.argv[1])
    path = options.pop("path")
    job = SlurmJob({"trainers": 2}, **options)
    procs = attached(job, path)
    if procs is None:
        return
    ranks: Any = procs.spawn("teller", Teller)
    places = list(ranks.place.call().get().values())
    say(places=places, job=job.slurm_job_id)
    for line in sys.stdin:
        word, *given = line.split()
        if word == "ask":
            one, other = (ranks.slice(hosts=int(rank)) for rank in given)
            say(asked=one.ask.call_one(other).get())
        elif word == "wait":
            call = ranks.wait.call()
            say(waits=True)
            try:
                call.get()
            except SupervisionError as error:
                failure = error.failures[0]
                say(failed=str(error), kind=failure.kind, on=failure.host)
        elif word == "state":
            if attached(job, path) is not None:
                say(attached=job.slurm_job_id)
        else:
            job.kill()
            say(killed=True)


if __name__ == "__main__":
    main()
