"""What comes for the actors of this process is taken in the order in which it was sent.

Runs in: any process, on the thread that receives. `net.state.message_order` says what has to wait
for what: a message may come directly or as a cast, and either way may be the faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from monarch._src.net.state.message_order import Incoming
from monarch._src.shape import NDSlice
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, Cast, SpawnActor, StopActor, StopProc

Ordered: TypeAlias = "Call | SpawnActor | StopActor | StopProc"
Taken: TypeAlias = "tuple[str, Ordered, Payload]"


class Inbound:
    """What came from each process, and what of it waits for its turn.

    `takers`: what is called with a message whose turn it is, by its type.
    """

    def __init__(self) -> None:
        self._rank = -1
        self._incoming: dict[str, Incoming[Taken]] = {}
        self.handlers: dict[type, Callable[[str, Any, Payload], None]] = {}

    def begin(self, rank: int) -> None:
        """This process has that rank, or is a client (-1)."""
        self._rank = rank

    def forget(self, node: str) -> None:
        """Nothing comes from that process any more."""
        self._incoming.pop(node, None)

    def on_direct(self, peer: str, message: Ordered, payload: Payload) -> None:
        """A message came directly: have it taken in its turn, and what waited for it."""
        incoming = self._incoming.get(peer)
        if incoming is None:
            incoming = self._incoming[peer] = Incoming()
        if message.rank < 0:
            message.rank = self._rank
        if incoming.direct(message.after, (peer, message, payload)):
            self.handlers[type(message)](peer, message, payload)
        if incoming.holds:
            self._release(incoming)

    def _release(self, incoming: Incoming[Taken]) -> None:
        for peer, message, payload in incoming.released():
            self.handlers[type(message)](peer, message, payload)

    def on_cast(self, cast: Cast, payload: Payload) -> None:
        """A message came as a cast."""
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
            self.handlers[type(message)](peer, message, payload)
        if incoming.holds:
            self._release(incoming)


@lru_cache(maxsize=64)
def _position(rank: int, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return NDSlice(offset=offset, sizes=sizes, strides=strides).index(rank)
