"""Who waits for whom: finding actors that wait for each other and so for ever. No I/O.

An actor that blocks on a call can't take the next message, so a cycle of such waits never ends.
Each actor that has waited for a while sends a *probe* to the actors it waits for; one that waits
itself passes it on to those *it* waits for, once; one that does not wait drops it. A probe that
comes back to where it began, while that wait still lasts, has found a cycle. The last actor to
block closes the cycle, so one probe a wait is enough, and a program that never blocks for long pays
nothing.

Source: Chandy, Misra, Haas, "Distributed Deadlock Detection", ACM TOCS 1(2), 1983 (the AND model).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["drop", "forward", "cycle"]
ProbeId: TypeAlias = tuple[str, int, int]  # node and uid of the actor that began it, its call


class Waiting:
    """What one actor waits for now. `call` is None while it waits for nothing."""

    __slots__ = ("_seen", "actor", "call", "node")

    def __init__(self, node: str, actor: int) -> None:
        self.node = node
        self.actor = actor
        self.call: int | None = None
        self._seen: set[ProbeId] = set()

    def begin(self, call: int) -> None:
        """The actor blocks until that call is answered."""
        self.call = call
        self._seen.clear()

    def end(self) -> None:
        """It goes on."""
        self.call = None
        self._seen.clear()

    def probe(self) -> ProbeId | None:
        """The probe to send for the present wait; None if there is none."""
        return None if self.call is None else (self.node, self.actor, self.call)

    def probed(self, probe: ProbeId) -> Verdict:
        """A probe came to this actor."""
        if self.call is None:
            return "drop"
        if probe == (self.node, self.actor, self.call):
            return "cycle"
        if probe[:2] == (self.node, self.actor) or probe in self._seen:
            return "drop"  # of a wait that is over, or passed on before
        self._seen.add(probe)
        return "forward"
