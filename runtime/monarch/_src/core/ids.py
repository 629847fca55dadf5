"""How nodes, meshes and actors are named. No I/O.

A mesh or actor uid is a positive 62-bit number: 30 random bits of the process that made it, then a
counter. Two processes, or two lives of one, can't make the same uid but by a 2^-31 accident.
"""

from __future__ import annotations

import itertools
import os

AGENT = "agent"
OBSERVER = "observer-"  # how the name of one begins that only looks on


class UidSource:
    """Uids of one process. Thread-safe (one C call a uid)."""

    def __init__(self, seed: int | None = None) -> None:
        bits = int.from_bytes(os.urandom(4), "big") if seed is None else seed
        self._base = ((bits & 0x3FFFFFFF) | 1) << 32
        self._count = itertools.count(1)

    def __call__(self) -> int:
        return self._base | next(self._count)


def proc_node(mesh: int, rank: int) -> str:
    """The node name of one proc of a mesh."""
    return f"{mesh:x}.{rank}"


def parse_proc_node(node: str) -> tuple[int, int] | None:
    """(mesh, rank) of a proc's node name; None for other nodes."""
    mesh, dot, rank = node.partition(".")
    if not dot:
        return None
    try:
        place = int(mesh, 16), int(rank)
    except ValueError:
        return None
    return place if min(place) >= 0 and proc_node(*place) == node else None  # one way to write it
