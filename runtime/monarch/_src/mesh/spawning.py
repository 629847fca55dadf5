"""A spawn of procs on hosts: its checks, its plan, and its request.

Runs in: any process that spawns, on the calling thread.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime, runtime
from monarch._src.config import AUTO, Settings
from monarch._src.errors import MeshStoppedError, SupervisionError
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.client import current_session, session_for_client
from monarch._src.mesh.client_imports import client_imports
from monarch._src.mesh.procs import Procs, pending_proc_count
from monarch._src.mesh.restart_policy import Restart
from monarch._src.mesh.spawn_options import (
    Launch,
    clients_path,
    is_this_python,
    requests_by_site,
    working_directory,
)
from monarch._src.shape import Extent, Region
from monarch._src.system.process import free_descriptors, raise_fd_limit
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import host_of_site
from monarch._src.wire.messages import Bootstrap, HostsPlace, SpawnProcs, StopMesh

NAMED_HOSTS = 3
SPARE_FDS = 16


@dataclass(frozen=True)
class SpawnArguments:
    """The arguments of a spawn that need no session to be checked."""

    name: str
    dims: Extent  # of the processes of one host
    region: Region  # of the mesh: the dims of its hosts, then `dims`
    function: Payload | None  # the pickled bootstrap function
    policy: Restart | None
    modules: Sequence[str] | Literal["auto"]  # to import before the fork
    settings: Settings


@dataclass(frozen=True)
class SpawnPlan:
    """A spawn on its hosts, with the options of each process. Nothing is registered or sent yet.

    `affinity`, `changes` and `commands` have an entry for each rank, or none.
    """

    asked: SpawnArguments
    run: Runtime
    sites: tuple[str, ...]
    elsewhere: bool  # some of the hosts are not this one
    own_devices: bool  # each process on a worker gets a device of its own, if there are enough
    affinity: list[list[int]]
    changes: list[dict[str, str | None]]  # of the environment
    commands: list[Launch | None]
    hosts: HostsPlace | None = None  # None: the host of this process

    def new_ref(self) -> ProcsRef:
        """A reference to the mesh, with a new uid."""
        run, region, policy = self.run, self.asked.region, self.asked.policy
        return ProcsRef(
            run.uids(), self.asked.name, tuple(region.labels), tuple(region.extent.sizes),
            run.directory, run.name, host_text(self.sites, run.host), (),
            policy.while_restarting if policy is not None else "", self.sites,
        )  # fmt: skip

    def request_for(self, ref: ProcsRef, *, keep: bool) -> SpawnProcs:
        """The request to the agents of all hosts. `keep`: the mesh outlives this client."""
        path = clients_path(all(c is None or is_this_python(c.program) for c in self.commands))
        asked = self.asked
        auto = asked.modules == AUTO
        return SpawnProcs(
            mesh=ref.uid,
            name=ref.name,
            labels=list(ref.labels),
            sizes=list(ref.sizes),
            owner=self.run.name,
            owner_address=self.run.node.address,
            env=self.changes,
            cwd=working_directory(),
            path=path,
            preload=[] if auto else list(asked.modules),
            startup_s=asked.settings.startup_s,
            cleanup_s=asked.settings.cleanup_s,
            commands=[None if c is None else c.command for c in self.commands],
            affinity=self.affinity,
            bootstrap=asked.function is not None,
            restart=None if asked.policy is None else asked.policy.rule(),
            while_restarting=ref.restarts,
            keep=keep,
            sites=list(self.sites),
            devices=self.own_devices,
            imports=client_imports(path, changed_here(self.elsewhere)) if auto else None,
            hosts=self.hosts,
        )


def send(plan: SpawnPlan, procs: Procs, spec: SpawnProcs, begin: Bootstrap) -> None:
    """Send the request for a registered mesh, and then its bootstrap function.

    Raises:
        SupervisionError: the agent of this host has ended.
    """
    _send_request(plan.run, procs, spec)
    if plan.asked.function is not None:
        _send_bootstrap(plan.run, procs, begin, plan.asked.function)


def _send_request(run: Runtime, procs: Procs, spec: SpawnProcs) -> None:
    """Send the request for a registered mesh to the agent of each of its hosts.

    A host that is lost fails the ranks there.

    Raises:
        SupervisionError: the agent of this host has ended.
    """
    ref = procs.ref
    for place, part in requests_by_site(spec):
        if run.routes.tell_agent_at(place, part):
            continue
        if place == run.site:
            raise SupervisionError(failures=[no_agent(ref)])
        why = "it was lost before it was asked for processes"
        run.terminations.on_site_lost(place, why, expected=False)
    if procs.stopped is not None:  # the owner ended in the meantime, and stopped the mesh
        for place in ref.places:
            run.routes.tell_agent_at(place, StopMesh(ref.uid, procs.stopped, procs.cleanup_s))


def _send_bootstrap(run: Runtime, procs: Procs, begin: Bootstrap, function: Payload) -> None:
    """Send the bootstrap function to each rank of a requested mesh, which runs it before any actor.

    A rank that is restarted gets it again.
    """
    run.routes.replay_on_restart(procs.ref, procs.region, begin, function)
    for rank in procs.region.ranks():
        run.node.send(procs.ref.node(rank), begin, function)


def environments(
    settings_here: Mapping[str, str], asked: Sequence[Mapping[str, str]], elsewhere: bool
) -> list[dict[str, str | None]]:
    """Changes to the agents' environment: one dict for all ranks, one for each, or none."""
    first = {**changed_here(elsewhere), **settings_here}
    return [{**first, **added} for added in asked or ([{}] if first else [])]


def changed_here(elsewhere: bool) -> dict[str, str | None]:
    """The changes of a client to the environment of its host's agent."""
    session = None if elsewhere else current_session()
    return {} if session is None else session.changed_environment()


def when_all_done(run: Runtime, futures: Sequence[Future[None]]) -> Future[None]:
    """A future that is done when all of these are."""
    done: Future[None] = run.new_future()

    def settle_if_done() -> None:
        if all(future.done for future in futures):
            done.settle(lambda: None)

    for future in futures:
        future.on_done(settle_if_done)
    settle_if_done()
    return done


def check_attached(run: Runtime, sites: Sequence[str]) -> None:
    """Raise MeshStoppedError if this client no longer has one of these hosts."""
    session = current_session()
    if run.proc_ref is not None or not sites:
        return
    held = session.sites if session is not None else None
    if held is None or not all(held.is_held(site) for site in sites):
        gone = [site for site in sites if held is None or not held.is_held(site)]
        names = ", ".join(host_of_site(site) for site in gone)
        raise MeshStoppedError(
            f"this process no longer has these hosts: {names} (released, shut down or lost); "
            "attach to them again by attach_to_workers"
        )


def no_agent(ref: ProcsRef) -> RankFailure:
    """The failure of procs whose host agent has ended before it was asked for them."""
    return RankFailure(
        ref.name, 0, {}, "", None, ref.host_of(0), None, "host lost", "",
        "the host agent has ended; the next this_host() starts a new one",
    )  # fmt: skip


def host_text(sites: Sequence[str], here: str) -> str:
    """The hosts in an error or a repr: their names, or their number; `here` without sites."""
    names = [host_of_site(site) for site in sites] or [here]
    return ", ".join(names) if len(names) <= NAMED_HOSTS else f"{len(names)} hosts"


def own_runtime() -> Runtime:
    """The runtime of this process. A client starts a session first if it has none."""
    session_for_client()
    return runtime()


def make_room_for(count: int) -> None:
    """Raise the limit of open files if that many new processes need it.

    Each process connects to this one, and each connection takes a descriptor.

    Raises:
        OSError: the hard limit is too low.
    """
    needed = count + pending_proc_count() + SPARE_FDS
    if free_descriptors() < needed:
        limit = raise_fd_limit()
        free = free_descriptors()
        if free < needed:
            raise OSError(
                errno.EMFILE,
                f"out of file descriptors: {count} new processes need one each here, and "
                f"{free} are free (its limit is {limit}); raise the hard limit "
                "(`ulimit -Hn`) or spawn fewer",
            )
