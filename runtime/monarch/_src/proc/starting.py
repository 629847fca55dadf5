"""What a host agent does to start a process and to end one, and what stands in the way.

Runs in: the host agent, on its one thread.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from monarch._src.core.host import StartProc
from monarch._src.core.ids import life_of
from monarch._src.proc.hardware import CUDA, nvidia_devices
from monarch._src.proc.spec import StartRank, Ties

T = TypeVar("T")
FDS_A_PROC = 3


def start_rank(start: StartProc, client: str, number: int) -> StartRank:
    """What the zygote is told to make the process of a rank; the client, and its number."""
    spec, here = start.spec, start.rank - start.spec.first
    env, command = _of_rank(spec.env, here) or {}, _of_rank(spec.commands, here)
    if spec.devices and CUDA not in os.environ and nvidia_devices() >= spec.count:
        env = {CUDA: str(here), **env}
    if command is not None and not command.program:
        command = replace(command, program=sys.executable)
    return StartRank(
        spec.mesh, start.rank, env, _of_rank(spec.affinity, here) or [], command,
        Ties(client, number, spec.owner, spec.owner_address), life_of(start.node),
    )  # fmt: skip


def _of_rank(options: list[T], here: int) -> T | None:
    """There is one for all, or one a rank of this host, or none."""
    return options[here if len(options) > 1 else 0] if options else None


def kill_group(pid: int) -> None:
    """SIGKILL a process and what it has started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def fd_reason(error: OSError) -> str:
    """Why a process cannot be made, where a descriptor could not be."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
        return no_descriptors()
    return f"{error.strerror}"


def no_descriptors() -> str:
    """That there are none left, and what to do."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"the host agent is out of file descriptors (its limit is {limit}, each proc takes "
        f"{FDS_A_PROC}); raise the hard limit (`ulimit -Hn`) or spawn fewer procs"
    )


def unlink(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)
