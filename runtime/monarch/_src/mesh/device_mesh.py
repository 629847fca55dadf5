"""DeviceMeshes: made on every rank, named in the client, found by their ranks where they arrive.

Runs in: the client, and ranks.
Owns: in a rank, the DeviceMeshes that its `GroupMember` has made.
"""

from __future__ import annotations

from typing import Any

import msgspec

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
