"""Credit for sending to other hosts: bounds the bytes that wait in gateways. No I/O.

A link between hosts bounds its own queue (`net.state.link`), and a process that sends by its own
link waits for room there. A process without a link sends to the gateway of its host, which never
blocks. So the process has an *allowance* for each site: a limit on the total of bytes that it ever
sends there. The gateway raises it while the link has room. Between a gateway and one process there
is then at most `ALLOWANCE` and one message for each site, however slow the site is, and a slow site
delays only the processes that send to it.

`SenderCredit` is the sender's side, `GatewayCredit` the gateway's. Neither is thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable

ALLOWANCE = 16 << 20
QUEUE = 64 << 20  # bytes that may wait in one link


class SenderCredit:
    """The bytes that this process has sent to its gateway, and the limits, by site."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def spent(self, site: str, size: int) -> None:
        """Count bytes that were sent to the gateway for that site."""
        self._given[site] = self._given.get(site, 0) + size

    def has_room(self, site: str) -> bool:
        """Whether the process may send more to that site."""
        return self._given.get(site, 0) < self._limits.get(site, ALLOWANCE)

    def on_limit_raised(self, site: str, limit: int) -> None:
        """The gateway has raised the limit on the total for that site."""
        self._limits[site] = max(limit, self._limits.get(site, 0))

    def reset(self) -> None:
        """Start anew with another gateway."""
        self._given.clear()
        self._limits.clear()


class GatewayCredit:
    """The bytes that a gateway has relayed, and the limits granted, by process and site."""

    def __init__(self) -> None:
        self._passed: dict[tuple[str, str], int] = {}
        self._told: dict[tuple[str, str], int] = {}

    def passed(self, node: str, site: str, size: int, has_room: Callable[[], bool]) -> int | None:
        """Count relayed bytes of a process; returns a new limit to grant it, or None.

        `has_room`: whether the link has room; called only if a limit is due.
        """
        pair = (node, site)
        passed = self._passed[pair] = self._passed.get(pair, 0) + size
        limit = passed + ALLOWANCE
        if 2 * (limit - self._told.get(pair, ALLOWANCE)) < ALLOWANCE or not has_room():
            return None
        self._told[pair] = limit
        return limit

    def room(self, site: str) -> list[tuple[str, int]]:
        """Raise limits because the link has room again, or is gone; returns (process, limit)s."""
        found: list[tuple[str, int]] = []
        for pair, passed in self._passed.items():
            limit = passed + ALLOWANCE
            if pair[1] == site and limit > self._told.get(pair, ALLOWANCE):
                self._told[pair] = limit
                found.append((pair[0], limit))
        return found

    def forget(self, node: str) -> None:
        """Forget a process that is gone."""
        for table in (self._passed, self._told):
            for pair in [pair for pair in table if pair[0] == node]:
                del table[pair]
