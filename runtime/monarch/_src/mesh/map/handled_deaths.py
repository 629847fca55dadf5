"""Keeps the deaths that a map copes with from the owner of the mesh.

Runs in: the calling process. The receiving thread asks, and the thread that drives the map ends it.
"""

from __future__ import annotations

from collections.abc import Container

from monarch._src.actor.supervise.ownership import OwnedMeshes
from monarch._src.failures.report import RankFailure


class HandledDeaths:
    """The failures of the ranks of one map, from construction until `close`.

    The map gives the items of dead ranks to others, so their owner is not told. `note_lost` and
    the checks run on the receiving thread, the rest on the thread that drives the map.
    """

    def __init__(
        self, ownership: OwnedMeshes, procs: int, ranks: Container[int], actors: int, *, owned: bool
    ) -> None:
        """`procs`, `actors`: uids of the meshes; `owned`: whether this process owns the procs."""
        self._ranks = ranks
        self._owned = owned
        self._open = True
        self._unreported: set[int] = set()  # processes that are lost, but not reported yet
        self._end_of_procs = ownership.handle_failures(procs, self._is_of_proc)
        ownership.handle_failures(actors, lambda _: True)  # ends with the actors

    def note_lost(self, failure: RankFailure) -> None:
        """A call of the map has failed with that. Its report to the owner follows."""
        if self._owned and failure.death is not None and not failure.restarted:
            self._unreported.add(failure.rank)

    def close(self) -> None:
        """Leave later failures to the owner. Idempotent."""
        self._open = False
        self._end_if_reported()

    def _is_of_proc(self, failure: RankFailure) -> bool:
        mine = self._open and failure.rank in self._ranks
        if failure.rank in self._unreported:
            mine = True
            self._unreported.discard(failure.rank)
        self._end_if_reported()
        return mine

    def _end_if_reported(self) -> None:
        if not self._open and not self._unreported:
            self._end_of_procs()
