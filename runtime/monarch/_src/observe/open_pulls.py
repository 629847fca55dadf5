"""The weights that this process is pulling, for a front end to show how far they are.

Runs in: any process, any thread.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

_PULLING = "monarch._src.rdma.weights.pull"  # loaded with the first use of weight sync


@dataclass(frozen=True)
class OpenPull:
    """One pull. `number` tells it from others; `source` names who has published.

    `bytes_done` of `size` are there; a `size` of 0: it waits for a version to pull.
    """

    number: int
    source: str
    bytes_done: int
    size: int


def open_pulls() -> list[OpenPull]:
    """The pulls of this process that are under way, oldest first."""
    if _PULLING not in sys.modules:
        return []
    from monarch._src.rdma.weights.pull import pulls_under_way

    return [
        OpenPull(number, source, told.bytes_done, told.size)
        for number, source, told in pulls_under_way()
    ]
