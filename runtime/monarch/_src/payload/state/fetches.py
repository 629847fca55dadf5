"""Large payloads on their way from other hosts: the open requests, and the messages that wait.

No I/O, no clock. Each host has one table of the payloads that come to it. Its driver is
`monarch._src.payload.host_fetcher`.

A message whose payload is still on its sender's host waits until that has been fetched. Later
messages of the same sender to the same receiver wait behind it: they form a *lane*, which keeps
their order. A payload is requested in pieces, which may arrive in any order. The open requests to
one host are limited to a number of bytes, the *credit*, which bounds the memory for them. Pieces
are fetched over connections of their own. If there are none, a payload is fetched *by link*, with
less credit, because small messages on that link wait behind the open requests.

    state of a message      behind a fetch -> ASKED (piece by piece) -> HERE -> released in order
                            no fetch       ->                           HERE -> released in order
    its sender has ended    ASKED -> LOST, dropped in order; HERE -> released in order
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

PIECE = 1 << 22  # bytes of one request
CREDIT = 1 << 25  # bytes of the open requests to one host
CREDIT_BY_LINK = 1 << 23  # the same while any of them goes by a link

Item = TypeVar("Item")
Lane: TypeAlias = tuple[str, str, str]  # the site of the sender, the sender, the receiver


class Ask(msgspec.Struct, frozen=True):
    """Request `size` bytes of a part of a payload, from offset `at`."""

    fetch: int
    part: int
    at: int
    size: int


class _Fetch(msgspec.Struct, eq=False):
    """One payload.

    parts: their sizes. asked: the end of the requested bytes, as a part and an offset.
    owed: sizes of the open requests, by part and offset.
    again: pieces whose request has failed.
    """

    lane: Lane
    parts: tuple[int, ...]
    asked: tuple[int, int]
    by_link: bool
    owed: dict[tuple[int, int], int] = msgspec.field(default_factory=dict[tuple[int, int], int])
    again: deque[tuple[int, int, int]] = msgspec.field(default_factory=deque[tuple[int, int, int]])
    is_lost: bool = False

    @property
    def is_asked(self) -> bool:
        return self.asked[0] == len(self.parts) and not self.again

    @property
    def is_here(self) -> bool:
        return self.is_asked and not self.owed

    @property
    def is_done(self) -> bool:
        return self.is_lost or self.is_here

    def lose(self) -> None:
        self.is_lost = True
        self.owed.clear()


class _Waiting(msgspec.Struct, Generic[Item], eq=False):
    item: Item
    fetch: int  # 0: the message is complete


class Fetching(Generic[Item]):
    """See the module's docstring. `Item` is the driver's object for a message. Not thread-safe."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[_Waiting[Item]]] = {}
        self._fetches: dict[int, _Fetch] = {}  # in the order of their requests
        self._number = 0

    def __len__(self) -> int:
        return len(self._fetches)

    # --- events -----------------------------------------------------------------------------------

    def passes(self, lane: Lane) -> bool:
        """Whether a complete message may be delivered: no earlier message of its lane waits."""
        return lane not in self._lanes

    def message_came(self, lane: Lane, item: Item) -> None:
        """A complete message came, and has to wait."""
        self._lanes[lane].append(_Waiting(item, 0))

    def wanted(
        self, lane: Lane, item: Item, parts: Sequence[int], *, by_link: bool = False
    ) -> tuple[int, list[Ask]]:
        """A message came whose payload, with parts of these sizes, is still at its sender."""
        self._number += 1
        self._fetches[self._number] = _Fetch(lane, tuple(parts), _next(parts, 0, 0), by_link)
        self._lanes.setdefault(lane, deque()).append(_Waiting(item, self._number))
        return self._number, self._asks(lane[0])

    def piece_came(self, number: int, part: int, at: int, size: int) -> tuple[list[Ask], bool]:
        """That piece has arrived: the next requests, and whether the payload is complete.

        Raises:
            ValueError: there is no such request.
        """
        fetch = self._fetches[number]
        if fetch.owed.get((part, at)) != size:
            raise ValueError(f"{size} bytes at {at} of part {part} were not requested")
        del fetch.owed[part, at]
        return self._asks(fetch.lane[0]), fetch.is_here

    def goes_by_link(self, number: int, part: int, at: int) -> list[Ask]:
        """The request for that piece has failed: fetch the rest of the payload by the link."""
        fetch = self._fetches.get(number)
        size = None if fetch is None else fetch.owed.pop((part, at), None)
        if fetch is None or size is None:
            return []
        fetch.by_link = True
        fetch.again.append((part, at, size))
        return self._asks(fetch.lane[0])

    def is_lost(self, number: int) -> list[Ask]:
        """That payload is lost: its message is dropped when its turn comes."""
        fetch = self._fetches.get(number)
        if fetch is None:
            return []
        fetch.lose()
        return self._asks(fetch.lane[0])

    def sender_ended(self, site: str, sender: str | None = None) -> list[int]:
        """That node has ended, or all of that site: returns the payloads that are lost."""
        lost = [
            number for number, fetch in self._fetches.items()
            if fetch.lane[0] == site and sender in (None, fetch.lane[1]) and not fetch.is_done
        ]  # fmt: skip
        for number in lost:
            self._fetches[number].lose()
        return lost

    def released(self, lane: Lane) -> list[Item]:
        """The messages of a lane that may be delivered now, in order, without lost ones."""
        found: list[Item] = []
        waiting = self._lanes.get(lane, deque())
        while waiting:
            first = waiting[0]
            fetch = self._fetches.get(first.fetch)
            if fetch is not None and not fetch.is_done:
                return found
            waiting.popleft()
            self._fetches.pop(first.fetch, None)
            if fetch is None or not fetch.is_lost:
                found.append(first.item)
        self._lanes.pop(lane, None)
        return found

    # --- queries ----------------------------------------------------------------------------------

    def owed(self, site: str) -> int:
        """Bytes of the open requests to that site."""
        return sum(sum(f.owed.values()) for f in self._fetches.values() if f.lane[0] == site)

    def credit(self, site: str) -> int:
        """The limit of `owed` from now on."""
        by_link = any(
            fetch.by_link and fetch.lane[0] == site and not fetch.is_done
            for fetch in self._fetches.values()
        )
        return CREDIT_BY_LINK if by_link else CREDIT

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        waiting = [one.fetch for lane in self._lanes.values() for one in lane if one.fetch]
        assert sorted(waiting) == sorted(self._fetches), "a fetch belongs to one message"
        assert all(self._lanes.values()), "a lane exists while a message waits in it"
        for number, fetch in self._fetches.items():
            assert fetch.asked <= (len(fetch.parts), 0), number
            assert not fetch.owed or not fetch.is_done
            pieces = [*((*place, size) for place, size in fetch.owed.items()), *fetch.again]
            assert all((part, at) < fetch.asked for part, at, _ in pieces)
            assert all(0 < size <= fetch.parts[part] - at for part, at, size in pieces)
        for site in {lane[0] for lane in self._lanes}:
            assert self.owed(site) <= CREDIT

    # --- transitions ------------------------------------------------------------------------------

    def _asks(self, site: str) -> list[Ask]:
        """Requests for as many bytes as there is credit, the oldest payload first."""
        left = self.credit(site) - self.owed(site)
        found: list[Ask] = []
        for number, fetch in self._fetches.items():
            while fetch.lane[0] == site and not fetch.is_lost and not fetch.is_asked:
                if fetch.again:
                    part, at, size = fetch.again[0]
                else:
                    part, at = fetch.asked
                    size = min(PIECE, fetch.parts[part] - at)
                if size > left:
                    return found
                left -= size
                if fetch.again:
                    fetch.again.popleft()
                else:
                    fetch.asked = _next(fetch.parts, part, at + size)
                fetch.owed[part, at] = size
                found.append(Ask(number, part, at, size))
        return found


def _next(parts: Sequence[int], part: int, at: int) -> tuple[int, int]:
    """The position of the next byte; past the last part if there is none."""
    while part < len(parts) and at >= parts[part]:
        part, at = part + 1, 0
    return part, at
