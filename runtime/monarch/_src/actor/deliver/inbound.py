"""Handles the messages to this process's actors in the order in which each sender sent them.

Runs in: any process, on the receiving thread. A message arrives directly or as a cast, and either
route may be faster. `net.state.message_order` decides which messages must wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol, TypeAlias

from monarch._src.actor.parts import RuntimeHooks
from monarch._src.net.state.message_order import Incoming
from monarch._src.shape import NDSlice
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, Cast, SpawnActor, StopActor, StopProc

Ordered: TypeAlias = "Call | SpawnActor | StopActor | StopProc"
Taken: TypeAlias = "tuple[str, Ordered, Payload]"
_TO_ACTOR = (Call, StopActor)  # the messages to one actor; the usual one comes first


class Cell(Protocol):
    """An actor of this process; see `actor.run.cell`."""

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Queue a message for the actor."""
        ...


class EndedActors(Protocol):
    """The actors of this process that have ended; see `actor.run.tombstones`."""

    def __contains__(self, uid: object) -> bool:
        """Whether the actor of that uid has ended."""
        ...

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Answer a message to an actor that has ended."""
        ...


class Inbound:
    """The messages of each sender that wait for their turn.

    `deliver` is called with each message in its turn; injected faults replace it.
    """

    def __init__(self, cells: Mapping[int, Cell], ended: EndedActors, hooks: RuntimeHooks) -> None:
        self._rank = -1
        self._incoming: dict[str, Incoming[Taken]] = {}
        self._cells = cells
        self._ended = ended
        self._hooks = hooks
        self.deliver: Callable[[str, Ordered, Payload], None] = self._deliver

    def begin(self, rank: int) -> None:
        """Set this process's rank; -1: a client."""
        self._rank = rank

    def forget(self, node: str) -> None:
        """Forget a sender that is gone."""
        self._incoming.pop(node, None)

    def on_direct(self, peer: str, message: Ordered, payload: Payload) -> None:
        """A message has arrived directly.

        Handle it in its turn, and messages that waited for it.
        """
        incoming = self._incoming.get(peer)
        if incoming is None:
            incoming = self._incoming[peer] = Incoming()
        if message.rank < 0:
            message.rank = self._rank
        if incoming.direct(message.after, (peer, message, payload)):
            self.deliver(peer, message, payload)
        if incoming.holds:
            self._release(incoming)

    def _release(self, incoming: Incoming[Taken]) -> None:
        for peer, message, payload in incoming.released():
            self.deliver(peer, message, payload)

    def _deliver(self, peer: str, message: Ordered, payload: Payload) -> None:
        """Handle a message whose turn it is."""
        if isinstance(message, _TO_ACTOR):
            cell = self._cells.get(message.actor)
            if cell is not None:
                cell.post(peer, message, payload)
            elif message.actor in self._ended:
                self._ended.post(peer, message, payload)
            else:
                self._hooks.actors.on_unknown_actor(peer, message, payload)
        elif isinstance(message, SpawnActor):
            self._hooks.actors.spawn(peer, message, payload)
        else:
            self._hooks.program.on_stop_proc(message)

    def on_cast(self, cast: Cast, payload: Payload) -> None:
        """A message has arrived as a cast."""
        peer, message = cast.sender, cast.message
        message.rank = _position(self._rank, *cast.region)
        if isinstance(message, (Call, StopActor)):
            message.relayed = bool(cast.call)
        if isinstance(message, Call) and not message.reply_to:
            message.reply_to, message.reply_address = peer, cast.address
        incoming = self._incoming.get(peer)
        if incoming is None:
            incoming = self._incoming[peer] = Incoming()
        fence = next((count for rank, count in cast.fences if rank == self._rank), 0)
        if incoming.cast(cast.number, fence, (peer, message, payload)):
            self.deliver(peer, message, payload)
        if incoming.holds:
            self._release(incoming)


@lru_cache(maxsize=64)
def _position(rank: int, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return NDSlice(offset=offset, sizes=sizes, strides=strides).index(rank)
