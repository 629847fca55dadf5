"""The failures in the meshes of a host agent, and which of them a client has acknowledged.

Runs in: the host agent, on its one thread.
Owns: failures of actors, and failures that no actor of a proc could judge. The ends of procs belong
to `host.state.host`; this module records which of them a client has acknowledged.
Invariants: a failure is reported to each new client until one has acknowledged it, and never again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from monarch._src.failures.report import RankFailure
from monarch._src.wire.messages import ActorFailed, Heard, Message, ProcEnded


class FailureLog:
    """All failures of one host agent."""

    def __init__(self) -> None:
        # By actor mesh: its proc mesh, and the failures by rank in the actor mesh.
        self._failed: dict[int, tuple[int, dict[int, ActorFailed]]] = {}
        self._acknowledged: set[tuple[int, int, int]] = set()  # mesh or 0, actor or 0, rank
        # By mesh and rank: failures that no actor of that proc could judge, not acknowledged yet.
        self._passed_on: dict[tuple[int, int], ActorFailed] = {}

    def actor_failed(self, mesh: int, message: ActorFailed) -> None:
        """An actor on a proc of that mesh has failed."""
        self._failed.setdefault(message.actor, (mesh, {}))[1][message.rank] = message

    def passed_on(self, message: ActorFailed) -> None:
        """A proc reports a failure that none of its actors could judge."""
        self._passed_on[message.mesh, message.rank] = message

    def proc_ended(self, mesh: int, rank: int) -> None:
        """The process of that rank has ended, and no client has acknowledged it."""
        self._acknowledged.discard((mesh, 0, rank))

    def acknowledge(self, message: Heard) -> None:
        """A client acknowledges failures."""
        mesh = 0 if message.actor else message.mesh
        self._acknowledged.update((mesh, message.actor, rank) for rank in message.ranks)
        for rank in message.ranks:
            self._passed_on.pop((mesh, rank), None)

    def knows(self, actor: int) -> bool:
        """Whether any rank of that actor mesh has failed."""
        return actor in self._failed

    def forget_actors(self, actor: int) -> None:
        """That actor mesh has been stopped."""
        self._failed.pop(actor, None)
        self._acknowledged = {key for key in self._acknowledged if key[1] != actor}

    def forget_mesh(self, mesh: int) -> None:
        """That proc mesh has been freed."""
        for actor in [uid for uid, (where, _) in self._failed.items() if where == mesh]:
            self.forget_actors(actor)
        self._acknowledged = {key for key in self._acknowledged if key[0] != mesh}
        self._passed_on = {key: one for key, one in self._passed_on.items() if key[0] != mesh}

    def clear(self) -> None:
        """Forget every failure."""
        self._failed.clear()
        self._acknowledged.clear()
        self._passed_on.clear()

    # --- for the next client ----------------------------------------------------------------------

    def failures(self, actor: int, before: Iterable[RankFailure] = ()) -> list[RankFailure]:
        """The failures of an actor mesh, with those that were known `before`."""
        known = {failure.rank: failure for failure in before}
        if actor in self._failed:
            known |= {rank: one.failure for rank, one in self._failed[actor][1].items()}
        return list(known.values())

    def all_failures(self) -> list[tuple[int, list[RankFailure]]]:
        """The failures of each actor mesh that has any."""
        return [(actor, self.failures(actor)) for actor in self._failed]

    def ends(self, uid: int, ended: Sequence[ProcEnded]) -> list[Message]:
        """The ends of procs of a mesh; those that were acknowledged count as expected."""
        return [
            msgspec.structs.replace(
                one, expected=one.expected or (uid, 0, one.rank) in self._acknowledged
            )
            for one in ended
        ]

    def news(self) -> list[Message]:
        """Other failures that no client has acknowledged."""
        actors: list[Message] = [
            one
            for actor, (_, failed) in self._failed.items()
            for rank, one in failed.items()
            if (0, actor, rank) not in self._acknowledged
        ]
        return [*actors, *self._passed_on.values()]
