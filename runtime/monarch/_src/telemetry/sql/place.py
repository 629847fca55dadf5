"""Where a row comes from: its process, its actor, its time.

Runs in: any process with a runtime, on its receiving thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, cast

from monarch._src.system.epoch import epoch_ns

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell
    from monarch._src.actor.runtime import Runtime

CLIENT = "client"
Place: TypeAlias = "tuple[int, str, int]"
"""The uid and name of a proc mesh, and a rank in it."""


def place_of(run: Runtime) -> Place:
    """The place of this process."""
    ref = run.proc_ref
    if ref is not None:
        return ref.uid, ref.name, run.rank
    return (0 if run.client_ref is None else run.client_ref.uid), CLIENT, 0


def cells_of(run: Runtime) -> list[ActorCell]:
    """The actors of this process that have not ended."""
    return [cast("ActorCell", cell) for cell in list(run.cells.values())]


_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mixed(base: int, number: int) -> int:
    """A 64-bit number for one of the things of `base`: different ones have different numbers."""
    return (base + number * _ODD) & _MASK


@lru_cache(maxsize=1024)
def number_of(text: str) -> int:
    """A 64-bit number that stands for a text: FNV-1a.

    Every rank would load hashlib, and OpenSSL with it, for a better one.
    """
    number = 0xCBF29CE484222325
    for byte in text.encode():
        number = (number ^ byte) * 0x100000001B3 & _MASK
    return number


@lru_cache(maxsize=1024)
def actor_number(uid: int, node: str) -> int:
    """A 64-bit number for the actor of that actor mesh in that process."""
    return number_of(f"{uid:x}.{node}")


def shape_json(labels: Sequence[str], sizes: Sequence[int]) -> str:
    """Labels and sizes as Monarch writes them."""
    return json.dumps({"inner": {"labels": labels, "sizes": sizes}}, separators=(",", ":"))


_offset_ns = 0
_CLOCK_STEP_NS = 1_000_000


def wall_us(monotonic_ns: int) -> int:
    """A time of the monotonic clock as microseconds since the epoch.

    The same time gives the same number again, unless the system's clock has been set.
    """
    global _offset_ns
    offset_ns = epoch_ns()
    if abs(offset_ns - _offset_ns) > _CLOCK_STEP_NS:
        _offset_ns = offset_ns
    return (_offset_ns + monotonic_ns) // 1000
