"""When a rank's collectives wait in vain: the ranks that died, or raised before they came. No I/O.

A rank that leaves a call by an exception says how many collectives it had begun in each process
group. Another rank of the same call that has begun more of them waits for a rank that will not
come, so the group has ended. A rank that has begun no more is left alone: the exception of one rank
then has no effect on the group. Torch counts, and counts point-to-point messages too.

A peer's news may come before the call that it is about: that waits in a mailbox, or is on its way.

    state    WATCHING -> ENDED    a peer is gone; a collective waits in vain; another rank says so
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

MAKING = ""
"""The name of the groups of a rank taken together: `begun` of it is how many it has begun to make.

Of a `Group`, its ranks are those that this rank waits for while it makes one."""
ON_ITS_WAY_S = 3.0  # how long the news of a call is kept before that call has come


class CallState(enum.Enum):
    """Where a call is on this rank. `ABSENT`: it has ended, or is on its way."""

    ABSENT = "absent"
    QUEUED = "queued"
    RUNNING = "running"


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
        # Those whose call may still run here, as of the last check; with the time of the news.
        self._absences: dict[tuple[int, CallKey], tuple[Absence, float]] = {}

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

    def on_absence(self, absence: Absence, now: float) -> None:
        """A peer has left a call by an exception. `now`: seconds of the monotonic clock."""
        if self.ended is None and absence.rank != self.rank:
            self._absences[absence.rank, absence.call] = absence, now

    def check(
        self, groups: Sequence[Group], state_of: Callable[[CallKey], CallState], now: float
    ) -> str | None:
        """Why these groups have ended, if that is news. `state_of`: where a call is here."""
        if self.ended is not None:
            return None
        for key, (absence, heard) in list(self._absences.items()):
            state = state_of(absence.call)
            if state is CallState.ABSENT and now - heard >= ON_ITS_WAY_S:
                del self._absences[key]
            if state is not CallState.RUNNING:
                continue
            for group in groups:
                if absence.rank in group.ranks and group.begun > absence.begun.get(group.name, 0):
                    missed = "make process group" if group.name == MAKING else "collective"
                    why = f"{absence.what}, and did not come to {missed} {group.begun}"
                    self.on_peer_gone(why)
                    return why
        return None
