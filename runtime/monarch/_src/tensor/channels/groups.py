"""The process groups of ranks, by numbers of the client. Runs in: the client.

The first use of a group makes it. When a rank dies, all groups of its procs end, and the next use
makes a new group.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

from monarch._src.actor.background import returns_future
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.spmd.process_group import watched_members
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.channels.driver import Driver
from monarch._src.tensor.operations.kinds import own_kind
from monarch._src.tensor.regions.recording import unrecorded
from monarch._src.tensor.state.instructions import NOTHING
from monarch._src.tensor.state.layouts import Layout

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
