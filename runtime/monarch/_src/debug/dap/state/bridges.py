"""Which ranks are debugged through a bridge, and by whom. No I/O.

A *bridge* is a debugger in one rank and the console that speaks with it; a *console* is a node, as
in `debug.state.sessions`. The host agent drives this, since it sees the ranks, their deaths, and
who asks.

    asked--> OPENING --is open--> OPEN --closed, or its console gone--> CLOSING --is closed--> gone
    any --its process has ended--> gone

Invariants: a rank has one bridge at a time; each question is answered once, also when the rank
dies; a console that has a bridge hears of its end, unless it has asked for it; bytes pass between
the two that a bridge is between, and nobody else.

Events are methods; each returns the actions that follow, in order.
"""

from __future__ import annotations

import enum
import itertools
from typing import TypeAlias

import msgspec

from monarch._src.wire.messages.dap import (
    AskBridge,
    BridgeAnswered,
    BridgeBytes,
    BridgeClosed,
    BridgeSet,
    SetBridge,
)

Place: TypeAlias = "tuple[int, int]"  # mesh, rank
ENDED = "its process has ended"
CLOSED_MEANWHILE = "it was closed before it was open"


class Phase(enum.Enum):
    """How far a bridge is."""

    OPENING = 0
    OPEN = 1
    CLOSING = 2


class Notify(msgspec.Struct, frozen=True):
    """Say that to a console."""

    console: str
    message: BridgeAnswered | BridgeBytes | BridgeClosed


class Command(msgspec.Struct, frozen=True):
    """Say that to the rank of that place."""

    place: Place
    message: SetBridge | BridgeBytes


Action: TypeAlias = Notify | Command
Asked: TypeAlias = "tuple[str, int]"  # a console, and the number of its question


class Bridge(msgspec.Struct):
    """One. `opener` is owed an answer, and so is each of `closers`; `next_one` opens after it."""

    place: Place
    number: int
    console: str
    opener: Asked | None
    phase: Phase = Phase.OPENING
    closers: list[Asked] = msgspec.field(default_factory=list[Asked])
    next_one: Asked | None = None


class BridgeTable:
    """All bridges of one host."""

    def __init__(self) -> None:
        self.bridges: dict[Place, Bridge] = {}
        self._numbers = itertools.count(1)

    def console_of(self, place: Place) -> str:
        """Who debugs that rank; empty: nobody."""
        bridge = self.bridges.get(place)
        return "" if bridge is None or bridge.phase is Phase.CLOSING else bridge.console

    # --- from consoles ----------------------------------------------------------------------------

    def asked(self, console: str, message: AskBridge) -> list[Action]:
        """A console wants bridges, or has done with them."""
        does = self._open if message.opens else self._close
        actions: list[Action] = []
        for mesh, rank in message.targets:
            actions += does((mesh, rank), (console, message.request))
        return actions

    def _open(self, place: Place, asked: Asked) -> list[Action]:
        bridge = self.bridges.get(place)
        if bridge is None:
            return self._begin(place, asked)
        if bridge.phase is Phase.CLOSING and bridge.next_one is None:
            bridge.next_one = asked
            return []
        other = bridge.console if bridge.next_one is None else bridge.next_one[0]
        who = "it" if other == asked[0] else other
        said = "has a bridge already" if who == "it" else "debugs it already; close that first"
        return [_answer(place, asked, 0, f"{who} {said}")]

    def _begin(self, place: Place, asked: Asked) -> list[Action]:
        number = next(self._numbers)
        self.bridges[place] = Bridge(place, number, asked[0], asked)
        return [Command(place, SetBridge(number, True))]

    def _close(self, place: Place, asked: Asked) -> list[Action]:
        bridge = self.bridges.get(place)
        if bridge is None or bridge.console != asked[0]:
            return [_answer(place, asked, 0, "")]  # it has none, as it wants
        bridge.closers.append(asked)
        return self._end(bridge)

    def _end(self, bridge: Bridge) -> list[Action]:
        if bridge.phase is Phase.CLOSING:
            return []
        actions: list[Action] = []
        if bridge.opener is not None:
            actions.append(_answer(bridge.place, bridge.opener, 0, CLOSED_MEANWHILE))
            bridge.opener = None
        bridge.phase = Phase.CLOSING
        return [*actions, Command(bridge.place, SetBridge(bridge.number, False))]

    def said(self, console: str, message: BridgeBytes) -> list[Action]:
        """A console says something to its debugger."""
        bridge = self._of(message.mesh, message.rank, message.bridge)
        if bridge is None or bridge.console != console or bridge.phase is not Phase.OPEN:
            return []
        return [Command(bridge.place, message)]

    def console_gone(self, console: str) -> list[Action]:
        """Nobody is there any more: what it debugs runs on."""
        actions: list[Action] = []
        for bridge in list(self.bridges.values()):
            if bridge.next_one is not None and bridge.next_one[0] == console:
                bridge.next_one = None
            if bridge.console == console:
                actions += self._end(bridge)
        return [one for one in actions if isinstance(one, Command)]  # it hears nothing any more

    # --- from procs -------------------------------------------------------------------------------

    def begun(self, place: Place) -> list[Action]:
        """That process can be spoken to only now."""
        bridge = self.bridges.get(place)
        if bridge is None or bridge.phase is Phase.OPEN:
            return []
        return [Command(place, SetBridge(bridge.number, bridge.phase is Phase.OPENING))]

    def told(self, place: Place, message: BridgeSet) -> list[Action]:
        """The debugger of a rank is there, or gone."""
        bridge = self._of(*place, message.bridge)
        if bridge is None:
            return []
        if message.open:
            if bridge.phase is not Phase.OPENING or bridge.opener is None:
                return []
            bridge.phase = Phase.OPEN
            opener, bridge.opener = bridge.opener, None
            return [_answer(place, opener, bridge.number, "")]
        return self._gone(bridge, message.problem, again=True)

    def answered(self, place: Place, message: BridgeBytes) -> list[Action]:
        """A debugger says something to its console."""
        bridge = self._of(*place, message.bridge)
        if bridge is None or bridge.phase is Phase.CLOSING:
            return []
        return [Notify(bridge.console, BridgeBytes(*place, bridge.number, message.data))]

    def proc_ended(self, place: Place) -> list[Action]:
        """That process is gone, and its debugger with it."""
        bridge = self.bridges.get(place)
        return [] if bridge is None else self._gone(bridge, ENDED, again=False)

    # --- inside -----------------------------------------------------------------------------------

    def _of(self, mesh: int, rank: int, number: int) -> Bridge | None:
        bridge = self.bridges.get((mesh, rank))
        return bridge if bridge is not None and bridge.number == number else None

    def _gone(self, bridge: Bridge, why: str, *, again: bool) -> list[Action]:
        place = bridge.place
        del self.bridges[place]
        actions: list[Action] = []
        if bridge.opener is not None:
            actions.append(_answer(place, bridge.opener, 0, why or ENDED))
        elif bridge.phase is Phase.OPEN:
            closed = BridgeClosed(*place, bridge.number, why or "its debugger has ended")
            actions.append(Notify(bridge.console, closed))
        actions += [_answer(place, closer, 0, "") for closer in bridge.closers]
        if bridge.next_one is not None:
            if again:
                return actions + self._begin(place, bridge.next_one)
            actions.append(_answer(place, bridge.next_one, 0, why))
        return actions

    def validate(self) -> None:
        """What always holds."""
        for place, bridge in self.bridges.items():
            assert bridge.place == place
            assert (bridge.opener is not None) == (bridge.phase is Phase.OPENING)
            assert bridge.phase is Phase.CLOSING or not (bridge.closers or bridge.next_one)


def _answer(place: Place, asked: Asked, number: int, problem: str) -> Notify:
    console, request = asked
    return Notify(console, BridgeAnswered(request, *place, number, problem))
