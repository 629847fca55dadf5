"""The history that a host keeps: by order of its client, or during a profile. No I/O."""

from __future__ import annotations

from typing import NamedTuple


class Kept(NamedTuple):
    """The history that a process keeps.

    The time for which it keeps history, in seconds (0: none), the number of rows, and whether
    torch's profiler runs there.
    """

    retention_s: float
    rows: int
    torch: bool = False


NOTHING = Kept(0.0, 0)


class Orders:
    """The orders of one host. Callers pass the time of a steady clock, in seconds.

    A temporary order ends at its time, or when the program that gave it takes it back. It never
    shortens the history of the lasting order.
    """

    def __init__(self) -> None:
        self._lasting = NOTHING
        self._temporary = NOTHING
        self._until = 0.0

    def order(self, kept: Kept) -> None:
        """Keep that from now on."""
        self._lasting = kept

    def order_for(self, kept: Kept, for_s: float, now: float) -> None:
        """Keep that for a time; a negative time takes the order back."""
        if for_s < 0:
            self._temporary = NOTHING
        else:
            self._until = max(self._until, now + for_s) if self._temporary.rows else now + for_s
            self._temporary = kept

    def in_force(self, now: float) -> Kept:
        """The history that the processes of the host keep now."""
        if self._temporary.rows and now >= self._until:
            self._temporary = NOTHING
        lasting = self._lasting if self._lasting.retention_s else NOTHING
        temporary = self._temporary
        return Kept(
            max(lasting.retention_s, temporary.retention_s), max(lasting.rows, temporary.rows),
            temporary.torch,
        )  # fmt: skip

    def next_deadline(self) -> float | None:
        """The time at which the temporary order ends; None without one."""
        return self._until if self._temporary.rows else None
