"""A schedule for memory of a GPU that passes through pinned chunks, in rounds. No I/O.

A round fills one half of a chunk, the next round the other half. So while a transport moves one
half, the device copies the other. Small pieces share a round, so that one call moves many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec


class Cut(msgspec.Struct, frozen=True):
    """`size` bytes from `offset` in piece `at`, which lie at `place` in the half."""

    at: int
    offset: int
    size: int
    place: int


def rounds(sizes: Sequence[int], room: int) -> Iterator[list[Cut]]:
    """Pieces of those sizes, cut so that each round fits into `room` bytes; in order."""
    cuts: list[Cut] = []
    used = 0
    for at, size in enumerate(sizes):
        offset = 0
        while offset < size:
            part = min(size - offset, room - used)
            cuts.append(Cut(at, offset, part, used))
            offset += part
            used += part
            if used == room:
                yield cuts
                cuts, used = [], 0
    if cuts:
        yield cuts
