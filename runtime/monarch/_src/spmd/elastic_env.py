"""The environment variables that torch elastic gives to a worker. No I/O.

Invariant: the variables of all ranks agree, since each rank computes them from its own point.
"""

from __future__ import annotations

import msgspec

from monarch._src.shape import Point

USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
RUN_ID = "monarch"


class RankPosition(msgspec.Struct, frozen=True):
    """The place of a rank: among all ranks, and among those of its group, which share a host."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def position_of(point: Point) -> RankPosition:
    """The place of a point: the last dim counts the ranks of a host, as in `{hosts, gpus}`."""
    sizes = point.extent.sizes
    local = sizes[-1] if sizes else 1
    return RankPosition(point.rank, point.extent.nelements, point.rank % local, local)


def elastic_variables(place: RankPosition, master_addr: str, master_port: int) -> dict[str, str]:
    """The variables of torch elastic for a place; the master's address is that of the store.

    As with torchrun, the ranks are clients of a store that is up before they begin
    (`TORCHELASTIC_USE_AGENT_STORE`), so no rank has to bind the port.
    """
    group = place.rank // place.local_world_size
    groups = place.world_size // place.local_world_size
    rank, world = str(place.rank), str(place.world_size)
    return {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(groups),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "rank",
        RESTART_COUNT: "0",
        MAX_RESTARTS: "0",
        "TORCHELASTIC_RUN_ID": RUN_ID,
        USE_AGENT_STORE: "True",
    }


def visible_devices(own: str | None, place: RankPosition) -> str | None:
    """`CUDA_VISIBLE_DEVICES` for a program that takes the device `LOCAL_RANK`; None: as it is.

    A mesh of `gpus` gives each rank one device, number 0 to its process. Such a program wants those
    of its neighbours listed before its own.
    """
    if own is None or not own.isdecimal() or place.local_world_size == 1:
        return None
    first = int(own) - place.local_rank
    if first < 0:
        return None
    return ",".join(str(first + each) for each in range(place.local_world_size))
