"""`restart` of a ProcMesh: start ranks again in their places, whatever the mesh was spawned with.

Runs in: the owner of the mesh. The checks run on the calling thread; the rest runs as a coroutine
on the runtime's own loop, so that it goes on if the caller does not wait.
Invariants: while a request is under way, failures of its ranks are kept from the owner: the error
of the request tells of them. A rank of a mesh without a policy that does not come up is ended
again, and is as dead as before.
"""

from __future__ import annotations

import contextlib
import signal
from abc import abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence

from monarch._src.actor.background import deferred
from monarch._src.actor.future import Future
from monarch._src.actor.inspect.agent_client import AgentGoneError
from monarch._src.actor.parts import parts
from monarch._src.actor.runtime import Runtime
from monarch._src.errors import SupervisionError
from monarch._src.failures.report import RankFailure, points_text
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.namespace.restarts import bind_again
from monarch._src.mesh.procs import Procs
from monarch._src.mesh.returning_ranks import ReturningRanks
from monarch._src.mesh.spawning import no_agent
from monarch._src.net.local.leader import FORKED
from monarch._src.net.local.waitable import RuntimeEnded
from monarch._src.shape import NDSlice, Region

_OUT_OF_REACH = ("host lost", "link lost", "out of reach")


class RestartsRanks:
    """Mixed into ProcMesh: restarts of its ranks by request."""

    _runtime: Runtime
    _procs: Procs
    _region: Region

    @abstractmethod
    def _check_usable(self) -> None:
        """Raise MeshStoppedError if the mesh was stopped."""

    def restart(self) -> Future[tuple[str, ...]]:
        """Start the process of each rank of this mesh or slice again, in its place. Begins at once.

        A rank that has died gets a new process. A rank that lives is stopped first, clean-up
        included. As with `spawn_procs(restart=...)`, bootstrap function and constructors run again
        with the same arguments, every handle goes on working, and state in memory is lost. Calls
        that were under way on a living rank raise RestartedError.

        Values that `push` and `scatter` have bound there are bound again, as they were then, and
        process groups of `init_process_group` are made again. The future is done when the processes
        are up, the constructors have run, and that is done too. Its value has a line for each thing
        that could not be made again, such as names that cells have bound, and values of more than
        64 MiB.

        The future fails with a SupervisionError if a rank does not come up; such a rank is dead,
        with the failure that it had before. Ranks that have come up stay up.

        Raises:
            ValueError: this is a reference that another process owns, or a mesh that is kept; or
                more than 64 MiB of constructor arguments of an actor were not kept.
            MeshStoppedError: the mesh was stopped.
            RuntimeError: a rank of it is being restarted by another call.
            SupervisionError: the host of a rank is lost.
        """
        self._check_usable()
        procs, run, ranks = self._procs, self._runtime, self._region.ranks()
        if run.node.is_fork:
            raise RuntimeEnded(FORKED)
        _check(run, procs, ranks)
        future = deferred(_restart(self, run, procs, ranks))
        future.on_done(lambda: None)  # begins it
        return future


def _check(run: Runtime, procs: Procs, ranks: Sequence[int]) -> None:
    """Refuse a restart that cannot succeed, before any process ends; raises as `restart` does."""
    ref = procs.ref
    name = ref.name
    if not procs.owned:
        raise ValueError(f"{name!r} was spawned elsewhere; only its owner may restart its ranks")
    if procs.kept:
        raise ValueError(
            f"{name!r} is kept, so its ranks are not restarted: the next client would not have the "
            "constructor arguments; stop it and spawn it again"
        )
    dead = run.known.dead(ref.uid)
    gone = [dead[rank] for rank in ranks if rank in dead and dead[rank].kind in _OUT_OF_REACH]
    if gone:
        raise SupervisionError(
            failures=gone, refusal="no rank is restarted", remedy="stop() these procs and spawn "
            "others on hosts that live",
        )  # fmt: skip
    large = {spawn.name: None for rank in ranks for spawn in run.routes.too_large(ref, rank)}
    if large:
        raise ValueError(
            f"{', '.join(large)}: constructor arguments of more than 64 MiB are not kept, so these "
            f"actors could not be made again; stop() them before the restart, and spawn them after "
            'it; or spawn the mesh with restart="on-failure", which keeps all arguments'
        )
    with procs.lock:
        under_way = {rank for one in procs.returning for rank in one.ranks}
    again = under_way.intersection(ranks)
    if again:
        raise RuntimeError(f"{_text(procs, again)} is being restarted already; wait for that")


def can_restart(mesh: RestartsRanks, ranks: Sequence[int]) -> bool:
    """Whether `restart` takes these ranks of the mesh, as far as this process knows."""
    procs, run = mesh._procs, mesh._runtime  # pyright: ignore[reportPrivateUsage]
    try:
        _check(run, procs, ranks)
    except (ValueError, RuntimeError):
        return False
    return procs.stopped is None


def _text(procs: Procs, ranks: Collection[int]) -> str:
    """`workers[gpus=3]`, or more ranks of one mesh."""
    extent, name = procs.ref.extent, procs.ref.name
    points = [(dict(extent.point_of_rank(rank)), name) for rank in sorted(ranks)]
    return f"{name}[{points_text(points)}]" if len(extent.labels) == 1 else points_text(points)


@contextlib.contextmanager
def _returning(run: Runtime, procs: Procs, ranks: Sequence[int]) -> Generator[ReturningRanks]:
    """News of these ranks, which are kept from the owner of the mesh."""
    bootstraps = procs.bootstrapped is not None
    returning = ReturningRanks(ranks, run.new_future(), bootstraps=bootstraps)
    handled = run.ownership.handle_failures
    ends = [handled(procs.ref.uid, returning.on_failed)]
    ends += [
        handled(uid, lambda failure: failure.rank in returning.ranks) for uid in list(procs.actors)
    ]
    with procs.lock:
        procs.returning.append(returning)
    try:
        yield returning
    finally:
        with procs.lock:
            procs.returning.remove(returning)
        for end in ends:
            end()


async def _restart(
    mesh: RestartsRanks, run: Runtime, procs: Procs, ranks: Sequence[int]
) -> tuple[str, ...]:
    uid = procs.ref.uid
    dead = dict(run.known.dead(uid))
    with _returning(run, procs, ranks) as returning:
        before = {rank: run.known.incarnation(uid, rank) for rank in ranks}
        run.routes.begin_restarts(procs.ref)
        lives = await _request(run, procs, ranks)
        returning.expect({rank: life for rank, life in lives.items() if life > before[rank]})
        await returning.done
        failures = dict(returning.failures)
        failures |= await _constructed(run, procs, [rank for rank in ranks if rank not in failures])
        if failures:
            if not procs.ref.restarts:  # else the policy decides
                await _end_again(run, procs, returning, failures, dead)
            raise SupervisionError(
                failures=list(failures.values()),
                refusal=f"{_text(procs, failures)} has not come back",
                remedy="find the cause, then restart() it once more",
            )
    _settle_initialized(run, procs)
    return (
        *await bind_again(mesh, procs, ranks),
        *await parts().remake_process_groups(mesh, ranks),
    )


async def _request(run: Runtime, procs: Procs, ranks: Sequence[int]) -> dict[int, int]:
    """Ask the agents; returns the next incarnation of each rank."""
    ref = procs.ref
    try:
        answers = await run.agent.restart_ranks(ref.uid, list(ranks), procs.cleanup_s)
    except AgentGoneError as error:
        raise SupervisionError(failures=[no_agent(ref)]) from error
    lives = {rank: life for answer in answers for rank, life in answer.lives}
    missing = [rank for rank in ranks if rank not in lives]
    if missing:
        problem = next((one.problem for one in answers if one.problem), "")
        raise SupervisionError(
            f"{_text(procs, missing)} cannot be restarted: "
            f"{problem or 'its host agent has not answered, since it is gone'}"
        )
    return lives


async def _constructed(run: Runtime, procs: Procs, ranks: Sequence[int]) -> dict[int, RankFailure]:
    """Wait for the constructors of all actors on these ranks; the first failure of each rank."""
    waits = [
        (rank, ActorMesh(run, actors, _one(rank)).initialized)
        for actors in list(procs.actors.values())
        if actors.stopped is None
        for rank in ranks
        if rank in actors.region
    ]
    failures: dict[int, RankFailure] = {}
    for rank, constructed in waits:
        try:
            await constructed
        except SupervisionError as error:
            if error.failures:  # else the actors were stopped meanwhile
                failures.setdefault(rank, error.failures[0])
    return failures


def _one(rank: int) -> Region:
    return Region((), NDSlice(offset=rank, sizes=(), strides=()))


async def _end_again(
    run: Runtime, procs: Procs, returning: ReturningRanks, failures: Mapping[int, RankFailure],
    dead: Mapping[int, RankFailure],
) -> None:  # fmt: skip
    """End the processes of ranks that have not come up; they are as dead as they were before."""
    uid = procs.ref.uid
    known = run.known
    living = [rank for rank in failures if rank not in known.dead(uid)]
    if living:
        ended: Future[None] = run.new_future()
        returning.expect_ends(living, ended)
        await run.agent.signal(uid, living, signal.SIGKILL, group=True)
        await ended
    for rank in failures:
        procs.failures.pop(rank, None)
        for actors in list(procs.actors.values()):
            actors.failures.pop(rank, None)
        known.mark_dead(uid, rank, dead.get(rank, failures[rank]))


def _settle_initialized(run: Runtime, procs: Procs) -> None:
    """`initialized` has failed with a death; it is done once no rank is dead any more."""
    initialized = procs.initialized
    if initialized is None or not initialized.done or procs.failures:
        return
    if initialized.exception() is not None and not run.known.dead(procs.ref.uid):
        procs.initialized = Future[bool].of(True)
