"""The proc meshes of this process: their state, which procs are up, and how the meshes end.

Runs in: any process that spawns or inherits procs; handlers of messages on the receiving thread.
Owns: the table of the meshes that this process owns, without slices of them and references.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime
from monarch._src.errors import MeshStoppedError, death_error
from monarch._src.events import MeshSpawned, bus
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.actor_mesh import Actors
from monarch._src.mesh.namespace.pushed_names import PushedNames
from monarch._src.mesh.returning_ranks import ReturningRanks
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.shape import Region


class Procs:
    """The state that all slices of one proc mesh share."""

    def __init__(
        self, ref: ProcsRef, region: Region, *, owned: bool, cleanup_s: float = 0.0
    ) -> None:
        self.ref = ref
        self.cleanup_s = cleanup_s  # how long stop() lets them clean up
        self.region = region
        self.owned = owned
        self.spawned_at = time.monotonic()
        self.stopped: str | None = None
        self.stop_future: Future[None] | None = None
        self.actors: dict[int, Actors] = {}
        self.ready: set[int] = set()
        # With a bootstrap function: the ranks where it has returned, and those where it raised.
        self.bootstrapped: set[int] | None = None
        self.failures: dict[int, RankFailure] = {}
        self.initialized: Future[bool] | None = None
        self.kept = False  # whether it outlives this client
        self.imports: tuple[str, ...] = ()  # the libraries that its processes are forked with
        self.on_forgotten: Callable[[], None] | None = None  # of the driver of its tensors
        self.returning: list[ReturningRanks] = []  # the ranks that are being restarted by request
        self.names = PushedNames()  # in the `__main__` of its ranks
        self.lock = GuardedLock()


class OwnedProcs:
    """A mesh of procs, as its owner has it: for the supervisor, and in the table of this module.

    `mesh` is the ProcMesh, of which this module cannot name the class.
    """

    def __init__(
        self,
        mesh: Any,
        procs: Procs,
        runtime: Runtime,
        stop: Callable[[str, float], Future[None]],
    ) -> None:
        """Args:
        stop: ends its processes, with a reason, and a time to clean up in seconds.
        """
        self.mesh = mesh
        self.procs = procs
        self.runtime = runtime
        self.name = procs.ref.name
        self._stop = stop

    def record(self, failures: Sequence[RankFailure]) -> None:
        """Some of its processes have failed, so `initialized` fails."""
        if self.procs.initialized is not None:
            self.procs.initialized.fail(death_error(failures))

    def describe_as_actor(self, failure: RankFailure, rank: int) -> RankFailure:
        """The failure to report for a failure of one of its processes: the same."""
        return failure

    def runs_on(self, procs: int, rank: int) -> bool:
        """False: a mesh of procs depends on hosts, not on procs."""
        return False

    def end(self, reason: str, grace_s: float) -> Future[None]:
        """Stop it, since its owner ends."""
        return self._stop(reason, min(grace_s, self.procs.cleanup_s))


_owned: dict[int, OwnedProcs] = {}


def remember(owned: OwnedProcs) -> None:
    """Record a mesh that was just requested or inherited."""
    uid = owned.procs.ref.uid
    _owned[uid] = owned
    bus.emit(MeshSpawned(f"{uid:x}", owned.name))


# Called when a mesh on workers that was kept is being stopped; set by `session.keep`.
on_kept_mesh_stopped: Callable[[], None] = lambda: None  # noqa: E731


def forget(procs: Procs) -> None:
    """Remove a mesh that is being stopped from the meshes of this process."""
    _owned.pop(procs.ref.uid, None)
    for returning in list(procs.returning):
        returning.end(
            MeshStoppedError(f"{procs.ref.name!r} was stopped while ranks of it restarted")
        )
    if procs.on_forgotten is not None:
        procs.on_forgotten()


def owned_procs() -> list[OwnedProcs]:
    """The proc meshes this process has spawned and not stopped, oldest first."""
    return list(_owned.values())


def end_meshes_of(run: Runtime, reason: str | None) -> None:
    """Mark the meshes of a session that has ended as stopped; None: they were lost before."""
    for owned in owned_procs():
        procs = owned.procs
        if owned.runtime is run:
            procs.stopped = procs.stopped or reason
            for actors in list(procs.actors.values()):
                actors.stopped = actors.stopped or reason
            forget(procs)


def pending_proc_count() -> int:
    """How many procs of these meshes are neither up nor known to be dead."""
    found = 0
    for owned in owned_procs():
        procs = owned.procs
        if len(procs.ready) < len(procs.region):
            gone = owned.runtime.known.dead(procs.ref.uid)
            found += sum(r not in procs.ready and r not in gone for r in procs.region.ranks())
    return found


def proc_ready(mesh: int, rank: int) -> None:
    """A proc of this process has connected. On the receiving thread."""
    found = _owned.get(mesh)
    if found is None:
        return
    procs = found.procs
    procs.ready.add(rank)
    if procs.bootstrapped is None:
        _settle_if_all(procs, procs.ready)


def proc_bootstrapped(mesh: int, rank: int, failure: RankFailure | None) -> None:
    """The bootstrap function of a proc of this process has ended. On the receiving thread."""
    found = _owned.get(mesh)
    if found is None:
        return
    procs = found.procs
    if failure is not None:
        procs.failures[rank] = failure
        if procs.initialized is not None:
            procs.initialized.fail(death_error([failure]))
    elif procs.bootstrapped is not None:
        procs.bootstrapped.add(rank)
        for returning in list(procs.returning):
            returning.on_bootstrapped(rank)
        _settle_if_all(procs, procs.bootstrapped)


def proc_back(mesh: int, rank: int, life: int) -> None:
    """A restarted proc is up. On the receiving thread."""
    found = _owned.get(mesh)
    for returning in [] if found is None else list(found.procs.returning):
        returning.on_up(rank, life)


def proc_restarting(mesh: int, rank: int) -> None:
    """A proc is being restarted. The failures on it do not apply to the next incarnation."""
    found = _owned.get(mesh)
    if found is None:
        return
    procs = found.procs
    procs.failures.pop(rank, None)
    for actors in list(procs.actors.values()):
        actors.failures.pop(rank, None)


def _settle_if_all(procs: Procs, ranks: set[int]) -> None:
    if procs.initialized is not None and len(ranks) == len(procs.region):
        procs.initialized.settle(lambda: True)
