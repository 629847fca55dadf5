"""ElasticMesh: actors that train together, and go on when some of them die.

Runs in: the process that makes it, a client or that of a sync actor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch._src.actor.endpoint import ActorClass, actor_class
from monarch._src.config import seconds
from monarch._src.errors import MeshStoppedError
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.spmd.elastic.actor import ElasticActor
from monarch._src.spmd.elastic.driver import ElasticDriver, Groups, Recovery
from monarch._src.spmd.elastic.state.rounds import Rounds
from monarch._src.spmd.elastic.step_reader import Hang
from monarch._src.spmd.elastic.unit import UnitSpawner
from monarch._src.spmd.group_plan import backend_names
from monarch._src.spmd.process_group import timeout_seconds

if TYPE_CHECKING:
    from datetime import timedelta


class ElasticMesh:
    """Actors that train together, some of which may die.

    The `restart` policy of a proc mesh brings its dead ranks back. Without a policy, or when the
    policy gives a rank up, `spawn` makes another mesh for the replica, and the other replicas go on
    meanwhile. Ranks that come back take the state from ranks that have it. All of this happens
    during `run`.
    """

    def __init__(
        self,
        spawn: Callable[[int], ProcMesh],
        Class: type[ElasticActor],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str = "trainer",
        replicas: int = 1,
        min_replicas: int = 1,
        sharded: bool = False,
        backend: str | None = None,
        timeout: float | timedelta | None = None,
        rejoin_within: float | str = "60s",
        step_within: float | str | None = None,
        at_most: int = 5,
    ) -> None:
        """Nothing is spawned before the first `run`.

        Args:
            spawn: a function that gets the number of a replica and spawns its proc mesh. Threads
                call it, at first and again for each replica that is lost.
            Class: the actor class.
            args, kwargs: of its constructor.
            name: of the actors.
            replicas: the number of proc meshes.
            min_replicas: training goes on with that many replicas, and waits for them otherwise.
            sharded: whether each rank of a replica has a part of the state, which the ranks of the
                same number in other replicas have too. By default every rank has all of the state.
            backend, timeout: of the process group, as for `ProcMesh.init_process_group`.
            rejoin_within: seconds, or text such as `"1m"`; a rank that has not come back by then is
                given up, and so is one that has not sent its state by then.
            step_within: seconds, or text; a rank that makes no step for so long while the endpoint
                runs, and waits for no other rank, counts as dead: it is killed, and its stacks are
                in `hangs`. A step is made when `step` is set. None: a rank may take any time.
            at_most: the maximal number of recoveries in a row that bring training no step forward.

        Raises:
            TypeError, ValueError: an argument that does not fit.
        """
        self._class = _checked_class(Class)
        _check_counts(replicas, min_replicas, at_most)
        if not callable(spawn):
            raise TypeError(f"spawn is a function that returns a ProcMesh, not {spawn!r}")
        if backend is not None:
            backend_names(backend)
        rounds = Rounds(
            slots=replicas, least=min_replicas, most=at_most, sharded=sharded,
            has_checkpoint=hasattr(Class, "load_checkpoint"),
        )  # fmt: skip
        spawner = UnitSpawner(spawn, name, Class, tuple(args), dict(kwargs or {}))
        groups = Groups(backend, timeout_seconds(timeout), seconds("rejoin_within", rejoin_within))
        limit_s = None if step_within is None else seconds("step_within", step_within)
        if limit_s == 0:
            raise ValueError(f"step_within={step_within!r}: give a time above 0, or None")
        self._driver = ElasticDriver(rounds, spawner, groups, limit_s)
        self._running = ""
        self._stopped = False

    @property
    def actors(self) -> list[Any]:
        """The actor mesh of each replica that is present; empty before the first `run`."""
        return self._driver.actors

    @property
    def recoveries(self) -> list[Recovery]:
        """All groups that were formed, the first one included."""
        return list(self._driver.recoveries)

    @property
    def hangs(self) -> list[Hang]:
        """The ranks that were killed as they made no step within `step_within`, oldest first."""
        return self._driver.hangs

    def run(self, endpoint: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Run an endpoint on all ranks until it has returned on each of them.

        After a death, all ranks get the same state and a new group. Then `run` calls the endpoint
        again on all of them, so the endpoint has to go on from `step`. A replica that comes back
        joins between two steps.

        Returns:
            The values of the endpoint by rank; after a recovery, those of the last call.

        Raises:
            ActorError: the endpoint has raised, and no rank has died. A later `run` goes on from
                the newest step.
            RecoveryError: training cannot go on.
            ValueError: there is no such endpoint. TypeError: the arguments do not fit it.
            RuntimeError: another `run` has not ended.
            MeshStoppedError: `stop` was called.
            Exception: that of `spawn` or of a constructor, for the first group.
        """
        method = self._class.endpoints.get(endpoint)
        if method is None:
            has = ", ".join(self._class.endpoints) or "none"
            raise ValueError(f"{self._class.name} has no endpoint {endpoint!r}; it has: {has}")
        method.check(self._class.name, args, kwargs)
        if self._stopped:
            raise MeshStoppedError("this elastic mesh has been stopped; make another")
        if self._running:
            raise RuntimeError(f"run({self._running!r}) has not ended yet; wait for it")
        self._running = endpoint
        try:
            return self._driver.run(endpoint, args, kwargs)
        finally:
            self._running = ""

    def stop(self) -> None:
        """Stop all procs, and wait for their end. Idempotent.

        Raises:
            RuntimeError: `run` has not ended.
        """
        if self._running:
            raise RuntimeError(f"run({self._running!r}) has not ended yet; interrupt it first")
        self._stopped = True
        self._driver.stop()

    def __enter__(self) -> ElasticMesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        rounds = self._driver.rounds
        return (
            f"<ElasticMesh of {self._class.name}: {len(rounds.world)} ranks, generation "
            f"{rounds.generation}>"
        )


def _checked_class(Class: Any) -> ActorClass:
    if not isinstance(Class, type) or not issubclass(Class, ElasticActor):
        raise TypeError(f"the class derives from monarch.spmd.ElasticActor; {Class!r} does not")
    missing = [name for name in ("state_dict", "load_state_dict") if not hasattr(Class, name)]
    if missing:
        raise TypeError(f"{Class.__name__} has no {' and no '.join(missing)}(); define it")
    found = actor_class(Class)
    if found.is_async:
        raise ValueError(f"the endpoints of {found.name} are `async def`; make them plain `def`")
    return found


def _check_counts(replicas: Any, min_replicas: Any, at_most: Any) -> None:
    counts = {"replicas": replicas, "min_replicas": min_replicas, "at_most": at_most}
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"{name}={count!r}: give a whole number")
        if count < 1:
            raise ValueError(f"{name}={count}: give 1 or more")
    if min_replicas > replicas:
        raise ValueError(f"min_replicas={min_replicas} of {replicas} replicas: give fewer")
