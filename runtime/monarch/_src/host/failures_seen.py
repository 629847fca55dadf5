"""What has failed in the meshes that a host agent keeps, and who has heard of it.

Runs in: a host agent, on its one thread, with either tenure. Owns: the failures of actors, and what
no actor of a proc could judge. Ends of procs are the host's (`host.state.host`); here is which of
them are no news.
Invariants: what failed is news until a client has said that it was heard, and never after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from monarch._src.failures.report import RankFailure
from monarch._src.wire.messages import ActorFailed, Heard, Message, ProcEnded


class FailureLog:
    """See the module's text."""

    def __init__(self) -> None:
        # By actor mesh: its proc mesh, and the failures by rank in the actor mesh.
        self._failed: dict[int, tuple[int, dict[int, ActorFailed]]] = {}
        self._heard: set[tuple[int, int, int]] = set()  # mesh or 0, actor or 0, rank
        # By mesh and rank: what no actor of that proc could judge, and nobody has heard of.
        self._passed_on: dict[tuple[int, int], ActorFailed] = {}

    def actor_failed(self, mesh: int, message: ActorFailed) -> None:
        """An actor on a proc of that mesh has failed."""
        self._failed.setdefault(message.actor, (mesh, {}))[1][message.rank] = message

    def passed_on(self, message: ActorFailed) -> None:
        """Something has failed that no actor of a proc could judge."""
        self._passed_on[message.mesh, message.rank] = message

    def proc_ended(self, mesh: int, rank: int) -> None:
        """Nobody has heard of this end yet."""
        self._heard.discard((mesh, 0, rank))

    def heard(self, message: Heard) -> None:
        """A client has."""
        mesh = 0 if message.actor else message.mesh
        self._heard.update((mesh, message.actor, rank) for rank in message.ranks)
        for rank in message.ranks:
            self._passed_on.pop((mesh, rank), None)

    def knows(self, actor: int) -> bool:
        """Whether anything of that actor mesh has failed."""
        return actor in self._failed

    def forget_actors(self, actor: int) -> None:
        """That actor mesh has been stopped."""
        self._failed.pop(actor, None)
        self._heard = {key for key in self._heard if key[1] != actor}

    def forget_mesh(self, mesh: int) -> None:
        """Nothing is left of that proc mesh."""
        for actor in [uid for uid, (where, _) in self._failed.items() if where == mesh]:
            self.forget_actors(actor)
        self._heard = {key for key in self._heard if key[0] != mesh}
        self._passed_on = {key: one for key, one in self._passed_on.items() if key[0] != mesh}

    def clear(self) -> None:
        """Nothing is kept any more."""
        self._failed.clear()
        self._heard.clear()
        self._passed_on.clear()

    # --- for the next client ----------------------------------------------------------------------

    def failures(self, actor: int, before: Iterable[RankFailure] = ()) -> list[RankFailure]:
        """Those of an actor mesh, heard of or not, and those that were known `before`."""
        known = {failure.rank: failure for failure in before}
        if actor in self._failed:
            known |= {rank: one.failure for rank, one in self._failed[actor][1].items()}
        return list(known.values())

    def all_failures(self) -> list[tuple[int, list[RankFailure]]]:
        """The same of each actor mesh of which anything has failed."""
        return [(actor, self.failures(actor)) for actor in self._failed]

    def ends(self, uid: int, ended: Sequence[ProcEnded]) -> list[Message]:
        """The ends of procs of a mesh, as the next client is to hear of them."""
        return [
            msgspec.structs.replace(one, expected=one.expected or (uid, 0, one.rank) in self._heard)
            for one in ended
        ]

    def news(self) -> list[Message]:
        """What else nobody has heard of."""
        actors: list[Message] = [
            one
            for actor, (_, failed) in self._failed.items()
            for rank, one in failed.items()
            if (0, actor, rank) not in self._heard
        ]
        return [*actors, *self._passed_on.values()]
