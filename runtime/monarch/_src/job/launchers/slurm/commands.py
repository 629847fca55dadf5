"""The commands of Slurm, as the client runs them.

Runs in: clients, on a thread that may block. Owns nothing.
Invariants: an interrupt while sbatch runs loses no job: the job that it made is cancelled.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

import msgspec

from monarch._src.errors import JobError
from monarch._src.job.launchers.slurm.state.queue import (
    FORMAT,
    Phase,
    QueueEntry,
    parsed,
    refused,
)

ANSWERS_S = 90.0  # Slurm's own bound for an answer of its controller is 10 s, with some retries
ENDS_S = 120.0  # to end a job; KillWait is 30 s usually
EVERY_S = 0.2
_KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT"})


def submit(options: Sequence[str], script: bytes, name: str) -> str:
    """Submit a batch job of that name. Returns its number.

    Raises:
        JobError: Slurm refused it, or there is no sbatch here.
    """
    process = _started(["sbatch", *options], stdin=subprocess.PIPE)
    try:
        out, errors = process.communicate(script, timeout=ANSWERS_S)
    except BaseException:
        _cancel_submitted(process, name)
        raise
    if process.returncode:
        raise JobError(refused(errors.decode(errors="replace")))
    return _number(out)


def _cancel_submitted(process: subprocess.Popen[bytes], name: str) -> None:
    """Cancel the job that a running sbatch makes. It has a session of its own, so it goes on."""
    try:
        out, _ = process.communicate(timeout=ANSWERS_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode == 0:
        cancel(_number(out), name)


def _number(out: bytes) -> str:
    return out.decode().strip().splitlines()[-1].partition(";")[0]


def entry(job: str, name: str) -> QueueEntry | None:
    """The state of a job; None if Slurm does not know it any more.

    `name`: that of the job. One of another name is another job, of another cluster.

    Raises:
        JobError: Slurm does not answer.
    """
    status, out, errors = _run(
        [
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={job}",
            f"--name={name}",
            f"--format={FORMAT}",
        ]
    )
    if status == 0:
        found = parsed(out)
        if found is not None and found.state in ("COMPLETED", "FAILED") and _was_preempted(job):
            return msgspec.structs.replace(found, state="PREEMPTED")
        return found
    if "Invalid job id" in errors:
        return None
    raise JobError(f"squeue cannot tell the state of job {job}: {errors.strip()}")


def _was_preempted(job: str) -> bool:
    """Whether Slurm has begun to preempt a job, whose workers have then ended before Slurm did so.

    False for a Slurm that does not tell.
    """
    status, out, _ = _run(
        ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=PreemptTime:40"]
    )
    return status == 0 and out.strip() not in ("", "N/A")


def cancel(job: str, name: str) -> None:
    """End a job, if it has not ended. Returns when its nodes are free.

    Raises:
        JobError: Slurm does not answer, refuses, or the job does not end.
    """
    status, _, errors = _run(["scancel", f"--name={name}", job])
    if status and "Invalid job id" not in errors and "already" not in errors.lower():
        raise JobError(f"scancel cannot end job {job}: {errors.strip()}")
    until = time.monotonic() + ENDS_S
    while (found := entry(job, name)) is not None and found.phase is not Phase.ENDED:
        if time.monotonic() > until:
            raise JobError(
                f"Slurm job {job} is still {found.state} after scancel; kill() tries again"
            )
        time.sleep(EVERY_S)  # Slurm tells no client when a job ends, so squeue is asked again


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    process = _started(command, stdin=subprocess.DEVNULL)
    try:
        out, errors = process.communicate(timeout=ANSWERS_S)
    except subprocess.TimeoutExpired:
        raise JobError(f"{command[0]} has not answered in {ANSWERS_S:g} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return process.wait(), out.decode(errors="replace"), errors.decode(errors="replace")


def _started(command: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
    """A command, which neither an interrupt of the notebook nor a surrounding job affects."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name in _KEPT
    }
    try:
        return subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise JobError(
            f"{command[0]} cannot be run ({error.strerror}); run this on a login host of the "
            "cluster, or install Slurm's commands here (Debian: slurm-client)"
        ) from None
