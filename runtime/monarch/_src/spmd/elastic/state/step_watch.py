"""The ranks that make no step. No I/O, no clock: every event has its time, in seconds.

    IDLE --begin--> WATCHING --a rank is stuck--> ENDING --all calls have ended--> IDLE
                                                    | a stuck rank still runs after GRACE_S: kill

Ranks wait for each other, so one that is stuck holds up all of them, and all exceed the limit. The
collectives are ended first. A rank that only waited in one leaves it then, and is not killed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

import msgspec

from monarch._src.spmd.elastic.state.plan import Member

GRACE_S = 5.0
"""How long ranks have to leave their collectives once these have ended, in seconds."""


class Stage(Enum):
    """See the module."""

    IDLE = "idle"
    WATCHING = "watching"
    ENDING = "ending"


class End(msgspec.Struct, frozen=True):
    """End the collectives of all ranks: these make no step."""

    stuck: tuple[Member, ...]


class Kill(msgspec.Struct, frozen=True):
    """Kill these ranks: they made no step, and wait in no collective."""

    stuck: tuple[Member, ...]


class StepWatch:
    """The watch of one training, over all its calls."""

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self.stage = Stage.IDLE
        self._progress: dict[Member, tuple[int, float]] = {}  # steps of its process, and since when
        self._ended_at = 0.0
        self._killed: set[Member] = set()

    def begin(self, members: Iterable[Member], now: float) -> None:
        """The call begins on these ranks."""
        self.stage = Stage.WATCHING
        self._progress = dict.fromkeys(members, (-1, now))
        self._killed = set()

    def end(self) -> None:
        """The call has ended on all ranks."""
        self.stage = Stage.IDLE

    def on_steps(self, member: Member, steps: int, now: float) -> None:
        """A rank reports how often it has made progress. A rank may report late, or not at all."""
        known = self._progress.get(member)
        if known is not None and steps > known[0]:
            self._progress[member] = (steps, now)

    def on_unknown(self, member: Member, now: float) -> None:
        """The progress of a rank could not be read: it counts as progress."""
        known = self._progress.get(member)
        if known is not None:
            self._progress[member] = (known[0], now)

    def idle_s(self, member: Member, now: float) -> float:
        """The time since the last progress of a rank that is known here."""
        return now - self._progress[member][1]

    def check(self, running: Collection[Member], now: float) -> End | Kill | None:
        """The next measure against the ranks of `running` that are stuck, or None."""
        if self.stage is Stage.IDLE:
            return None
        stuck = tuple(
            member for member in sorted(running)
            if member in self._progress and member not in self._killed
            and self.idle_s(member, now) >= self.within_s
        )  # fmt: skip
        if not stuck:
            return None
        if self.stage is Stage.WATCHING:
            self.stage = Stage.ENDING
            self._ended_at = now
            return End(stuck)
        if now - self._ended_at < GRACE_S:
            return None
        self._killed.update(stuck)
        return Kill(stuck)
