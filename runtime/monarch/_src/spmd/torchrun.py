"""torchrun on a mesh: fresh processes on hosts, a script on each rank, and its end.

Runs in: the process that calls. Owns: the procs of a run, from its begin to its end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any

from monarch._src.actor.background import returns_future
from monarch._src.actor.future import Future
from monarch._src.errors import ActorError, CollectiveError, SupervisionError, death_error
from monarch._src.mesh.host_mesh import HostMesh, this_host
from monarch._src.mesh.proc_mesh import ProcMesh
from monarch._src.spmd.actor import SPMDActor
from monarch._src.spmd.elastic_setup import serve_store
from monarch._src.spmd.process_group import is_on_one_host, watched_members
from monarch._src.spmd.torchrun_arguments import Launch, TorchrunArgumentError, parse_arguments

NAME, DIM = "torchrun", "ranks"
PRELOAD = ("torch", "torch.distributed")
GRACE_S = 1.0


def torchrun(
    arguments: Sequence[str],
    *,
    hosts: HostMesh | None = None,
    source: str | None = None,
    source_name: str = "<source>",
) -> None:
    """Run a script on ranks as torchrun does. Returns when all ranks have ended it.

    Each run has processes of its own, forked where torch is loaded already, so a second run starts
    at once. The output of ranks comes to this program, marked by rank. If a rank fails, the others
    are ended.

    Args:
        arguments: those of torchrun, as in `["--nproc-per-node", "4", "train.py", "--lr", "0.1"]`.
        hosts: the hosts to run on, such as those of a job; None: this host. `--nnodes` takes as
            many of them, or all of them if it is not given.
        source: text to run in place of a script; words after the options, or after `--`, are its
            arguments.
        source_name: the name of that text in tracebacks.

    Raises:
        ValueError: arguments that torchrun does not take, or that have no effect here; more nodes
            than there are.
        FileNotFoundError: there is no such script.
        ModuleNotFoundError: torch is not installed, here or on a rank.
        OSError: the port is taken.
        ActorError: the script raised, or exited with a status other than 0.
        SupervisionError: a rank has died.
    """
    launch = parse_arguments(arguments, script=None if source is None else source_name)
    run(launch, this_host() if hosts is None else hosts, source)


def run(launch: Launch, hosts: HostMesh, source: str | None = None) -> None:
    """Run a script on fresh processes of these hosts. See `torchrun`."""
    hosts = _as_many(launch, hosts)
    if source is None:
        _check_script(launch, hosts)
    procs = hosts.spawn_procs(
        {DIM: launch.ranks_per_node}, name=NAME, preload=PRELOAD, env=launch.env
    )
    try:
        run_on(procs, launch, source)
    except BaseException:
        procs.kill("the run has failed").get()
        raise
    procs.stop("the run has ended").get()


def run_on(procs: ProcMesh, launch: Launch, source: str | None = None) -> None:
    """Run a script on these processes. Raises as `torchrun` does."""
    actors: Any = procs.spawn(NAME, SPMDActor, is_on_one_host(procs))
    host, port = _prepare(procs, actors, launch).get()
    words = list(launch.command)
    # Called on this thread, so that the output of the ranks belongs to the caller's cell.
    if source is not None:
        answers = actors.run_source.stream(host, port, source, words, launch.env)
    elif launch.python:
        answers = actors.main.stream(host, port, words, launch.env)
    else:
        answers = actors.execute.stream(host, port, words, launch.env)
    _wait(list(answers))


@returns_future
async def _prepare(procs: ProcMesh, actors: Any, launch: Launch) -> tuple[str, int]:
    await watched_members(procs, anew=True)
    return await serve_store(actors, launch.master_addr, launch.master_port, None)


def _wait(answers: Sequence[Future[Any]]) -> None:
    """Wait for the answers, in the order in which they come; raise the failures of all ranks.

    After the first failure the others have `GRACE_S` to fail too. Ranks whose collective was ended
    by it are not told of, unless there are no others.
    """
    errors: list[ActorError | SupervisionError] = []
    deadline = inf
    for answer in answers:
        try:
            answer.get(None if deadline == inf else max(0.0, deadline - monotonic()))
        except (ActorError, SupervisionError) as error:
            errors.append(error)
            deadline = min(deadline, monotonic() + GRACE_S)
        except TimeoutError:
            break
    if errors:
        raise _merged(errors)


def _merged(errors: Sequence[ActorError | SupervisionError]) -> ActorError | SupervisionError:
    """The first of these errors, with the failures of those that are no consequence of others."""
    causes = [one for one in errors if not isinstance(one.exception, CollectiveError)] or errors
    first = causes[0]
    failures = [failure for one in causes for failure in one.failures]
    if isinstance(first, SupervisionError):
        return death_error(failures)
    return ActorError(first.exception, failures=failures)


def _as_many(launch: Launch, hosts: HostMesh) -> HostMesh:
    """As many of the hosts as the run has nodes."""
    nodes, there = launch.nodes, len(hosts)
    if nodes is None or nodes == there:
        return hosts
    if nodes > there:
        have = "there is 1 host" if there == 1 else f"there are {there} hosts"
        raise TorchrunArgumentError(
            f"--nnodes {nodes} does not fit: {have}. Give hosts of a job that has as many, or "
            f"--nproc-per-node {nodes * launch.ranks_per_node} for as many ranks here"
        )
    if len(hosts.extent.labels) != 1:
        raise TorchrunArgumentError(f"--nnodes {nodes} of {hosts!r}: give a slice of {nodes} hosts")
    return hosts.slice(**{hosts.extent.labels[0]: slice(0, nodes)})


def _check_script(launch: Launch, hosts: HostMesh) -> None:
    """Raise FileNotFoundError before processes start, if they start on this host."""
    command = launch.command
    if hosts.extent.labels or command[0] == "-m":  # other hosts look for it themselves
        return
    if launch.python and not os.path.isfile(command[0]):
        raise FileNotFoundError(f"there is no script {command[0]!r} in {os.getcwd()}")
    if not launch.python and shutil.which(command[0]) is None:
        raise FileNotFoundError(f"there is no program {command[0]!r} in {os.getcwd()} or PATH")
