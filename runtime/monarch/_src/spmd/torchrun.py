"""torchrun on a mesh: fresh processes on hosts, a script on each rank, and its end.

Runs in: the process that calls. Owns: the procs of a run, from its begin to its end.

A run ends early if a rank fails or if this program is interrupted. As with torchrun, the ranks that
still run then get a signal, so that handlers and exit functions of the script can save their work,
and SIGKILL after a time (`--shutdown-timeout`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from monarch._src.actor.background import returns_future
from monarch._src.actor.future import Future
from monarch._src.actor.ports import Channel, PortReceiver
from monarch._src.actor.runtime import runtime
from monarch._src.errors import (
    ActorError,
    CollectiveError,
    RecoveryError,
    SupervisionError,
    death_error,
)
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.client import keeps_new_meshes
from monarch._src.mesh.meshes import HostMesh, ProcMesh, this_host
from monarch._src.mesh.restart_policy import LaterRestart
from monarch._src.net.local.interrupt import GuardedLock, uninterrupted
from monarch._src.spmd.actor import (
    MAX_RESTARTS,
    RESTART_COUNT,
    Script,
    elastic_variables,
    position_of,
)
from monarch._src.spmd.elastic.script_driver import ScriptDriver
from monarch._src.spmd.elastic.script_requests import Arrival
from monarch._src.spmd.elastic_setup import serve_store
from monarch._src.spmd.process_group import is_on_one_host, watched_members
from monarch._src.spmd.torchrun_arguments import Launch, TorchrunArgumentError, parse_arguments
from monarch._src.spmd.torchrun_ranks import Ranks
from monarch._src.system.ending_signals import SignalInterrupt

NAME, DIM = "torchrun", "ranks"
PRELOAD = ("torch", "torch.distributed")
ENDED = "the run has ended on all ranks; --max-restarts N begins it again after such an end"
LOST = (
    "the run has ended on all ranks, and a host is lost; kill() the job and apply it again for "
    "another, or run on a slice of those that are left"
)
_HOST_IS_LOST = ("host lost", "link lost", "out of reach")


def torchrun(
    arguments: Sequence[str],
    *,
    hosts: HostMesh | None = None,
    source: str | None = None,
    source_name: str = "<source>",
) -> None:
    """Run a script on ranks as torchrun does. Returns when all ranks have ended it.

    Each run has processes of its own, forked where torch is loaded already, so a second run starts
    at once. The output of ranks comes to this program, marked by rank. A script ends as in an
    interpreter of its own: threads that are no daemons are joined and exit functions run. If a rank
    fails, the others get SIGTERM, and SIGKILL after the shutdown timeout. An interrupt of this
    program is handed on to the ranks as SIGINT; a second one kills them.

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
        RecoveryError: a rank has died, and an `ElasticTraining` of the script cannot go on.
    """
    launch = parse_arguments(arguments, script=None if source is None else source_name)
    run(launch, this_host() if hosts is None else hosts, source)


class RunControl:
    """Ends a run from another thread. `name`: that of the meshes of the run."""

    def __init__(self, name: str = NAME) -> None:
        self.name = name
        self._lock = GuardedLock()
        self._interrupt: KeyboardInterrupt | None = None
        self._ranks: Ranks | None = None
        self._procs: ProcMesh | None = None

    def end(self, interrupt: KeyboardInterrupt | None) -> None:
        """End the run as if its thread had been interrupted so; None: as by SIGTERM."""
        with self._lock:
            if self._interrupt is not None:
                return
            self._interrupt = interrupt or SignalInterrupt(signal.SIGTERM)
            ranks = self._ranks
        if ranks is not None:
            ranks.interrupt(self._interrupt)

    def kill(self) -> None:
        """Kill the ranks that still run; the run then ends at once."""
        with self._lock:
            procs = self._procs
        if procs is not None:
            procs.kill("the run was interrupted").get()

    def on_procs(self, procs: ProcMesh) -> None:
        """An attempt begins on these procs. Raises the interrupt if the run was ended."""
        with self._lock:
            self._procs = procs
            if self._interrupt is not None:
                raise self._interrupt

    def on_ranks(self, ranks: Ranks | None) -> None:
        """The script runs on these ranks from here on; None: on no rank any more."""
        with self._lock:
            self._ranks = ranks
            interrupt = self._interrupt
        if ranks is not None and interrupt is not None:
            ranks.interrupt(interrupt)


def run(
    launch: Launch, hosts: HostMesh, source: str | None = None, *,
    control: RunControl | None = None,
) -> None:  # fmt: skip
    """Run a script on fresh processes of these hosts, again after a failure. See `torchrun`."""
    control = control or RunControl()
    hosts = _as_many(launch, hosts)
    if source is None:
        _check_script(launch, hosts)
    for attempt in range(launch.restarts + 1):
        try:
            _attempt(_with_attempt(launch, attempt), hosts, source, control)
        except (ActorError, SupervisionError, RecoveryError) as error:
            if attempt == launch.restarts:
                raise
            sys.stderr.write(
                f"{error}\nmonarch torchrun: restart {attempt + 1} of {launch.restarts}\n"
            )
        else:
            break


def _with_attempt(launch: Launch, attempt: int) -> Launch:
    """The launch with torch's variables about restarts."""
    restarts = {RESTART_COUNT: str(attempt), MAX_RESTARTS: str(launch.restarts)}
    return replace(launch, env={**launch.env, **restarts})


def _attempt(launch: Launch, hosts: HostMesh, source: str | None, control: RunControl) -> None:
    procs = hosts.spawn_procs(
        {DIM: launch.ranks_per_node}, name=control.name, preload=PRELOAD, env=launch.env,
        # A kept mesh has no restarts; a rank that dies ends its run then.
        restart=None if keeps_new_meshes() else LaterRestart(),
    )  # fmt: skip
    port, arrivals = Channel[Arrival].open()
    training: list[ScriptDriver] = []
    try:
        control.on_procs(procs)
        actors: Any = procs.spawn(NAME, Script, is_on_one_host(procs), True, port)
        _keep_failures_here(procs, actors)
        _run_on(procs, actors, launch, source, arrivals, training, control)
    except BaseException:
        procs.kill("the run has failed").get()
        raise
    else:
        procs.stop("the run has ended").get()
    finally:
        for each in training:
            each.join()


def _keep_failures_here(procs: ProcMesh, actors: Any) -> None:
    """Keep failures of these meshes from the fault hook: the error of the run tells of them."""
    ownership = runtime().ownership
    for uid in (int(procs.uid, 16), actors._actors.uid):
        ownership.handle_failures(uid, lambda _failure: True)


def _run_on(
    procs: ProcMesh, actors: Any, launch: Launch, source: str | None,
    arrivals: PortReceiver[Arrival], training: list[ScriptDriver], control: RunControl,
) -> None:  # fmt: skip
    """Run the script on these ranks. `training` gets the driver, which the caller joins."""
    host, port = _prepare(procs, actors, launch).get()
    begin_again = partial(_begin_again, procs, actors, launch, source, host, port)
    ranks: Ranks | None = None
    try:
        with uninterrupted():  # the script may run from here on, so an interrupt is handed on
            answers = begin_script(actors, launch, source, host, port)
            ranks = Ranks(procs, answers, arrivals, begin_again)
            training.append(ranks.training)
            control.on_ranks(ranks)
        try:
            errors = ranks.wait()
        except RecoveryError:
            ranks.end(signal.SIGTERM, launch.shutdown_s)
            raise
        if errors:
            ranks.end(signal.SIGTERM, launch.shutdown_s)
            if ranks.training.failure is not None:
                raise ranks.training.failure
            raise _merged(errors)
    except KeyboardInterrupt as interrupt:
        if ranks is not None:
            by_signal = isinstance(interrupt, SignalInterrupt)
            number = interrupt.number if by_signal else signal.SIGINT
            ranks.end(number, launch.shutdown_s if by_signal else launch.interrupt_s)
        raise
    finally:
        control.on_ranks(None)
        if ranks is not None:
            ranks.close()


def begin_script(
    actors: Any, launch: Launch, source: str | None, host: str, port: int
) -> list[Future[Any]]:
    """Call the script on all ranks; returns their answers, in the order in which they come.

    On the caller's thread, so that the output of the ranks belongs to the caller's cell.
    """
    words = list(launch.command)
    if source is not None:
        return list(actors.run_source.stream(host, port, source, words, launch.env))
    if launch.python:
        return list(actors.main.stream(host, port, words, launch.env))
    return list(actors.execute.stream(host, port, words, launch.env))


def _begin_again(
    procs: ProcMesh, actors: Any, launch: Launch, source: str | None, host: str, port: int,
    rank: int,
) -> tuple[list[Future[Any]], list[Future[Any]]]:  # fmt: skip
    """Call the script on a rank that was restarted.

    Rank 0 first serves the store again, at the address that the others have. Returns the answers
    to that, and those of the script.
    """
    point = procs.extent.point_of_rank(rank)
    one = actors.slice(**dict(point))
    served = list(one.get_host_port.stream(None, port)) if rank == 0 else []
    env = {**elastic_variables(position_of(point), host, port), **launch.env}
    return served, begin_script(one, replace(launch, env=env), source, host, port)


@returns_future
async def _prepare(procs: ProcMesh, actors: Any, launch: Launch) -> tuple[str, int]:
    members = await watched_members(procs, anew=True)
    runtime().ownership.handle_failures(members._actors.uid, lambda _failure: True)
    return await serve_store(actors, launch.master_addr, launch.master_port, None)


def _merged(errors: Sequence[ActorError | SupervisionError]) -> ActorError | SupervisionError:
    """The first of these errors, with the failures of those that are no consequence of others."""
    causes = [one for one in errors if not isinstance(one.exception, CollectiveError)] or errors
    first = causes[0]
    failures = [failure for one in causes for failure in one.failures]
    if isinstance(first, SupervisionError):
        error = death_error(failures)
        error.remedy = remedy_after(failures)
        return error
    return ActorError(first.exception, failures=failures)


def remedy_after(failures: Sequence[RankFailure]) -> str:
    """The advice after these deaths. A run that is begun again has the same hosts."""
    return LOST if any(one.kind in _HOST_IS_LOST for one in failures) else ENDED


def _as_many(launch: Launch, hosts: HostMesh) -> HostMesh:
    """As many of the hosts as the run has nodes."""
    there = len(hosts)
    nodes = there if launch.nodes is None else min(launch.nodes, there)
    if nodes < launch.least_nodes:
        have = "there is 1 host" if there == 1 else f"there are {there} hosts"
        raise TorchrunArgumentError(
            f"--nnodes {launch.least_nodes} does not fit: {have}. Give hosts of a job that has as "
            f"many, or --nproc-per-node {launch.least_nodes * launch.ranks_per_node} for as many "
            "ranks here"
        )
    if nodes == there:
        return hosts
    if len(hosts.extent.labels) != 1:
        raise TorchrunArgumentError(f"--nnodes {nodes} of {hosts!r}: give a slice of {nodes} hosts")
    return hosts.slice(**{hosts.extent.labels[0]: slice(0, nodes)})


def _check_script(launch: Launch, hosts: HostMesh) -> None:
    """Raise FileNotFoundError before processes start, if they start on this host."""
    command = launch.command
    if hosts.extent.labels or command[0] == "-m":  # other hosts look for it themselves
        return
    if launch.python and not os.path.exists(command[0]):
        raise FileNotFoundError(f"there is no script {command[0]!r} in {os.getcwd()}")
    if not launch.python and shutil.which(command[0]) is None:
        raise FileNotFoundError(f"there is no program {command[0]!r} in {os.getcwd()} or PATH")
