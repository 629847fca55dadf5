"""The process group of the ranks of several proc meshes, which is made anew in each generation.

Runs in: the process of the `ElasticMesh`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch._src.actor.background import returns_future
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.spmd.group_plan import CPU, GPU, JoinPlan, RankLook, backend_names, own_devices
from monarch._src.spmd.process_group import check_looks, first_of, hosts_of, watched_members
from monarch._src.spmd.rendezvous import FilePlace, TcpPlace


@returns_future
async def group_plans_async(
    meshes: Sequence[ProcMesh], generation: int, backend: str | None, timeout_s: float
) -> list[tuple[Any, JoinPlan]]:
    """For each mesh, its group members and how they join; ranks are numbered mesh by mesh.

    Raises:
        ModuleNotFoundError: a rank has no torch.
        ValueError: a rank does not have that backend.
        RuntimeError: a rank has a process group that its own code has made.
        SupervisionError: a rank has died.
    """
    wanted = () if backend is None else backend_names(backend)
    members: list[Any] = [await watched_members(procs) for procs in meshes]
    asked = [each.look.call(wanted) for each in members]
    looks: list[RankLook] = []
    hosts: list[str] = []
    firsts: list[int] = []
    for procs, answer in zip(meshes, asked, strict=True):
        found: list[RankLook] = [look for _, look in await answer]
        check_looks(procs, found, backend)
        firsts.append(len(looks))
        looks += found
        hosts += hosts_of(procs)
    devices = own_devices([look.gpus for look in looks], hosts)
    place: FilePlace | TcpPlace
    if len(set(hosts)) == 1:
        place = FilePlace(f"{meshes[0].uid}-elastic-{generation}.group")
    else:
        place = await first_of(members[0]).offer.call_one()
    used = devices if backend is None or "nccl" in wanted else ()
    kind = backend or (GPU if devices else CPU)
    plans = [JoinPlan(kind, len(looks), place, timeout_s, used, first) for first in firsts]
    return list(zip(members, plans, strict=True))
