"""Large payloads on their way from other hosts: what is asked for, and what waits behind it.

No I/O, no clock. One table stands for what comes to one host. Its driver is
`monarch._src.payload.host_fetcher`.

A message whose payload is still on the host of its sender *waits* until that was *fetched*, and so
does what the same sender has said to the same receiver since: a *lane*, which keeps their order.
What is fetched is asked for in pieces, which may come in any order: so many bytes of all that one
host sends at a time (the *credit*), so that a host holds no more than was asked for. Pieces go by
connections of their own. Where these cannot be made, a fetch goes *by link*, with less credit:
small messages on the same link wait for no more than that.

    state of a message      behind a fetch -> ASKED (piece by piece) -> HERE -> out, in its turn
                            no fetch       ->                           HERE -> out, in its turn
    its sender has ended    ASKED -> LOST, dropped in its turn; HERE -> out, in its turn
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

PIECE = 1 << 22  # bytes that are asked for at a time
CREDIT = 1 << 25  # bytes that one host is asked for and has not sent yet
CREDIT_BY_LINK = 1 << 23  # the same while any of it goes by a link

Item = TypeVar("Item")
Lane: TypeAlias = tuple[str, str, str]  # the site of the sender, the sender, the receiver


class Ask(msgspec.Struct, frozen=True):
    """Ask for that piece: which part of the payload, from where in it, how many bytes."""

    fetch: int
    part: int
    at: int
    size: int


class _Fetch(msgspec.Struct, eq=False):
    """One payload.

    parts: their sizes. asked: up to where it was asked for, as a part and a place.
    owed: sizes of the pieces that were asked for and have not come, by their part and place.
    again: pieces that were asked for in vain.
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
    fetch: int  # 0: it has all that belongs to it


class Fetching(Generic[Item]):
    """See the module's text. `Item` is whatever the driver has of a message. Not thread-safe."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[_Waiting[Item]]] = {}
        self._fetches: dict[int, _Fetch] = {}  # in the order in which they are asked for
        self._number = 0

    def __len__(self) -> int:
        return len(self._fetches)

    # --- events -----------------------------------------------------------------------------------

    def passes(self, lane: Lane) -> bool:
        """Whether a message that is whole may be handed on: nothing waits that came before it."""
        return lane not in self._lanes

    def came(self, lane: Lane, item: Item) -> None:
        """A whole message came, and may not pass."""
        self._lanes[lane].append(_Waiting(item, 0))

    def wanted(
        self, lane: Lane, item: Item, parts: Sequence[int], *, by_link: bool = False
    ) -> tuple[int, list[Ask]]:
        """A message came whose payload, in parts of these sizes, is still with its sender."""
        self._number += 1
        self._fetches[self._number] = _Fetch(lane, tuple(parts), _next(parts, 0, 0), by_link)
        self._lanes.setdefault(lane, deque()).append(_Waiting(item, self._number))
        return self._number, self._asks(lane[0])

    def piece_came(self, number: int, part: int, at: int, size: int) -> tuple[list[Ask], bool]:
        """That piece is here: what to ask for next, and whether all of the payload is.

        Raises:
            ValueError: no such piece is owed.
        """
        fetch = self._fetches[number]
        if fetch.owed.get((part, at)) != size:
            raise ValueError(f"{size} bytes at {at} of part {part} are not what was asked for")
        del fetch.owed[part, at]
        return self._asks(fetch.lane[0]), fetch.is_here

    def goes_by_link(self, number: int, part: int, at: int) -> list[Ask]:
        """That piece does not come as it was asked for; what is missing is to come by the link."""
        fetch = self._fetches.get(number)
        size = None if fetch is None else fetch.owed.pop((part, at), None)
        if fetch is None or size is None:
            return []
        fetch.by_link = True
        fetch.again.append((part, at, size))
        return self._asks(fetch.lane[0])

    def is_lost(self, number: int) -> list[Ask]:
        """That payload cannot be had: its message is dropped in its turn."""
        fetch = self._fetches.get(number)
        if fetch is None:
            return []
        fetch.lose()
        return self._asks(fetch.lane[0])

    def sender_ended(self, site: str, sender: str | None = None) -> list[int]:
        """No more comes from that node, or from any of that site: the payloads that are lost."""
        lost = [
            number for number, fetch in self._fetches.items()
            if fetch.lane[0] == site and sender in (None, fetch.lane[1]) and not fetch.is_done
        ]  # fmt: skip
        for number in lost:
            self._fetches[number].lose()
        return lost

    def released(self, lane: Lane) -> list[Item]:
        """What may be handed on now, in order; what is lost is left out."""
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

    # --- what is so -------------------------------------------------------------------------------

    def owed(self, site: str) -> int:
        """Bytes that the host of that site was asked for and has not sent yet."""
        return sum(sum(f.owed.values()) for f in self._fetches.values() if f.lane[0] == site)

    def credit(self, site: str) -> int:
        """How many bytes that may be, from now on."""
        by_link = any(
            fetch.by_link and fetch.lane[0] == site and not fetch.is_done
            for fetch in self._fetches.values()
        )
        return CREDIT_BY_LINK if by_link else CREDIT

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        waiting = [one.fetch for lane in self._lanes.values() for one in lane if one.fetch]
        assert sorted(waiting) == sorted(self._fetches), "a fetch is that of one message"
        assert all(self._lanes.values()), "a lane is there as long as something waits in it"
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
        """As much as there is credit for, of what came first."""
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
    """The place where the next byte is to be; behind the last part if there is none."""
    while part < len(parts) and at >= parts[part]:
        part, at = part + 1, 0
    return part, at
