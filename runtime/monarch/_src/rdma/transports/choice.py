"""Which transport a pair of processes uses, and why not a faster one. No I/O.

One Choice stands for one peer process. A transport is UNTRIED until it has been probed, then WORKS
or FAILED with a reason. Only the last of the order, which works wherever anything does, may be
tried again after a failure.

    UNTRIED -> WORKS | FAILED     a probe
    WORKS   -> FAILED             a transfer could not be done, for no fault of the handle
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
    """Why a transport is not used, and what could be done about it."""

    reason: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """Both, as one sentence."""
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


class Choice:
    """What is known of the transports to one peer. `order`: the fastest first."""

    def __init__(self, order: Sequence[str]) -> None:
        self.order = tuple(order)
        self.story: list[tuple[str, State, str]] = []
        self._states: dict[str, State] = dict.fromkeys(self.order, "untried")
        self._why: dict[str, Why] = {}

    def best(self, suited: Collection[str]) -> str | None:
        """The fastest transport that is not known to fail, among those that suit the memory."""
        return next((n for n in self.order if n in suited and self._states[n] != "failed"), None)

    def state(self, name: str) -> State:
        """What is known of one."""
        return self._states[name]

    def worked(self, name: str) -> None:
        """Its probe came back as it went."""
        if self._states[name] == "untried":
            self._move(name, "works")

    def failed(self, name: str, why: Why) -> None:
        """Its probe, or a transfer over it, failed. Two transfers at once may both say so."""
        if self._states[name] != "failed":
            self._why[name] = why
            self._move(name, "failed", why.text)

    def give_another_chance(self) -> None:
        """All have failed, and somebody has been told so: let the next transfer try the last."""
        last = self.order[-1]
        if self._states[last] == "failed":
            self._move(last, "untried")

    def why_not(self, name: str) -> Why | None:
        """Why a transport failed, if it has."""
        return self._why.get(name) if self._states[name] == "failed" else None

    def whys(self) -> dict[str, str]:
        """Why each that has failed is not used."""
        return {n: self._why[n].text for n in self.order if self._states[n] == "failed"}

    def _move(self, name: str, to: State, reason: str = "") -> None:
        if to not in _MOVES[self._states[name]]:
            raise RuntimeError(f"{name} cannot go from {self._states[name]} to {to}")
        self._states[name] = to
        self.story.append((name, to, reason))

    def validate(self) -> None:
        """AssertionError if what is kept contradicts itself."""
        assert set(self._states) == set(self.order)
        for name, state in self._states.items():
            assert state != "failed" or name in self._why, f"{name} failed without a reason"
            told = [to for told, to, _ in self.story if told == name]
            assert (told[-1] if told else "untried") == state
            assert name == self.order[-1] or "untried" not in told
