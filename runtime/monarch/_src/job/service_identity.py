"""Identities of workers in their addresses, as launchers of Monarch hand them out. No I/O but the
environment.

Workers here name themselves when they answer, so an identity in an address only tells apart the
workers of one `attach_to_workers`: the same one twice is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, cast

from monarch._src.actor.identity import ProcId, Uid

SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"
_LABEL = "service"


def new_service_proc_id() -> ProcId:
    """A new identity for a worker, such as `service<1f0c>`."""
    return ProcId(Uid.instance(_LABEL))


def serialize_service_proc_ids(proc_ids: Sequence[ProcId]) -> str:
    """Identities as JSON, for the variable `SERVICE_PROC_IDS_ENV`."""
    return json.dumps([str(one) for one in proc_ids])


def deserialize_service_proc_ids(serialized: str) -> list[ProcId]:
    """The identities in that JSON.

    Raises:
        ValueError: it is no list of identities.
    """
    try:
        found: Any = json.loads(serialized)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise ValueError(f"{serialized!r} is no JSON list of identities")
    return [ProcId.from_string(str(one)) for one in cast("list[Any]", found)]


def ranked_service_proc_id_from_env(*, rank_env: str = SERVICE_PROC_RANK_ENV) -> ProcId | None:
    """This worker's identity: item `$MONARCH_SERVICE_PROC_RANK` of `$MONARCH_SERVICE_PROC_IDS`.

    None if one of these is not set.

    Args:
        rank_env: another variable with the rank, such as `SLURM_NODEID`.

    Raises:
        ValueError: they do not fit each other.
    """
    serialized, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(rank_env)
    if serialized is None or rank is None:
        return None
    found = deserialize_service_proc_ids(serialized)
    if not rank.isdecimal() or int(rank) >= len(found):
        raise ValueError(
            f"{rank_env} is {rank!r}, and {SERVICE_PROC_IDS_ENV} has {len(found)} identities: give "
            "a rank from 0"
        )
    return found[int(rank)]


def service_proc_addr(address: str, proc_id: ProcId | None) -> str:
    """The address with the identity of its worker: `service<1f0c>@tcp://host:26600`.

    The address itself if there is no identity.
    """
    return address if proc_id is None else f"{proc_id}@{address}"


def service_proc_addrs(addresses: Sequence[str], proc_ids: Sequence[ProcId] | None) -> list[str]:
    """As `service_proc_addr`, for each worker.

    Raises:
        ValueError: there are not as many identities as addresses.
    """
    if proc_ids is None:
        return list(addresses)
    if len(proc_ids) != len(addresses):
        raise ValueError(
            f"{len(addresses)} addresses have {len(proc_ids)} identities; give one for each"
        )
    return [service_proc_addr(a, i) for a, i in zip(addresses, proc_ids, strict=True)]
