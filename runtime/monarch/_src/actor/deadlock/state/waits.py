"""Detects cycles of actors that wait for each other, and so would wait for ever. No I/O.

An actor that blocks on a call cannot handle the next message, so a cycle of such waits never ends.
An actor that has waited for a while sends a *probe* to the actors that it waits for. An actor that
waits itself forwards the probe, once, to the actors that *it* waits for; an actor that does not
wait drops it. If a probe returns to its origin while the wait still lasts, there is a cycle. The
last actor to block closes the cycle, so one probe for each wait would do; a cycle that one probe
misses, since messages take different routes, is found by the probe of the next *round*. A program
that never blocks for long sends no probes.

A probe follows a call, and an actor forwards it only along waits that prevent the answer to that
very call (`blocks_answer`): the actor may have answered meanwhile, or answer through a port. This
check, and the absence of time-outs on the way, make a found cycle certain.

Source: Chandy, Misra, Haas, "Distributed Deadlock Detection", ACM TOCS 1(2), 1983 (the AND model).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

# The node and uid of the originating actor, the number of its call, and the round.
ProbeId: TypeAlias = tuple[str, int, int, int]
FIRST_S = 0.25  # until the first round; each later one comes after twice the time of the last


class Wait(msgspec.Struct, eq=False):
    """One wait of an actor.

    `future` is the awaited future; `waiter`, the asyncio future that a task awaits for it, unless
    the whole thread is blocked; `thread`, the waiting thread, if it is not the one that handles the
    actor's messages. A `timed` wait has a time-out, so it ends by itself.
    """

    call: int
    future: Any
    waiter: Any = None
    timed: bool = False
    rounds: int = 0  # how many probes it has sent
    cycle: Sequence[str] = ()  # of a timed wait: the cycle that it was part of
    thread: int = 0

    def next_round_s(self) -> float:
        """The seconds until its next probe."""
        return FIRST_S * (1 << self.rounds)


class ActorWaits:
    """The present waits of one actor, which begins and ends them; any thread may probe."""

    __slots__ = ("_seen", "actor", "node", "on_begin", "waits")

    def __init__(self, node: str, actor: int) -> None:
        self.node = node
        self.actor = actor
        self.waits: dict[int, Wait] = {}  # by call; for one call, only the latest wait
        self._seen: set[ProbeId] = set()
        # Of an async actor: called when a task of it begins to wait.
        self.on_begin: Callable[[], None] | None = None

    def begin(self, wait: Wait) -> None:
        """The actor, or a task of it, waits until that call is answered."""
        self.waits[wait.call] = wait
        if self.on_begin is not None:
            self.on_begin()

    def end(self, wait: Wait) -> None:
        """The wait has ended."""
        if self.waits.get(wait.call) is wait:
            del self.waits[wait.call]
        if self._seen:
            self._seen.clear()

    def probe(self, wait: Wait) -> ProbeId:
        """The next probe to send for that wait."""
        wait.rounds += 1
        return self.node, self.actor, wait.call, wait.rounds

    def on_probe(
        self, probe: ProbeId, blocks_answer: Callable[[Wait], bool]
    ) -> tuple[Wait | None, list[Wait]]:
        """A probe has arrived: the wait that is in a cycle, and the waits to forward it along.

        `blocks_answer`: whether a wait prevents the answer to the call that the probe followed.
        """
        if probe[:2] == (self.node, self.actor):
            own = self.waits.get(probe[2])
            return (own if own is not None and blocks_answer(own) else None), []
        if probe in self._seen:
            return None, []
        found = [
            wait for wait in list(self.waits.values()) if not wait.timed and blocks_answer(wait)
        ]
        if found:
            self._seen.add(probe)
        return None, found
