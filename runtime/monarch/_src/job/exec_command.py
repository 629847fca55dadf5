"""`exec_command`: run a command of the operating system on the hosts of a mesh.

Runs in: clients. Owns: the procs that run the command, until it has ended on all of them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from monarch._src.actor.background import returns_future
from monarch._src.actor.future import Future
from monarch._src.job.command_runner import CommandRunner
from monarch._src.mesh.meshes import HostMesh, ProcMesh
from monarch._src.shape import ValueMesh


def exec_command(
    host_mesh: HostMesh,
    cmd: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    workdir: str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    point: Mapping[str, int] | None = None,
    per_host: Mapping[str, int] | None = None,
) -> Future[int]:
    """Run a command on each host of a mesh. It starts at once.

    The output of each rank comes to this program, marked by rank, or into a file on its host. The
    command finds its place in `MONARCH_RANK_<DIM>` and `MONARCH_SIZE_<DIM>`, such as
    `MONARCH_RANK_HOSTS`. Its standard input is empty.

    Args:
        host_mesh: the hosts, or a slice of them.
        cmd: words, or a text that is split as a shell does. No shell runs it: for pipes and
            variables give `["bash", "-c", text]`.
        env: variables to add, or to replace.
        workdir: the directory to run in; by default that of the ranks.
        output_dir: a directory on each host. The output of rank N goes there, into `rank_N.log`.
        rank: run on this rank only, counted over hosts and `per_host`.
        point: run on the ranks with these coordinates only, such as `{"hosts": 1}`.
        per_host: run this often on each host, such as `{"gpus": 8}`.

    Returns:
        The highest exit status of all ranks: 127 if the command was not found, 128 + N if signal N
        ended it. A time-out of `get` leaves the command running. `monarch.observe.cancel_calls`
        and the stop button end it, with all that it has started.

    Raises:
        TypeError: an argument of another type. ValueError: no words; `rank` and `point` together.
        IndexError: there is no such rank or coordinate.
    """
    words = _words(cmd)
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"env has {name!r}: {value!r}; names and values are text")
    if rank is not None and point is not None:
        raise ValueError("give rank or point, not both")
    procs = host_mesh.spawn_procs(dict(per_host or {}), name="command")
    try:
        at = _point(procs, rank, point)
        runners = procs.spawn("command", CommandRunner)
        target = runners.slice(**at) if at else runners
        running = target.run.call(
            words, dict(env or {}), None if workdir is None else os.fspath(workdir),
            None if output_dir is None else os.fspath(output_dir),
        )  # fmt: skip
    except BaseException:
        procs.stop()
        raise
    status = _finish(procs, running)
    status.on_done(_nothing)  # so that the procs stop though nothing waits
    return status


@returns_future
async def _finish(procs: ProcMesh, running: Future[ValueMesh[int]]) -> int:
    try:
        statuses = await running
    finally:
        await procs.stop()
    return max(statuses.values())


def _nothing() -> None:
    """Wait for nothing."""


def _words(cmd: Any) -> list[str]:
    """The words of a command.

    Raises:
        TypeError: it is neither text nor a sequence of text. ValueError: it has no words.
    """
    words: list[Any]
    if isinstance(cmd, str):
        words = list[Any](shlex.split(cmd))
    elif isinstance(cmd, Sequence):
        words = list[Any](cmd)  # pyright: ignore[reportUnknownArgumentType]
    else:
        words = [cmd]
    if not all(isinstance(word, str) for word in words):
        raise TypeError(f"cmd={cmd!r}: give words, as in ['nvidia-smi', '-L'], or a text")
    if not words:
        raise ValueError("cmd has no words; name a program")
    return words


def _point(procs: ProcMesh, rank: int | None, point: Mapping[str, int] | None) -> dict[str, int]:
    if rank is None:
        return dict(point or {})
    extent = procs.extent
    if not 0 <= rank < extent.nelements:
        raise IndexError(f"rank={rank}: the command has {extent.nelements} ranks, from 0")
    return dict(extent.point_of_rank(rank))
