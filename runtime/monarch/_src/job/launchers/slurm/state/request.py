"""The request of a SlurmJob to Slurm: the options of sbatch and srun, and the script.

No I/O. Invariants: no argument, environment or file name holds a key; keys are in the text of the
script, which Slurm keeps for its owner and its administrators alone.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

import msgspec

_TIME = re.compile(r"(\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(:\d\d){0,2}|UNLIMITED|INFINITE)\Z")
_END = "END_OF_MONARCH_INPUT"
# As `remote_shell` does: it reads exactly one line, the `repr` of a program, and runs that.
_BEGIN = 'exec(eval(open(0,"rb",0,closefd=False).readline()))'


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a job, as `SlurmJob` takes them."""

    python: str
    job_name: str
    log_dir: str
    slurm_args: list[str] = []
    ntasks_per_node: int = 1
    time_limit: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    exclusive: bool = True
    gpus_per_node: int | str | None = None
    gpus_per_task: int | str | None = None
    cpus_per_task: int | None = None
    mem: str | None = None

    @property
    def log(self) -> str:
        """The path of the log; `%j` stands for the number of the job."""
        return f"{self.log_dir}/{self.job_name}-%j.log"


def check(request: Request) -> None:
    """Check options of which sbatch would say less.

    Raises:
        ValueError: Slurm would not take an option; the text says how to write it.
    """
    limit = request.time_limit
    if limit is not None and not _TIME.match(limit):
        raise ValueError(
            f"time_limit={limit!r}: write HH:MM:SS, as in '01:30:00', days as in '2-00:00:00', or "
            "minutes as in '90'"
        )
    if not request.job_name or set("/,%\n\0") & set(request.job_name):
        raise ValueError(f"job_name={request.job_name!r}: give a name without / , % and line ends")
    for name in ("ntasks_per_node", "cpus_per_task"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: give 1 or more")
    for word in request.slurm_args:
        name = word.partition("=")[0]
        if name in _OURS:
            raise ValueError(f"slurm_args has {name}; {_OURS[name]}")


_OURS = {
    "--nodes": "the meshes say how many nodes there are",
    "-N": "the meshes say how many nodes there are",
    "--ntasks": "the meshes and ntasks_per_node say how many there are",
    "-n": "the meshes and ntasks_per_node say how many there are",
    "--array": "a job has several meshes instead",
    "-a": "a job has several meshes instead",
    "--output": "log_dir says where logs are",
    "-o": "log_dir says where logs are",
    "--job-name": "give job_name=",
    "-J": "give job_name=",
    "--wrap": "the job has a script of its own",
    "--parsable": "the job gives this option itself; leave it out",
}


def sbatch_options(request: Request, nodes: int) -> list[str]:
    """The options of sbatch for a job with that many nodes. Those of the user come last."""
    found = [
        "--parsable", f"--job-name={request.job_name}", f"--nodes={nodes}",
        f"--ntasks-per-node={request.ntasks_per_node}", f"--output={request.log}", "--no-requeue",
    ]  # fmt: skip
    if request.exclusive:
        found.append("--exclusive")
    given = {
        "time": request.time_limit, "partition": request.partition, "account": request.account,
        "qos": request.qos, "gpus-per-node": request.gpus_per_node,
        "gpus-per-task": request.gpus_per_task, "cpus-per-task": request.cpus_per_task,
        "mem": request.mem,
    }  # fmt: skip
    found += [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [*found, *request.slurm_args]


def srun_command(request: Request, tasks: int, command: str) -> list[str]:
    """The command that runs a shell command as each task. A task that ends leaves the others."""
    # srun does not take these over from the job in all versions.
    of_task = {"cpus-per-task": request.cpus_per_task, "gpus-per-task": request.gpus_per_task}
    given = [f"--{name}={value}" for name, value in of_task.items() if value is not None]
    return [
        "srun", "--label", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none",
        "--distribution=block", f"--ntasks={tasks}",
        f"--ntasks-per-node={request.ntasks_per_node}", *given, "sh", "-c", command,
    ]  # fmt: skip


def script(python: str, program: str, order: object) -> bytes:
    """The batch script: that program in that interpreter, with its order as JSON on its input.

    An interpreter that does not exist there is reported as the program reports its problems.
    """
    interpreter = _quoted(python)
    missing = json.dumps({"status": 127, "last": [f"{python}: no such program"]})
    lines = [
        "#!/bin/sh",
        f"if ! command -v {interpreter} >/dev/null 2>&1; then",
        '  scontrol update "JobId=$SLURM_JOB_ID" Comment='
        + shlex.quote(f"monarch-problem {missing}"),
        "  exit 127",
        "fi",
        f"exec {interpreter} -c {shlex.quote(_BEGIN)} <<'{_END}'",
        ascii(program),
        json.dumps(order),
        _END,
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _quoted(path: str) -> str:
    """A path for a shell. `~/` stands for the home directory there."""
    home, rest = ("~/", path[2:]) if path.startswith("~/") else ("", path)
    return f"{home}{shlex.quote(rest)}"


def shares(meshes: Sequence[tuple[str, int]], per_node: int) -> list[tuple[str, int, int]]:
    """The tasks of each mesh: its name, the index of its first task, and the one after its last."""
    found: list[tuple[str, int, int]] = []
    first = 0
    for name, nodes in meshes:
        found.append((name, first, first + nodes * per_node))
        first += nodes * per_node
    return found
