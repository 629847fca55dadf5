"""Where a row comes from: its process, its actor, its time.

Runs in: any process with a runtime, on its receiving thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from monarch._src.system.epoch import epoch_ns
from monarch._src.wire.ids import number_of

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
def actor_number(uid: int, node: str) -> int:
    """A 64-bit number for the actor of that actor mesh in that process."""
    return number_of(f"{uid:x}.{node}")


def host_number(agent_address: str) -> int:
    """A 64-bit number for the client's host as a host mesh, by the address of its agent."""
    return number_of(f"host {agent_address}")


def shape_json(labels: Sequence[str], sizes: Sequence[int]) -> str:
    """Labels and sizes as Monarch writes them."""
    return json.dumps({"inner": {"labels": labels, "sizes": sizes}}, separators=(",", ":"))


def view_json(region: Any) -> str:
    """The ranks of a region as Monarch writes them."""
    ranks = region.ndslice
    inner = {"offset": ranks.offset, "sizes": list(ranks.sizes), "strides": list(ranks.strides)}
    return json.dumps({"labels": region.labels, "slice": inner}, separators=(",", ":"))


_offset_ns = 0
_CLOCK_STEP_NS = 1_000_000


def wall_us(monotonic_ns: int) -> int:
    """A time of the monotonic clock as microseconds since the epoch.

    The same time gives the same number again, unless the system's clock has been set.
    """
    return (wall_offset_ns() + monotonic_ns) // 1000


def wall_offset_ns() -> int:
    """The wall clock less the monotonic clock. Reading them takes longer than using the result."""
    global _offset_ns
    offset_ns = epoch_ns()
    if abs(offset_ns - _offset_ns) > _CLOCK_STEP_NS:
        _offset_ns = offset_ns
    return _offset_ns
