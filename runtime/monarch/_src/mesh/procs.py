"""The state of one proc mesh in one process, which the mesh and all of its slices share."""

from __future__ import annotations

import time
from collections.abc import Callable

from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
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
