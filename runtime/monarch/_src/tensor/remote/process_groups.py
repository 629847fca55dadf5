"""`RemoteProcessGroup`: the process group of ranks along dims, for torch.distributed on the ranks.

The group is an object on the ranks, as that of an `OpaqueRef`, and is freed as such. Reductions use
groups too, by numbers of the client. The first use of a group makes it. When a rank dies, all
groups of its procs end, and the next use makes a new group.

Runs in: the client.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from math import prod
from typing import Any, cast

from monarch._src.actor.background import returns_future
from monarch._src.config import seconds
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.spmd.process_group import watched_members
from monarch._src.tensor.active_mesh import active_stream
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.channels.driver import Driver, channel_of
from monarch._src.tensor.opaque import OBJECT, OpaqueRef
from monarch._src.tensor.operations.kinds import own_kind
from monarch._src.tensor.regions.recording import refuse, unrecorded
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.instructions import NOTHING
from monarch._src.tensor.state.layouts import Layout, layout_of_dims
from monarch._src.tensor.state.metas import Handle, Storage

_numbers = itertools.count(1)


@returns_future
async def _watch(procs: ProcMesh, anew: bool) -> None:
    await watched_members(procs, anew=anew)


def dims_of(name: str, channel: Channel, dims: str | Sequence[str]) -> list[str]:
    """The dims that an operation of that name gets; all of the channel if none is given.

    Raises:
        KeyError: no such dim. ValueError: one is given twice.
    """
    sizes = channel.region.sizes
    names = [dims] if isinstance(dims, str) else list(dims) or list(sizes)
    for dim in names:
        if dim not in sizes:
            have = ", ".join(sizes) or "none"
            raise KeyError(f"{name}: {channel.name} has no dim {dim!r}; it has {have}")
    if len(set(names)) < len(names):
        raise ValueError(f"{name}: a dim is named twice in {names}")
    return names


def group_of(channels: Sequence[Channel], key: Any, layout: Layout, site: int) -> int:
    """The number of the group of that layout on the ranks of these channels.

    `key`: equal for equal layouts of the first channel.

    Raises:
        SupervisionError: a rank has died.
    """
    first = channels[0]
    driver = cast(Driver, first.driver)
    own = (key, driver.deaths)
    number = first.groups.get(own)
    if number is not None:
        return number
    with unrecorded():  # ranks keep the group, whatever asks for it first
        return _made(channels, own, layout, site)


def _made(channels: Sequence[Channel], own: Any, layout: Layout, site: int) -> int:
    first = channels[0]
    number, place = new_group(channels)
    kind = own_kind("monarch::make_group", stores=NOTHING)
    with first.driver.lock:  # ranks join groups in one order, whatever other threads record
        for channel in channels:
            channel.record(kind, (), (number, place, layout), site)
    first.groups[own] = number
    return number


def new_group(channels: Sequence[Channel]) -> tuple[int, Any]:
    """A number for a group of the ranks of these channels, and the place at which they meet.

    Raises:
        SupervisionError: a rank has died.
    """
    first = channels[0]
    driver = cast(Driver, first.driver)
    for channel in channels:
        channel.check()
    for mesh in driver.unwatched([one.mesh for one in channels]):
        deaths = driver.deaths
        _watch(mesh, deaths > 0).get()
        driver.watched[mesh._region] = deaths  # pyright: ignore[reportPrivateUsage]
    number = next(_numbers)
    return number, driver.meeting_place(first, number)


class RemoteProcessGroup(OpaqueRef):
    """The groups of the ranks of a mesh that differ in some dims only.

    As an argument of a remote function it is, on each rank, the torch.distributed.ProcessGroup that
    the rank is in. `ProcMesh.process_group` makes one.

    Attributes:
        mesh: the mesh.
        dims: the dims in which the ranks of one group differ.
    """

    __slots__ = ("dims", "mesh")

    def __init__(self, mesh: ProcMesh, dims: tuple[str, ...], handle: Handle) -> None:
        super().__init__()
        self.mesh = mesh
        self.dims = dims
        self.monarch_handle = handle

    def size(self) -> int:
        """The number of ranks of each group."""
        return prod(self.mesh.sizes[dim] for dim in self.dims)

    def __repr__(self) -> str:
        return f"<monarch.RemoteProcessGroup of {self.mesh.name} along {', '.join(self.dims)}>"


def process_group(
    mesh: ProcMesh, dims: str | Sequence[str], timeout: float | str
) -> RemoteProcessGroup:
    """See `ProcMesh.process_group`."""
    timeout_s = seconds("timeout", timeout)
    channel = channel_of(mesh, active_stream())
    names = dims_of("process_group", channel, dims)
    refuse("process_group()", "make it before the call, and give it as an argument")
    number, place = new_group((channel,))
    scalars = (number, place, layout_of_dims(channel.region, names), timeout_s)
    site = sites.number(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    made = channel.record(own_kind("monarch::process_group"), (), scalars, site)
    return RemoteProcessGroup(mesh, tuple(names), Handle(made, OBJECT, Storage(), channel))
