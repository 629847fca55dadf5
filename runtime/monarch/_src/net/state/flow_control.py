"""How much a process may send to another host before that host has taken some of it. No I/O.

Between hosts a link bounds what waits in it (`net.state.link`), and who sends by its own link waits
for room there. A process that has none gives what it sends to the gateway of its host, which never
blocks; so it has an *allowance* for each other host, in bytes of all that it ever gave, and the
gateway raises it as the link has room. Between a gateway and one process there is then at most
`ALLOWANCE` and one message for each host, however slow that is; and who sends to a slow one is held
up by that, and nobody else.

`SenderCredit` is the part of who sends, `GatewayCredit` that of the gateway. Neither is
thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable

ALLOWANCE = 16 << 20
QUEUE = 64 << 20  # what waits in one link


class SenderCredit:
    """What this process gave its gateway, by host."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def spent(self, site: str, size: int) -> None:
        """So many bytes more are on their way there."""
        self._given[site] = self._given.get(site, 0) + size

    def has_room(self, site: str) -> bool:
        """Whether more may be given."""
        return self._given.get(site, 0) < self._limits.get(site, ALLOWANCE)

    def on_limit_raised(self, site: str, limit: int) -> None:
        """The gateway takes that much in all."""
        self._limits[site] = max(limit, self._limits.get(site, 0))

    def reset(self) -> None:
        """There is another gateway, which was given nothing yet."""
        self._given.clear()
        self._limits.clear()


class GatewayCredit:
    """What the processes of this host may give to be passed on, by process and host."""

    def __init__(self) -> None:
        self._passed: dict[tuple[str, str], int] = {}
        self._told: dict[tuple[str, str], int] = {}

    def passed(self, node: str, site: str, size: int, has_room: Callable[[], bool]) -> int | None:
        """That process gave so much for that host; the limit that it is to be told, if any.

        `has_room`: whether the link there has, which is asked if it matters.
        """
        pair = (node, site)
        passed = self._passed[pair] = self._passed.get(pair, 0) + size
        limit = passed + ALLOWANCE
        if 2 * (limit - self._told.get(pair, ALLOWANCE)) < ALLOWANCE or not has_room():
            return None
        self._told[pair] = limit
        return limit

    def room(self, site: str) -> list[tuple[str, int]]:
        """The link there has room again, or takes nothing any more: who is to be told what."""
        found: list[tuple[str, int]] = []
        for pair, passed in self._passed.items():
            limit = passed + ALLOWANCE
            if pair[1] == site and limit > self._told.get(pair, ALLOWANCE):
                self._told[pair] = limit
                found.append((pair[0], limit))
        return found

    def forget(self, node: str) -> None:
        """That process is gone."""
        for table in (self._passed, self._told):
            for pair in [pair for pair in table if pair[0] == node]:
                del table[pair]
