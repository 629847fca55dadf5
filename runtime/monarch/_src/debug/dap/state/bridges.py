"""State of the bridges of one host: which console debugs which rank. No I/O.

A *bridge* connects the debugger in one rank with a console; a *console* is a node, as in
`debug.state.sessions`. The host agent drives this table, since it sees ranks, deaths and requests.

    requested--> OPENING --opened--> OPEN --closed, or console gone--> CLOSING --closed--> removed
    any --process ended--> removed

Invariants: a rank has one bridge at a time; each request is answered once, also when the rank
dies; a console is notified when its bridge ends, unless it closed the bridge itself; bytes
pass only between a rank and the console of its bridge.

Events are methods; each returns the actions that follow, in order.
"""

from __future__ import annotations

import enum
import itertools
from typing import TypeAlias

import msgspec

from monarch._src.wire.messages.debugger import (
    AskBridge,
    BridgeAnswered,
    BridgeBytes,
    BridgeClosed,
    BridgeSet,
    SetBridge,
)

Place: TypeAlias = "tuple[int, int]"  # mesh, rank
ENDED = "its process has ended"
CLOSED_MEANWHILE = "the bridge was closed before it was open"


class Phase(enum.Enum):
    """The state of a bridge."""

    OPENING = 0
    OPEN = 1
    CLOSING = 2


class Notify(msgspec.Struct, frozen=True):
    """Send a message to a console."""

    console: str
    message: BridgeAnswered | BridgeBytes | BridgeClosed


class SendToRank(msgspec.Struct, frozen=True):
    """Send a message to a rank."""

    place: Place
    message: SetBridge | BridgeBytes


Action: TypeAlias = Notify | SendToRank
RequestId: TypeAlias = "tuple[str, int]"  # a console and its request number


class Bridge(msgspec.Struct):
    """One bridge.

    `opener` and `closers` wait for an answer; `next_one` is the request to open the next bridge.
    """

    place: Place
    number: int
    console: str
    opener: RequestId | None
    phase: Phase = Phase.OPENING
    closers: list[RequestId] = msgspec.field(default_factory=list[RequestId])
    next_one: RequestId | None = None


class BridgeTable:
    """All bridges of one host."""

    def __init__(self) -> None:
        self.bridges: dict[Place, Bridge] = {}
        self._numbers = itertools.count(1)

    def console_of(self, place: Place) -> str:
        """The console that debugs that rank; empty if there is none."""
        bridge = self.bridges.get(place)
        return "" if bridge is None or bridge.phase is Phase.CLOSING else bridge.console

    # --- from consoles ----------------------------------------------------------------------------

    def on_request(self, console: str, message: AskBridge) -> list[Action]:
        """Handle a request to open or close bridges."""
        handle = self._open if message.opens else self._close
        actions: list[Action] = []
        for mesh, rank in message.targets:
            actions += handle((mesh, rank), (console, message.request))
        return actions

    def _open(self, place: Place, request: RequestId) -> list[Action]:
        bridge = self.bridges.get(place)
        if bridge is None:
            return self._begin(place, request)
        if bridge.phase is Phase.CLOSING and bridge.next_one is None:
            bridge.next_one = request
            return []
        other = bridge.console if bridge.next_one is None else bridge.next_one[0]
        if other == request[0]:
            problem = "this console has a bridge to it already"
        else:
            problem = f"{other} debugs it already; close that bridge first"
        return [_answer(place, request, 0, problem)]

    def _begin(self, place: Place, request: RequestId) -> list[Action]:
        number = next(self._numbers)
        self.bridges[place] = Bridge(place, number, request[0], request)
        return [SendToRank(place, SetBridge(number, True))]

    def _close(self, place: Place, request: RequestId) -> list[Action]:
        bridge = self.bridges.get(place)
        if bridge is None or bridge.console != request[0]:
            return [_answer(place, request, 0, "")]  # closed already
        bridge.closers.append(request)
        return self._end(bridge)

    def _end(self, bridge: Bridge) -> list[Action]:
        if bridge.phase is Phase.CLOSING:
            return []
        actions: list[Action] = []
        if bridge.opener is not None:
            actions.append(_answer(bridge.place, bridge.opener, 0, CLOSED_MEANWHILE))
            bridge.opener = None
        bridge.phase = Phase.CLOSING
        return [*actions, SendToRank(bridge.place, SetBridge(bridge.number, False))]

    def on_console_bytes(self, console: str, message: BridgeBytes) -> list[Action]:
        """Relay bytes from a console to the debugger of its rank."""
        bridge = self._find(message.mesh, message.rank, message.bridge)
        if bridge is None or bridge.console != console or bridge.phase is not Phase.OPEN:
            return []
        return [SendToRank(bridge.place, message)]

    def on_console_gone(self, console: str) -> list[Action]:
        """Close the bridges of a console that has disconnected."""
        actions: list[Action] = []
        for bridge in list(self.bridges.values()):
            if bridge.next_one is not None and bridge.next_one[0] == console:
                bridge.next_one = None
            if bridge.console == console:
                actions += self._end(bridge)
        return [one for one in actions if isinstance(one, SendToRank)]  # not to the console

    # --- from procs -------------------------------------------------------------------------------

    def on_proc_connected(self, place: Place) -> list[Action]:
        """A proc has connected: send it its pending bridge."""
        bridge = self.bridges.get(place)
        if bridge is None or bridge.phase is Phase.OPEN:
            return []
        return [SendToRank(place, SetBridge(bridge.number, bridge.phase is Phase.OPENING))]

    def on_bridge_set(self, place: Place, message: BridgeSet) -> list[Action]:
        """The debugger of a rank was loaded or unloaded."""
        bridge = self._find(*place, message.bridge)
        if bridge is None:
            return []
        if message.open:
            if bridge.phase is not Phase.OPENING or bridge.opener is None:
                return []
            bridge.phase = Phase.OPEN
            opener, bridge.opener = bridge.opener, None
            return [_answer(place, opener, bridge.number, "")]
        return self._remove(bridge, message.problem, reopen=True)

    def on_rank_bytes(self, place: Place, message: BridgeBytes) -> list[Action]:
        """Relay bytes from the debugger of a rank to its console."""
        bridge = self._find(*place, message.bridge)
        if bridge is None or bridge.phase is Phase.CLOSING:
            return []
        return [Notify(bridge.console, BridgeBytes(*place, bridge.number, message.data))]

    def on_proc_ended(self, place: Place) -> list[Action]:
        """A proc has ended, and its debugger with it."""
        bridge = self.bridges.get(place)
        return [] if bridge is None else self._remove(bridge, ENDED, reopen=False)

    # --- inside -----------------------------------------------------------------------------------

    def _find(self, mesh: int, rank: int, number: int) -> Bridge | None:
        bridge = self.bridges.get((mesh, rank))
        return bridge if bridge is not None and bridge.number == number else None

    def _remove(self, bridge: Bridge, why: str, *, reopen: bool) -> list[Action]:
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
            if reopen:
                return actions + self._begin(place, bridge.next_one)
            actions.append(_answer(place, bridge.next_one, 0, why))
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        for place, bridge in self.bridges.items():
            assert bridge.place == place
            assert (bridge.opener is not None) == (bridge.phase is Phase.OPENING)
            assert bridge.phase is Phase.CLOSING or not (bridge.closers or bridge.next_one)


def _answer(place: Place, request: RequestId, number: int, problem: str) -> Notify:
    console, request_number = request
    return Notify(console, BridgeAnswered(request_number, *place, number, problem))
