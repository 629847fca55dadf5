"""Who waits for whom: finding actors that wait for each other and so for ever. No I/O.

An actor that blocks on a call can't take the next message, so a cycle of such waits never ends.
Each actor that has waited for a while sends a *probe* to the actors it waits for; one that waits
itself passes it on to those *it* waits for, once; one that does not wait drops it. A probe that
comes back to where it began, while that wait still lasts, has found a cycle. The last actor to
block closes the cycle, so one probe a wait would be enough; what one misses, because a message went
another way or a task began to matter later, the next *round* finds. A program that never blocks for
long pays nothing.

A probe follows a call, and an actor passes it on only along waits that keep it from answering that
very call (`keeps`): it may have answered meanwhile, or its answer may come from elsewhere. Such a
look, and that no time-out lies on the way, is what makes a cycle certain.

Source: Chandy, Misra, Haas, "Distributed Deadlock Detection", ACM TOCS 1(2), 1983 (the AND model).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

# The node and uid of the actor that began it, the number of its call, and the round.
ProbeId: TypeAlias = tuple[str, int, int, int]
FIRST_S = 0.25  # until the first round; each later one comes after twice the time of the last


class Wait(msgspec.Struct, eq=False):
    """One wait of an actor.

    `future` is what it waits for; `waiter`, what a task of it awaits meanwhile, if not the whole
    thread is blocked; `thread`, which one waits, if it is not its own that takes its messages. A
    wait that is `timed` ends by itself: its actor may go on then.
    """

    call: int
    future: Any
    waiter: Any = None
    timed: bool = False
    rounds: int = 0  # how many probes it has sent
    cycle: Sequence[str] = ()  # of a timed one: in which it was found to be
    thread: int = 0

    def next_round_s(self) -> float:
        """After how long from now it is to send the next probe."""
        return FIRST_S * (1 << self.rounds)


class ActorWaits:
    """What one actor waits for now. It begins and ends waits; any thread may probe."""

    __slots__ = ("_seen", "actor", "node", "on_begin", "waits")

    def __init__(self, node: str, actor: int) -> None:
        self.node = node
        self.actor = actor
        self.waits: dict[int, Wait] = {}  # by call; of two for one call the later one
        self._seen: set[ProbeId] = set()
        # Of an async actor: its messages may wait for the task that begins to wait here.
        self.on_begin: Callable[[], None] | None = None

    def begin(self, wait: Wait) -> None:
        """The actor, or a task of it, waits until that call is answered."""
        self.waits[wait.call] = wait
        if self.on_begin is not None:
            self.on_begin()

    def end(self, wait: Wait) -> None:
        """It goes on."""
        if self.waits.get(wait.call) is wait:
            del self.waits[wait.call]
        if self._seen:
            self._seen.clear()

    def probe(self, wait: Wait) -> ProbeId:
        """The probe of the next round to send for that wait."""
        wait.rounds += 1
        return self.node, self.actor, wait.call, wait.rounds

    def on_probe(
        self, probe: ProbeId, keeps: Callable[[Wait], bool]
    ) -> tuple[Wait | None, list[Wait]]:
        """A probe came to this actor: the wait that is in a cycle, and along which to pass it on.

        `keeps`: whether a wait keeps it from answering the call that the probe has followed.
        """
        if probe[:2] == (self.node, self.actor):
            own = self.waits.get(probe[2])
            return (own if own is not None and keeps(own) else None), []
        if probe in self._seen:
            return None, []
        found = [wait for wait in list(self.waits.values()) if not wait.timed and keeps(wait)]
        if found:
            self._seen.add(probe)
        return None, found
