"""Which transport a pair of processes uses, and why not a faster one. No I/O.

There is one Choice for each peer process. A transport is UNTRIED until it has been probed, then
WORKS or FAILED with a reason. Only the last in the order, which works wherever any transport works,
may be tried again after a failure.

    UNTRIED -> WORKS | FAILED     a probe
    WORKS   -> FAILED             a transfer failed, and the handle was not the cause
    FAILED  -> UNTRIED            the last of the order only
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

State = Literal["untried", "works", "failed"]
_MOVES: dict[State, frozenset[State]] = {
    "untried": frozenset(("works", "failed")),
    "works": frozenset(("failed",)),
    "failed": frozenset(("untried",)),
}


class Why(msgspec.Struct, frozen=True):
    """Why a transport is not used, and a remedy, if there is one."""

    reason: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """Reason and remedy, as one sentence."""
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


class Choice:
    """The states of the transports to one peer. `order`: fastest first."""

    def __init__(self, order: Sequence[str]) -> None:
        self.order = tuple(order)
        self.story: list[tuple[str, State, str]] = []
        self._states: dict[str, State] = dict.fromkeys(self.order, "untried")
        self._why: dict[str, Why] = {}

    def best(self, suited: Collection[str]) -> str | None:
        """The fastest transport without a known failure, among those that suit the memory."""
        return next((n for n in self.order if n in suited and self._states[n] != "failed"), None)

    def state(self, name: str) -> State:
        """The state of a transport."""
        return self._states[name]

    def worked(self, name: str) -> None:
        """The probe succeeded."""
        if self._states[name] == "untried":
            self._move(name, "works")

    def failed(self, name: str, why: Why) -> None:
        """The probe or a transfer failed. Two transfers at once may both report it."""
        if self._states[name] != "failed":
            self._why[name] = why
            self._move(name, "failed", why.text)

    def give_another_chance(self) -> None:
        """All have failed, and an error has said so: let the next transfer try the last one."""
        last = self.order[-1]
        if self._states[last] == "failed":
            self._move(last, "untried")

    def why_not(self, name: str) -> Why | None:
        """The reason of a failed transport; None if it has not failed."""
        return self._why.get(name) if self._states[name] == "failed" else None

    def whys(self) -> dict[str, str]:
        """The reasons of all failed transports."""
        return {n: self._why[n].text for n in self.order if self._states[n] == "failed"}

    def _move(self, name: str, to: State, reason: str = "") -> None:
        if to not in _MOVES[self._states[name]]:
            raise RuntimeError(f"{name} cannot go from {self._states[name]} to {to}")
        self._states[name] = to
        self.story.append((name, to, reason))

    def validate(self) -> None:
        """Raise AssertionError if the states contradict each other."""
        assert set(self._states) == set(self.order)
        for name, state in self._states.items():
            assert state != "failed" or name in self._why, f"{name} failed without a reason"
            told = [to for told, to, _ in self.story if told == name]
            assert (told[-1] if told else "untried") == state
            assert name == self.order[-1] or "untried" not in told
