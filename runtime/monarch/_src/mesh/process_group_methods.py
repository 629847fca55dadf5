"""`init_process_group` and `device_mesh` of a ProcMesh.

Runs in: any process, on the calling thread. The package of process groups is above this one, and is
loaded by the first use (`actor.parts`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from monarch._src.actor.parts import parts
from monarch._src.shape import MeshTrait

if TYPE_CHECKING:
    from datetime import timedelta

    from monarch._src.mesh.device_mesh import DeviceMeshRef


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
