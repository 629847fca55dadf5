"""`activate`, `rank_tensor` and `rank_tensors` of a ProcMesh.

Runs in: any process, on the calling thread. The package of tensors is above this one, and is loaded
by the first use (`actor.parts`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from monarch._src.actor.parts import parts
from monarch._src.mesh.mock_registry import mocked_mesh
from monarch._src.shape import MeshTrait

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

M = TypeVar("M", bound="HasTensors")


class HasTensors(MeshTrait):
    """Mixed into ProcMesh: torch on its ranks."""

    @abstractmethod
    def _check_usable(self) -> None:
        """Raise MeshStoppedError if the mesh was stopped."""

    def _tensor_driver(self) -> Any:
        """The driver of a mesh without processes; None for procs."""
        return None

    def _for_tensors(self) -> Any:
        """This mesh, or what tests have put in its place for the running actor."""
        mocked = None if self._tensor_driver() is not None else mocked_mesh(self)
        return self if mocked is None else mocked

    def activate(self: M, device: Any = None) -> AbstractContextManager[M]:
        """Make torch run on the ranks of this mesh: `with mesh.activate():`.

        Within the block, on this thread, torch's functions make a `monarch.Tensor` on every rank,
        and operations on it run there. Tensors outlive the block. Blocks nest; in the inner one,
        the inner mesh is active. Without `with`, the mesh is active until `deactivate`, or until
        the block around the call ends. See `docs/how-to/use_tensors.md`.

        Args:
            device: where the ranks have the tensors of this mesh: `"cpu"`, or `"cuda"`, a GPU of
                each rank's own. None: where they are; a new mesh has them on CPUs, unless its first
                tensor is made with `device="cuda"`.

        Raises:
            ModuleNotFoundError: torch is not installed here.
            ValueError: the mesh has tensors elsewhere, or a rank has no GPU that torch can use.
            MeshStoppedError: the mesh was stopped.
            SupervisionError: a rank has died.
        """
        self._check_usable()
        return parts().activate(self._for_tensors(), device)

    def deactivate(self) -> None:
        """End the last `activate` of this mesh on this thread. It has no effect without one.

        Raises:
            RuntimeError: a mesh or stream that was activated later is still active.
        """
        parts().deactivate(self._for_tensors())

    def process_group(self, dims: str | Sequence[str] = (), timeout: float | str = "5m") -> Any:
        """The process groups of the ranks that differ in these dims only, for remote functions.

        Returns a `monarch.RemoteProcessGroup`. A remote function gets it as an argument, and calls
        torch.distributed with it, as in `dist.all_reduce(x, group=group)`. `tensor.reduce` needs
        none. The ranks have gloo groups, which are freed once the program has no reference left.

        Args:
            dims: the name of a dim, or several; none means all.
            timeout: how long a collective waits for the other ranks, in seconds or as text. If a
                function raises on one rank before its collective, the others wait that long.

        Raises:
            KeyError: no such dim. ValueError: a dim is named twice. TypeError: no time.
            SupervisionError: a rank has died. Otherwise as `activate`.
        """
        self._check_usable()
        return parts().process_group(self._for_tensors(), dims, timeout)

    def rank_tensor(self, dim: str) -> Any:
        """A tensor on every rank with its coordinate along that dim: 0-dim, int64.

        Raises KeyError for an unknown dim, and otherwise as `activate` does.
        """
        self._check_usable()
        return parts().rank_tensor(self._for_tensors(), dim)

    def rank_tensors(self) -> dict[str, Any]:
        """`rank_tensor` of each dim, by its name."""
        return {dim: self.rank_tensor(dim) for dim in self.sizes}

    def rank(self, dims: str | Sequence[str]) -> Any:
        """`rank_tensor`; for several dims, the place of each rank along all of them.

        `mesh.rank(("dp", "tp"))` is `mesh.rank("dp") * mesh.size("tp") + mesh.rank("tp")`.

        Raises:
            KeyError: no such dim. ValueError: no dim is given, or one twice. Otherwise as
                `activate`.
        """
        names = [dims] if isinstance(dims, str) else list(dims)
        if not names or len(set(names)) < len(names):
            raise ValueError(f"rank({dims!r}): give the name of a dim, or of several, each once")
        for dim in names:
            if dim not in self.sizes:
                have = ", ".join(self.sizes) or "none"
                raise KeyError(f"{self!r} has no dim {dim!r}; it has {have}")
        first, *others = names
        found = self.rank_tensor(first)
        for dim in others:
            found = found * self.sizes[dim] + self.rank_tensor(dim)
        return found

    @property
    def ranks(self) -> dict[str, Any]:
        """`rank` of each dim, by its name, as new tensors."""
        return self.rank_tensors()

    def to_table(self) -> str:
        """The ranks of this mesh as text: a column for each index of the last dim.

        Each line has the indices of the other dims, and the ranks there, as numbers of the procs
        that were spawned together.
        """
        *others, last = self.sizes or {"": 1}
        columns = self.sizes.get(last, 1)
        ranks = list(self._region.ranks())
        rows = [[*others, *(f"{last}={index}" if last else "rank" for index in range(columns))]]
        for first, point in enumerate(self.extent.points()):
            if first % columns == 0:
                at = dict(point)
                rows.append([*(str(at[dim]) for dim in others), *map(str, ranks[first:][:columns])])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
            for row in rows
        )
