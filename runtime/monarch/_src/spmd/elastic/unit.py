"""Units of an elastic training: a proc mesh with its actors, spawned on a thread of its own.

Runs in: the process of the `ElasticMesh`.
Owns: the proc mesh, from its spawn to `release`.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime
from monarch._src.errors import ActorError, SupervisionError
from monarch._src.failures.report import at_text
from monarch._src.mesh.meshes import ProcMesh

log = logging.getLogger("monarch.spmd")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class Unit:
    """A proc mesh with an actor of the user on each proc."""

    def __init__(self, number: int, slot: int, procs: ProcMesh, actors: Any) -> None:
        self.number = number
        self.slot = slot
        self.procs = procs
        self.actors = actors
        self.members: Any = None  # the `GroupMember`s, from the first group on
        self.uid = int(procs.uid, 16)
        self.size = len(procs._region)  # pyright: ignore[reportPrivateUsage]
        ownership = runtime().ownership
        # Deaths are expected here: they reach no owner, and end no program.
        for uid in (self.uid, actors._actors.uid):
            ownership.handle_failures(uid, lambda _failure: True)

    def watch(self, members: Any) -> None:
        """Use these group members from now on."""
        if members is not self.members:
            self.members = members
            uid = members._actors.uid
            runtime().ownership.handle_failures(uid, lambda _failure: True)

    def one(self, actors: Any, rank: int) -> Any:
        """The actor of one rank, of these actors."""
        return actors.slice(**dict(self.procs.extent.point_of_rank(rank)))

    def where(self, rank: int) -> str:
        """The rank as a user would write it."""
        return self.procs.name + at_text(dict(self.procs.extent.point_of_rank(rank)))

    def end_groups(self, why: str) -> None:
        """Tell all ranks that their collectives end."""
        if self.members is None:
            return
        for rank in range(self.size):
            try:
                # A call, since it is no failure if that rank ends before it.
                self.one(self.members, rank).on_groups_ended.call(why)
            except Exception as error:
                log.debug("rank %d of %s was not told: %s", rank, self.procs.name, error)

    def release(self) -> Future[None]:
        """Stop its procs."""
        return self.procs.stop("training goes on without them")


class GivenUnit:
    """Gives a unit that exists to the one slot of a training; see `UnitSpawner`."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    def begin(
        self,
        slot: int,
        _number: int,
        _attempts: int,
        done: Callable[[int, Unit | BaseException], None],
    ) -> None:
        """Give it."""
        done(slot, self._unit)

    def close(self) -> None:
        """Nothing is left to do."""


class UnitSpawner:
    """Spawns a unit for a slot, and tries again when that fails."""

    def __init__(
        self,
        spawn: Callable[[int], ProcMesh],
        name: str,
        cls: type[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._spawn = spawn
        self._actor = (name, cls, args, kwargs)
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()

    def begin(
        self,
        slot: int,
        number: int,
        attempts: int,
        done: Callable[[int, Unit | BaseException], None],
    ) -> None:
        """Spawn unit `number`; `done` gets it, or the last error, on the thread of the spawn."""
        context = contextvars.copy_context()

        def run() -> None:
            done(slot, context.run(self._try, slot, number, attempts))

        thread = threading.Thread(target=run, name="monarch-elastic-spawn", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Begin no further attempt, and wait for the spawns under way."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _try(self, slot: int, number: int, attempts: int) -> Unit | BaseException:
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, attempts + 1):
            try:
                return self._spawn_unit(slot, number)
            except BaseException as error:
                if attempt == attempts or self._closed.wait(pause_s):
                    return error
                log.warning("replica %d was not spawned, and is tried again: %s", slot, error)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError("attempts are 1 or more")

    def _spawn_unit(self, slot: int, number: int) -> Unit:
        name, cls, args, kwargs = self._actor
        procs: Any = self._spawn(slot)
        if not isinstance(procs, ProcMesh):
            raise TypeError(f"spawn({slot}) returns a ProcMesh, not a {type(procs).__name__}")
        try:
            actors: Any = procs.spawn(name, cls, *args, **kwargs)
            unit = Unit(number, slot, procs, actors)
            actors.initialized.get()
            return unit
        except (ActorError, SupervisionError, TypeError):
            procs.stop("its actors could not be spawned")
            raise
