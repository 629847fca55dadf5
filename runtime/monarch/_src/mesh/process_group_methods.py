"""`init_process_group` and `device_mesh` of a ProcMesh, and the DeviceMeshes of a rank.

Runs in: any process, on the calling thread. The package of process groups is above this one, and
is loaded by the first use (`actor.parts`). A DeviceMesh is made on every rank, named in the client,
and found by its ranks where it arrives.
Owns: in a rank, the DeviceMeshes that its `GroupMember` has made.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._src.actor.parts import parts
from monarch._src.shape import MeshTrait

if TYPE_CHECKING:
    from datetime import timedelta

_here: dict[str, Any] = {}


class DeviceMeshRef(msgspec.Struct, frozen=True):
    """The DeviceMesh of all ranks of a proc mesh, as its client sees it.

    Pass it to an endpoint: each of its ranks gets its own `torch.distributed.DeviceMesh`.
    """

    key: str
    mesh_name: str
    device_type: str
    mesh_dim_names: tuple[str, ...]
    shape: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (
            self.key, self.mesh_name, self.device_type, self.mesh_dim_names, self.shape,
        )  # fmt: skip

    def __repr__(self) -> str:
        dims = zip(self.mesh_dim_names, self.shape, strict=True)
        sizes = ", ".join(f"{name}: {size}" for name, size in dims)
        return f"<DeviceMesh {{{sizes}}} of {self.mesh_name!r} on {self.device_type}>"


def _arrived(
    key: str, mesh_name: str, device_type: str, labels: tuple[str, ...], shape: tuple[int, ...]
) -> Any:
    """In a rank of it, the DeviceMesh itself; elsewhere its reference."""
    found = _here.get(key)
    return DeviceMeshRef(key, mesh_name, device_type, labels, shape) if found is None else found


def keep_device_mesh(key: str, mesh: Any) -> None:
    """Enter a DeviceMesh of this rank."""
    _here[key] = mesh


def has_device_mesh(key: str) -> bool:
    """Whether this rank has the DeviceMesh of that key."""
    return key in _here


def forget_device_meshes() -> None:
    """The process groups of this rank end, and its DeviceMeshes with them."""
    _here.clear()


class HasProcessGroups(MeshTrait):
    """Mixed into ProcMesh: torch.distributed on its ranks."""

    @abstractmethod
    def _check_usable(self) -> None:
        """Raise MeshStoppedError if the mesh was stopped."""

    def init_process_group(
        self, backend: str | None = None, *, timeout: float | timedelta | None = None
    ) -> None:
        """Make torch's default process group of these ranks. Returns when every rank has joined.

        A rank is numbered by its place in this mesh or slice. If a rank dies, or leaves a call by
        an exception before it comes to a collective, the collectives of the others end at once,
        with a `monarch.spmd.CollectiveError` that names it. A group that is in good order is left
        as it is if it was made in the same way; else it is replaced. A call that a rank has left by
        an exception or by its death is awaited on the others first, for 10 seconds at most, so that
        it does not come to collectives of the new group. The group is destroyed when these procs
        stop. In async code, await `monarch.spmd.init_process_group_async(procs)`.

        Args:
            backend: as torch names it. None: `gloo`, and `nccl` beside it for tensors on GPUs where
                each rank has a GPU of its own.
            timeout: of collectives, in seconds or as a timedelta; 30 minutes if None.

        Raises:
            ModuleNotFoundError: a rank has no torch.
            ValueError: no such backend on a rank; a time-out that is not positive.
            TypeError: an argument of the wrong type.
            RuntimeError: a rank has a process group that its own code has made.
            SupervisionError: a rank has died.
        """
        self._check_usable()
        parts().init_process_group(self, backend, timeout)

    def device_mesh(self, backend: str | None = None) -> DeviceMeshRef:
        """Make a `torch.distributed.DeviceMesh` with the dims of this mesh, on each of its ranks.

        Pass the result to an endpoint, where it arrives as the DeviceMesh of that rank. Makes the
        default process group if there is none. For other dims, call it on a `split`, `flatten` or
        `rename` of the mesh. In async code, await `monarch.spmd.device_mesh_async(procs)`.

        Raises as `init_process_group` does.
        """
        self._check_usable()
        return parts().device_mesh(self, backend)
