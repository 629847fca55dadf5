"""When a rank's collectives wait in vain: the ranks that died, or raised before they came. No I/O.

A rank that leaves a call by an exception says how many collectives it had begun in each process
group. Another rank of the same call that has begun more of them waits for a rank that will not
come, so the group has ended. A rank that has begun no more is left alone: the exception of one rank
then has no effect on the group. Torch counts, and counts point-to-point messages too.

    state    WATCHING -> ENDED    a peer is gone; a collective waits in vain; another rank says so
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec


class CallKey(msgspec.Struct, frozen=True):
    """Which call of all ranks an endpoint runs for.

    `number` is 0 if no answer is wanted; such calls are told apart by their endpoint only.
    """

    caller: str
    number: int
    actor: int
    endpoint: str


class Absence(msgspec.Struct, frozen=True):
    """A rank has left a call by an exception. `begun`: collectives begun, by group name."""

    rank: int
    call: CallKey
    begun: dict[str, int]
    what: str


class Group(msgspec.Struct, frozen=True):
    """A process group of this rank: its name, its ranks, how many collectives it has begun."""

    name: str
    ranks: frozenset[int]
    begun: int


class GroupWatch:
    """The watch of one rank over the process groups that it is in."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.ended: str | None = None  # why the groups have ended; set once
        # All and only those absences whose call still runs here, as of the last check.
        self._absences: dict[int, Absence] = {}

    @property
    def must_check(self) -> bool:
        """Whether `check` could find a reason now or later."""
        return self.ended is None and bool(self._absences)

    def on_peer_gone(self, why: str) -> bool:
        """A peer has died, or says that the groups have ended; whether that is news."""
        news = self.ended is None
        if news:
            self.ended = why
            self._absences.clear()
        return news

    def on_absence(self, absence: Absence) -> None:
        """A peer has left a call by an exception."""
        if self.ended is None and absence.rank != self.rank:
            self._absences[absence.rank] = absence

    def check(self, groups: Sequence[Group], runs: Callable[[CallKey], bool]) -> str | None:
        """Why these groups have ended, if that is news. `runs`: whether a call still runs here."""
        if self.ended is not None:
            return None
        for rank, absence in list(self._absences.items()):
            if not runs(absence.call):
                del self._absences[rank]
                continue
            for group in groups:
                if rank in group.ranks and group.begun > absence.begun.get(group.name, 0):
                    why = f"{absence.what}, and did not come to collective {group.begun}"
                    self.on_peer_gone(why)
                    return why
        return None
