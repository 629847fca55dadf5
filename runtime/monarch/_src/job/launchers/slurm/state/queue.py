"""The state of a job in Slurm, the reason for it, and its meaning for a job that waits.

No I/O. The text form of `squeue` is read, not JSON, whose shape differs between versions of Slurm.
"""

from __future__ import annotations

import enum

import msgspec

FORMAT = "%T|%r|%N|%k"  # the comment comes last, since it may hold the separator


class Phase(enum.Enum):
    """The phase of a job of Slurm, by the nodes that it has."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"  # its nodes are not free yet
    ENDED = "ended"


class QueueEntry(msgspec.Struct, frozen=True):
    """A line of squeue. `nodes` is a host list such as `n[0-3]`; empty while it waits."""

    state: str
    reason: str = ""
    nodes: str = ""
    comment: str = ""

    @property
    def phase(self) -> Phase:
        """The present phase of the job."""
        if self.state in ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"):
            return Phase.RUNNING
        if self.state == "COMPLETING":
            return Phase.ENDING
        return Phase.ENDED if self.state in _ENDED else Phase.QUEUED


_ENDED = {
    "CANCELLED": "it was cancelled (scancel), by you or by an administrator",
    "COMPLETED": "its workers have ended",
    "FAILED": "its program failed",
    "TIMEOUT": "it has reached its time limit; give a longer time_limit",
    "DEADLINE": "it has reached its deadline; give a later one, or none",
    "PREEMPTED": (
        "it was preempted by a job of higher priority; apply it again, or give a partition or qos "
        "that is not preempted"
    ),
    "NODE_FAIL": "one of its nodes has failed; apply it again to get others",
    "BOOT_FAIL": "one of its nodes did not boot; apply it again to get others",
    "OUT_OF_MEMORY": "it has used more memory than it had; give more mem",
    "REVOKED": "another cluster runs it",
}

# Reasons of squeue for waits that would never end, each with the remedy.
_HOPELESS = {
    "AccountNotAllowed": "give an account= that may use this partition",
    "InvalidAccount": "give an account= of yours",
    "QOSNotAllowed": "give a qos= that may be used here",
    "InvalidQOS": "give a qos= of yours",
    "BadConstraints": "no node fits the options of slurm_args; ask for less",
    "PartitionConfig": "the partition has fewer nodes, or smaller ones; ask for less",
    "PartitionNodeLimit": "the partition gives fewer nodes to one job; ask for less",
    "PartitionTimeLimit": "the partition has a shorter limit; give a shorter time_limit",
    "DependencyNeverSatisfied": "the job that slurm_args name has failed",
    "JobHeldUser": "release it with `scontrol release`, or leave --hold out of slurm_args",
    "JobHeldAdmin": "an administrator holds it; ask them",
    "QOSMaxNodePerJobLimit": "the qos gives fewer nodes to one job; ask for less",
    "QOSMaxWallDurationPerJobLimit": "the qos has a shorter limit; give a shorter time_limit",
    "AssocMaxNodePerJobLimit": "the account gives fewer nodes to one job; ask for less",
    "AssocMaxWallDurationPerJobLimit": "give a shorter time_limit",
}

_REFUSALS = (
    ("account", "give an account= that may use this partition; `sacctmgr show assoc` lists yours"),
    ("qos", "give a qos= that may be used here; `sacctmgr show qos` lists them"),
    ("partition name", "`sinfo` lists the partitions"),
    ("partition", "`sinfo` lists the partitions, their nodes and limits; ask for less"),
    ("node count", "`sinfo` lists the partitions and their nodes; ask for less"),
    ("node configuration", "no node has that; `sinfo --Node --long` lists the nodes; ask for less"),
    ("time limit", "give a shorter time_limit; `sinfo` lists the limits"),
    ("unrecognized option", "sbatch does not know an option of slurm_args; leave it out"),
)


def parsed(output: str) -> QueueEntry | None:
    """The entry in the output of `squeue --noheader --format FORMAT`; None if there is none."""
    line = next((line for line in output.splitlines() if line.strip()), "")
    if not line:
        return None
    state, reason, nodes, comment = (*line.split("|", 3), "", "", "")[:4]
    empty = ("(null)", "None", "N/A")
    reason, nodes, comment = ("" if text in empty else text for text in (reason, nodes, comment))
    return QueueEntry(state.strip().upper(), reason, nodes, comment)


def progress(job: str, entry: QueueEntry) -> str:
    """The progress of a job that waits, in one line."""
    if entry.phase is Phase.RUNNING:
        return f"Slurm job {job}: running on {entry.nodes}; its workers are starting"
    why = f" ({entry.reason})" if entry.reason else ""
    return f"Slurm job {job}: {entry.state.lower().replace('_', ' ')}{why}"


def ended(job: str, entry: QueueEntry | None) -> str:
    """How a job has ended, with a remedy where there is one."""
    if entry is None:
        return f"Slurm does not know job {job} any more: it ended some time ago"
    why = _ENDED.get(entry.state) or f"it is {entry.state}"
    reason = f", reason {entry.reason}" if entry.reason else ""
    nodes = f" on {entry.nodes}" if entry.nodes else ""
    return f"Slurm job {job}{nodes} has ended ({entry.state}{reason}): {why}"


def hopeless(job: str, entry: QueueEntry) -> str:
    """Why the job will never run as it is, with the remedy; empty if it may."""
    if entry.phase is not Phase.QUEUED:
        return ""
    remedy = _HOPELESS.get(entry.reason)
    return "" if remedy is None else f"Slurm job {job} cannot run ({entry.reason}): {remedy}"


def refused(errors: str) -> str:
    """The error for a job that sbatch has refused, from its stderr."""
    lines = [line.partition("error: ")[2] or line for line in errors.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Try ")]
    said = "; ".join(dict.fromkeys(lines)) or "sbatch said nothing"
    remedies = [remedy for word, remedy in _REFUSALS if word in said.lower()]
    return f"Slurm refused the job: {said}" + (f"; {remedies[0]}" if remedies else "")
