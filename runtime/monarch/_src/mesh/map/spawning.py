"""The actors that run maps and submitted functions on a ProcMesh.

Runs in: any process, on the calling thread. The modules that run a map are loaded by the first one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from monarch._src.actor.endpoint import actor_class
from monarch._src.actor.serialize import pack_value
from monarch._src.actor.work import WorkFuture
from monarch._src.mesh.actor_spawning import SpawnsActors
from monarch._src.mesh.constructor_payload import extra_payloads
from monarch._src.mesh.map.methods import MapsItems
from monarch._src.net.local.leader import FORKED
from monarch._src.net.local.waitable import RuntimeEnded

if TYPE_CHECKING:
    from monarch._src.mesh.actor_mesh import ActorMesh
    from monarch._src.mesh.map.driver import MapRun
    from monarch._src.mesh.map.task_run import Ranks, TaskRun
    from monarch._src.mesh.map.tasks import TaskStream
    from monarch._src.wire.frames import Payload


class SpawnsMaps(SpawnsActors, MapsItems):
    """Mixed into ProcMesh: the methods that `MapsItems` needs, by actors on the procs."""

    def _new_work(self, what: str, *, told: bool = False) -> WorkFuture[Any]:
        self._check_usable()
        if self._runtime.node.is_fork:
            raise RuntimeEnded(FORKED)
        what = f"{what} on {self._procs.ref.name}"
        return WorkFuture(self._runtime, what, self._procs.ref.uid, told=told)

    def _begin_map(self, method: str, *arguments: Any) -> MapRun | None:
        # Imported here: most programs do without.
        from monarch._src.mesh.map.arguments import checked, refused_function
        from monarch._src.mesh.map.driver import MapRun
        from monarch._src.mesh.map.state.schedule import LONGEST_S
        from monarch._src.mesh.map.worker import Map

        self._check_usable()
        run = self._runtime
        if run.node.is_fork:
            raise RuntimeEnded(FORKED)
        found = checked(method, *arguments)
        # A size that the caller has chosen is kept.
        longest_s = LONGEST_S if found.chunk_size is None else math.inf
        options = {"stops_at_error": found.on_error == "raise", "longest_s": longest_s}
        try:
            payload = pack_value((Map, (found.call,), options, *extra_payloads(self)), own=2)
        except Exception as error:
            refusal, cause = refused_function(method, found, error)
            raise refusal from cause
        if not found.items:
            return None
        actors = self._spawn_for_map("map", Map, payload)
        map_run = MapRun(run, actors, found)
        try:
            map_run.begin()
        except BaseException:  # also an interrupt: ranks must not keep items that no caller reads
            map_run.end(cancel=True)
            raise
        return map_run

    def _task_ranks(self) -> Ranks:
        return self._procs.ref.uid, tuple(self._region.ranks())

    def _begin_tasks(self, tasks: TaskStream) -> TaskRun:
        from monarch._src.mesh.map.task_run import TaskRun
        from monarch._src.mesh.map.task_worker import Tasks

        options: dict[str, Any] = {}
        payload = pack_value((Tasks, (), options, *extra_payloads(self)), own=2)
        return TaskRun(self._runtime, self._spawn_for_map("submit", Tasks, payload), tasks)

    def _spawn_for_map(self, name: str, kind: type, payload: Payload) -> ActorMesh:
        """Spawn actors on each rank that is alive."""
        dead = self._runtime.known.dead(self._procs.ref.uid)
        skip = {self._region.position(rank) for rank in dead if rank in self._region}
        if len(skip) == len(self._region):
            gone = [dead[rank] for rank in sorted(dead) if rank in self._region]
            raise self._refused(f"the {name} has not begun", gone, "spawn others")
        return self._spawn_on(name, actor_class(kind), payload, skip)
