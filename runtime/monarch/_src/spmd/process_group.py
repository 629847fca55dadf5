"""Process groups of a proc mesh: made, watched and destroyed from the process that drives it.

Runs in: the process that calls, a client or an actor's. Deaths are noticed on the receiving thread.
Owns: a `GroupMember` mesh for each mesh or slice with a group, from its first use until the procs
stop.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from monarch._src.actor.background import returns_future
from monarch._src.errors import ActorError
from monarch._src.events import MeshStopped, RankFailed, RankRestarting, bus
from monarch._src.mesh.meshes import ProcMesh, shared_procs
from monarch._src.mesh.process_group_methods import DeviceMeshRef
from monarch._src.shape import Region
from monarch._src.spmd.group_plan import (
    CPU,
    GPU,
    JoinPlan,
    RankLook,
    backend_names,
    own_devices,
    shared_gpus,
)
from monarch._src.spmd.rendezvous import FilePlace, TcpPlace

log = logging.getLogger("monarch.spmd")
NAME = "process_group"
TIMEOUT_S = 1800.0  # torch's own for gloo
_numbers = itertools.count(1)


class MeshWatch:
    """The group members of a mesh or slice, and the news of deaths that they get from here."""

    def __init__(self, procs: ProcMesh) -> None:
        from monarch._src.spmd.member import GroupMember  # loads asyncio

        self._uid = shared_procs(procs).ref.uid
        self._region = procs._region  # pyright: ignore[reportPrivateUsage]
        self.members: Any = procs.spawn(NAME, GroupMember)
        self.procs = procs
        # Of the last group that was made: a number that grows, the backend, the time-out.
        self.made: tuple[int, str | None, float] | None = None
        self._unsubscribe: list[Callable[[], None]] = [
            bus.subscribe(RankFailed, self._on_rank_ended),
            bus.subscribe(RankRestarting, self._on_rank_ended),
            bus.subscribe(MeshStopped, self._on_mesh_stopped),
        ]

    @property
    def has_stopped(self) -> bool:
        """Whether its actors were stopped, as with the actor that owns them."""
        return self.members._actors.stopped is not None

    def close(self) -> None:
        """Tell no more. Idempotent."""
        for each in self._unsubscribe:
            each()
        self._unsubscribe = []
        if _watches.get((self._uid, self._region)) is self:
            del _watches[self._uid, self._region]

    def _on_mesh_stopped(self, event: MeshStopped) -> None:
        if event.uid == f"{self._uid:x}":
            self.close()

    def _on_rank_ended(self, event: RankFailed | RankRestarting) -> None:
        if event.mesh != self._uid or event.failure.rank not in self._region:
            return
        if self.has_stopped:
            self.close()
            return
        gone = self._region.position(event.failure.rank)
        why, extent = event.failure.what, self._region.extent
        for position in range(len(self._region)):
            if position != gone:
                member = self.members.slice(**dict(extent.point_of_rank(position)))
                try:
                    # A call, since it is no failure if that rank ends before it.
                    member.on_groups_ended.call(
                        why, mesh_size=len(self._region), gone=event.failure.rank
                    )
                except Exception as error:
                    log.debug("rank %d was not told of %d: %s", position, gone, error)


_watches: dict[tuple[int, Region], MeshWatch] = {}


async def watched_members(procs: ProcMesh, *, anew: bool = False) -> Any:
    """The group members of that mesh; from here on its ranks are watched.

    `anew`: groups that have ended are forgotten, since the program makes others.

    Raises:
        ModuleNotFoundError: a rank has no torch.
        SupervisionError: a rank has died.
    """
    key = (shared_procs(procs).ref.uid, procs._region)  # pyright: ignore[reportPrivateUsage]
    watch = _watches.get(key)
    if watch is not None and watch.has_stopped:
        watch.close()
        watch = None
    if watch is None:
        watch = _watches[key] = MeshWatch(procs)
    problems = (await watch.members.watch.call(watch.members, anew=anew)).values()
    for where, problem in zip(_places(procs), problems, strict=True):
        if problem:
            raise ModuleNotFoundError(f"{where}: {problem}", name="torch")
    return watch.members


@returns_future
async def init_process_group_async(
    procs: ProcMesh, backend: str | None = None, *, timeout: float | timedelta | None = None
) -> None:
    """`ProcMesh.init_process_group`, as a future for async code."""
    timeout_s = timeout_seconds(timeout)
    wanted = () if backend is None else backend_names(backend)
    members = await watched_members(procs)
    looks: list[RankLook] = [look for _, look in await members.look.call(wanted)]
    raised = [absence for look in looks for absence in look.raised]
    if raised or any(look.has_late_calls for look in looks):
        await members.settle.call(raised)
        looks = [look for _, look in await members.look.call(wanted)]
    check_looks(procs, looks, backend)
    hosts = hosts_of(procs)
    devices = own_devices([look.gpus for look in looks], hosts)
    if "nccl" in wanted and not devices:
        raise ValueError(shared_gpus(procs.name, [look.gpus for look in looks], backend))
    plan = JoinPlan(
        backend or (GPU if devices else CPU), len(looks), FilePlace(""), timeout_s,
        devices if backend is None or "nccl" in wanted else (),
    )  # fmt: skip
    if all(look.group is not None and look.group.kind == plan.kind for look in looks):
        made = {look.group.place for look in looks if look.group is not None}
        if len(made) == 1:
            return
    await _join(procs, members, plan, one_host=len(set(hosts)) == 1)
    watch = _watches.get((shared_procs(procs).ref.uid, procs._region))  # pyright: ignore[reportPrivateUsage]
    if watch is not None:
        watch.made = next(_numbers), backend, timeout_s


async def remake_process_groups(procs: ProcMesh, ranks: Sequence[int]) -> list[str]:
    """Make the groups again that had these ranks, which were restarted.

    They are made in the order of then, since the last group of a rank is its default group. Returns
    a line for each group that could not be made.
    """
    uid = shared_procs(procs).ref.uid
    lines: list[str] = []
    found = [
        (watch.made, watch.procs)
        for (mesh, region), watch in list(_watches.items())
        if mesh == uid and watch.made is not None and not watch.has_stopped
        and any(rank in region for rank in ranks)
    ]  # fmt: skip
    for (_, backend, timeout_s), of in sorted(found, key=lambda one: one[0][0]):
        try:
            await init_process_group_async(of, backend, timeout=timeout_s)
        except Exception as error:
            first = str(error).partition("\n")[0]
            lines.append(f"process group of {of.name} not made again: {first}")
    return lines


async def _join(procs: ProcMesh, members: Any, plan: JoinPlan, *, one_host: bool) -> None:
    place: FilePlace | TcpPlace
    if one_host:
        place = FilePlace(f"{procs.uid}-{next(_numbers)}.group")
    else:
        place = await first_of(members).offer.call_one()
    joined = JoinPlan(plan.backend, plan.world_size, place, plan.timeout_s, plan.devices)
    try:
        await members.join.call(joined)
    except ActorError as error:
        if isinstance(error.exception, ValueError):  # of torch, for arguments that do not fit
            raise error.exception from error
        raise


@returns_future
async def device_mesh_async(procs: ProcMesh, backend: str | None = None) -> DeviceMeshRef:
    """`ProcMesh.device_mesh`, as a future for async code."""
    await init_process_group_async(procs, backend)
    members = await watched_members(procs)
    looks: list[RankLook] = [look for _, look in await members.look.call(())]
    plans = [look.group for look in looks]
    on_gpu = all(plan is not None and plan.devices for plan in plans)
    labels, sizes = procs.extent.labels or ("ranks",), procs.extent.sizes or (1,)
    place = plans[0].place if plans[0] is not None else None
    made = place.name if isinstance(place, FilePlace) else str(place)
    device_type = "cuda" if on_gpu else "cpu"
    key = f"{procs.uid} {made} {device_type} {labels} {sizes}"
    await members.make_device_mesh.call(key, device_type, tuple(sizes), tuple(labels))
    return DeviceMeshRef(key, procs.name, device_type, tuple(labels), tuple(sizes))


def init_process_group(
    procs: ProcMesh, backend: str | None = None, timeout: float | timedelta | None = None
) -> None:
    """See `ProcMesh.init_process_group`."""
    init_process_group_async(procs, backend, timeout=timeout).get()


def device_mesh(procs: ProcMesh, backend: str | None = None) -> DeviceMeshRef:
    """See `ProcMesh.device_mesh`."""
    return device_mesh_async(procs, backend).get()


def first_of(members: Any) -> Any:
    """Rank 0 of an actor mesh."""
    return members.slice(**dict.fromkeys(members.extent.labels, 0))


def is_on_one_host(procs: ProcMesh) -> bool:
    """Whether all ranks of that mesh or slice are on one host."""
    return len(set(hosts_of(procs))) == 1


def hosts_of(procs: ProcMesh) -> list[str]:
    """The site of each rank of a mesh or slice."""
    ref = shared_procs(procs).ref
    return [ref.site(rank) for rank in procs._region.ranks()]  # pyright: ignore[reportPrivateUsage]


def _places(procs: ProcMesh) -> list[str]:
    """What errors call each rank of a mesh or slice: the mesh, and its point there."""
    extent = shared_procs(procs).ref.extent
    region = procs._region  # pyright: ignore[reportPrivateUsage]
    points = [extent.point_of_rank(rank) for rank in region.ranks()]
    return [
        f"{procs.name}[{', '.join(f'{dim}={index}' for dim, index in point.items())}]"
        if point
        else procs.name
        for point in points
    ]


def check_looks(procs: ProcMesh, looks: Sequence[RankLook], backend: str | None) -> None:
    """Raise if a rank cannot join a group now."""
    for where, look in zip(_places(procs), looks, strict=True):
        if look.missing:
            raise ValueError(
                f"backend {backend!r}: the torch of {where} on {look.host} has no "
                f"{' and no '.join(look.missing)}; it has {', '.join(look.available)}"
            )
        if look.foreign:
            raise RuntimeError(
                f"code on {where} has made a process group of its own; call "
                "torch.distributed.destroy_process_group() there first"
            )
        if look.joining:
            raise RuntimeError(
                f"{where} still joins an earlier process group; stop these procs and spawn others"
            )


def timeout_seconds(timeout: float | timedelta | None) -> float:
    """The time-out of collectives in seconds. Raises TypeError, ValueError."""
    if timeout is None:
        return TIMEOUT_S
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"timeout is seconds or a timedelta, not {type(timeout).__name__}")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"timeout is a finite time above 0, not {timeout!r}")
    return float(seconds)
