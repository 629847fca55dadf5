"""The weight pulls of this process, for front ends to show as progress.

Runs in: any process, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpenPull:
    """One pull. `number` identifies it; `source` names the publisher.

    `bytes_done` of `size` have arrived; a `size` of 0: the pull waits for a version.
    """

    number: int
    source: str
    bytes_done: int
    size: int


def open_pulls() -> list[OpenPull]:
    """The running pulls of this process, oldest first."""
    from monarch._src.rdma.weights.progress import pulls_under_way

    return [
        OpenPull(number, source, told.bytes_done, told.size)
        for number, source, told in pulls_under_way()
    ]
