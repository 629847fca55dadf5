"""Names of nodes, meshes and actors. No I/O.

A mesh or actor uid is a positive 62-bit number: 30 random bits of the process that made it, then a
counter. Two processes, or two incarnations of one, make the same uid with a probability of 2^-31.
"""

from __future__ import annotations

import itertools
import os
from functools import lru_cache

AGENT = "agent"
SITE_MARK = "@"
OBSERVER = "observer-"  # prefix of the names of observers
DEBUGGER = "debugger-"  # prefix for consoles that are not clients
TUNNEL = "tunnel-"  # prefix for nodes that only want streams through a gateway


class UidSource:
    """Makes the uids of one process. Thread-safe (one C call for each uid)."""

    def __init__(self, seed: int | None = None) -> None:
        bits = int.from_bytes(os.urandom(4), "big") if seed is None else seed
        self._base = ((bits & 0x3FFFFFFF) | 1) << 32
        self._count = itertools.count(1)

    def __call__(self) -> int:
        return self._base | next(self._count)


_MASK = (1 << 64) - 1


@lru_cache(maxsize=1024)
def number_of(text: str) -> int:
    """A 64-bit number that stands for a text: FNV-1a.

    Every rank would load hashlib, and OpenSSL with it, for a better one.
    """
    number = 0xCBF29CE484222325
    for byte in text.encode():
        number = (number ^ byte) * 0x100000001B3 & _MASK
    return number


def agent_at(site: str) -> str:
    """The name of the host agent of another site; AGENT always stands for that of this site."""
    return f"{AGENT}{SITE_MARK}{site}"


def is_agent(node: str) -> bool:
    """Whether that is the name of a host agent, of this site or another."""
    return node == AGENT or node.startswith(AGENT + SITE_MARK)


def is_tunnel(node: str) -> bool:
    """Whether that is the name of a tunnel's client end, which is a node of no site."""
    return node.startswith(TUNNEL)


def site_of_agent(node: str) -> str:
    """The site in a name made by `agent_at`."""
    return node.partition(SITE_MARK)[2]


def new_site(host: str) -> str:
    """A unique name for one incarnation of a host of that name."""
    return f"{host[:64]}-{os.urandom(6).hex()}"


def host_of_site(site: str) -> str:
    """The name of the host of a site."""
    return site.rpartition("-")[0]


@lru_cache(4096)
def proc_node(mesh: int, rank: int, life: int = 0) -> str:
    """The node name of a proc: of that mesh and rank, in that incarnation (`life`)."""
    return f"{mesh:x}.{rank}.{life}" if life else f"{mesh:x}.{rank}"


def parse_proc_node(node: str) -> tuple[int, int] | None:
    """(mesh, rank) of a proc's node name; None for other nodes."""
    place = _parsed(node)
    return None if place is None else place[:2]


def life_of(node: str) -> int:
    """How often a proc of that name has been restarted; 0 for other nodes."""
    place = _parsed(node)
    return 0 if place is None else place[2]


def _parsed(node: str) -> tuple[int, int, int] | None:
    mesh, dot, rest = node.partition(".")
    if not dot:
        return None
    rank, _, life = rest.partition(".")
    try:
        place = int(mesh, 16), int(rank), int(life or "0")
    except ValueError:
        return None
    return place if min(place) >= 0 and proc_node(*place) == node else None  # canonical form only
