"""An actor that is counted in every way, and the figures of one endpoint."""

from __future__ import annotations

import os
from typing import Any

from monarch.actor import Actor, Port, endpoint
from monarch.observe import EndpointMetrics, metrics
from tests.integration.gates import write_byte


class Talker(Actor):
    """Answers through ports, or is not counted, or computes."""

    @endpoint(explicit_response_port=True)
    def plus_one(self, port: Port[int], number: int) -> None:
        port.send(number + 1)

    @endpoint(explicit_response_port=True)
    def give_exception(self, port: Port[int]) -> None:
        port.exception(KeyError("as it is"))

    @endpoint(instrument=False)
    def uncounted(self, value: int) -> int:
        return value

    @endpoint
    def compute_until(self, entered: str, path: str) -> int:
        """In Python, all the time."""
        write_byte(entered)
        number = 0
        while not os.path.exists(path):
            for _ in range(10_000):
                number += 1
        return number

    @endpoint
    def nothing(self) -> None:
        return None

    @endpoint
    def read(self, mesh: Any) -> list[tuple[str, str, int, int]]:
        found = metrics(mesh, timeout=60)
        assert found.missing == ()
        return [(r.side, r.endpoint, r.calls, r.in_flight) for r in found.endpoints]

    def plain(self, number: int) -> int:
        return 2 * number


def rows(
    mesh: Any, name: str = "", side: str = "callee", adverb: str | None = None
) -> list[EndpointMetrics]:
    """The rows of one endpoint, or of all."""
    found = metrics(mesh, timeout=60)
    assert found.missing == ()
    return [
        row
        for row in found.endpoints
        if row.side == side and name in ("", row.endpoint) and adverb in (None, row.adverb)
    ]


def callee(mesh: Any, name: str) -> EndpointMetrics:
    """What those who run it have counted."""
    (row,) = rows(mesh, name)
    return row


def caller(mesh: Any, name: str, adverb: str) -> EndpointMetrics:
    """What those who call it have counted."""
    (row,) = rows(mesh, name, "caller", adverb)
    return row
