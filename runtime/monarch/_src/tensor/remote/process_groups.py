"""`RemoteProcessGroup`: the process group of ranks along dims, for torch.distributed on the ranks.

The group is an object on the ranks, as that of an `OpaqueRef`, and is freed as such.

Runs in: the client.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from monarch._src.config import seconds
from monarch._src.tensor.active_mesh import active_stream
from monarch._src.tensor.channels.driver import channel_of
from monarch._src.tensor.channels.groups import dims_of, new_group
from monarch._src.tensor.opaque import OBJECT, OpaqueRef
from monarch._src.tensor.operations.kinds import own_kind
from monarch._src.tensor.regions.recording import refuse
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.layouts import layout_of_dims
from monarch._src.tensor.state.metas import Handle, Storage

if TYPE_CHECKING:
    from monarch._src.mesh.meshes import ProcMesh


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
