"""The ladder of the stop button: what each press asks for. No I/O, no clock.

Each rung is for what the one before did not end:

    press                         asks for
    ----------------------------  -----------------------------------------------------------------
    the first, or a late one      CANCEL: the calls of the cell are taken back on the ranks
    within `PATIENCE` of another  SIGNAL: SIGINT to the ranks that have not answered
    the next one within that      OFFER: what ends them for good is said, and not done
    ... and any further           OFFER

A press that finds nothing left of what the last one was for begins a new ladder.
"""

from __future__ import annotations

from enum import Enum

PATIENCE = 2.0
"""Seconds within which a press of the button is one rung above the one before."""


class InterruptLevel(Enum):
    """How far up."""

    NONE = 0
    CANCEL = 1
    SIGNAL = 2
    OFFER = 3


# What a press does, by the rung that the last one was on: in time, and with something left to end.
TRANSITIONS = {
    InterruptLevel.NONE: InterruptLevel.CANCEL,
    InterruptLevel.CANCEL: InterruptLevel.SIGNAL,
    InterruptLevel.SIGNAL: InterruptLevel.OFFER,
    InterruptLevel.OFFER: InterruptLevel.OFFER,
}


class InterruptPolicy:
    """Where the user stands on it. `pressed_at`: seconds of any steady clock."""

    def __init__(self) -> None:
        self.level = InterruptLevel.NONE
        self.pressed_at = 0.0

    def press(self, now: float, *, calls_open: bool) -> InterruptLevel:
        """The button was pressed; what that asks for.

        `something_left`: whether any of the calls that the last press was for still runs.
        """
        early = self.level is not InterruptLevel.NONE and now - self.pressed_at <= PATIENCE
        self.level = TRANSITIONS[self.level] if early and calls_open else InterruptLevel.CANCEL
        self.pressed_at = now
        self.validate()
        return self.level

    def escalates(self, now: float) -> bool:
        """Whether a press now would be one rung above the last one, if something is left."""
        return self.level is not InterruptLevel.NONE and now - self.pressed_at <= PATIENCE

    def validate(self) -> None:
        """What always holds."""
        assert set(TRANSITIONS) == set(InterruptLevel)
        assert self.level is InterruptLevel.NONE or self.level in TRANSITIONS.values()
