"""The stop button's policy: the effect of each press. No I/O, no clock.

Each level is for calls that the level before did not end:

    press                         effect
    ----------------------------  -----------------------------------------------------------------
    the first, or a late one      CANCEL: the calls of the cell are cancelled on the ranks
    within `PATIENCE` of another  SIGNAL: SIGINT to the ranks that have not answered
    the next one within that      OFFER: a notice says how to kill the processes
    ... and any further           OFFER

A press that finds none of the last press's calls open starts again with CANCEL.
"""

from __future__ import annotations

from enum import Enum

PATIENCE = 2.0
"""Seconds within which another press goes one level up."""


class InterruptLevel(Enum):
    """The effect of a press."""

    NONE = 0
    CANCEL = 1
    SIGNAL = 2
    OFFER = 3


# The level of a press by that of the last one, if it is in time and calls are still open.
TRANSITIONS = {
    InterruptLevel.NONE: InterruptLevel.CANCEL,
    InterruptLevel.CANCEL: InterruptLevel.SIGNAL,
    InterruptLevel.SIGNAL: InterruptLevel.OFFER,
    InterruptLevel.OFFER: InterruptLevel.OFFER,
}


class InterruptPolicy:
    """The level of the last press. `pressed_at`: seconds of any steady clock."""

    def __init__(self) -> None:
        self.level = InterruptLevel.NONE
        self.pressed_at = 0.0

    def press(self, now: float, *, calls_open: bool) -> InterruptLevel:
        """Record a press; return its level.

        `calls_open`: whether any of the calls that the last press was for still runs.
        """
        early = self.level is not InterruptLevel.NONE and now - self.pressed_at <= PATIENCE
        self.level = TRANSITIONS[self.level] if early and calls_open else InterruptLevel.CANCEL
        self.pressed_at = now
        self.validate()
        return self.level

    def escalates(self, now: float) -> bool:
        """Whether a press now would go one level up, if calls are still open."""
        return self.level is not InterruptLevel.NONE and now - self.pressed_at <= PATIENCE

    def validate(self) -> None:
        """Check the invariants."""
        assert set(TRANSITIONS) == set(InterruptLevel)
        assert self.level is InterruptLevel.NONE or self.level in TRANSITIONS.values()
