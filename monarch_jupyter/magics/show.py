"""`%monarch show`: the mesh explorer, and the values or the tensor that a variable holds."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import monarch
from monarch import frontend
from monarch.actor import ActorError, ProcMesh, ValueMesh
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.magics.value_grid import followed_variables, value_grid
from monarch_jupyter.meshes.registry import find_mesh, mesh_names
from monarch_jupyter.page.shared import shared_publisher, shared_request_handler
from monarch_jupyter.ranks.shard import summarize
from monarch_jupyter.rendering.shards import ShardsView

if TYPE_CHECKING:
    from monarch_jupyter.rendering.shards import ShardsView
    from monarch_jupyter.widgets.explorer import Explorer
    from monarch_jupyter.widgets.value_grid import ValueGrid


def show(value: object = None) -> Explorer | ValueGrid | ShardsView:
    """A live view of one mesh, or of all; of the values of ranks; the shards of a tensor.

    Args:
        value: a ProcMesh or its name (none: all meshes), a ValueMesh, or a `monarch.Tensor`.

    Raises:
        CommandError: there is no such mesh, or the value is of another kind. Of a tensor, the
            errors of `fetch_shard` too.
    """
    if is_tensor(value):
        return show_tensor(value)
    if isinstance(value, ValueMesh):
        return value_grid(cast("ValueMesh[object]", value))
    if value is not None and not isinstance(value, (ProcMesh, str)):
        raise CommandError(
            f"show takes a mesh of processes or its name, the values of a call, or a tensor of a "
            f"mesh, not a {type(value).__name__}"
        )
    return _show_mesh(value)


def _show_mesh(mesh: ProcMesh | str | None) -> Explorer:
    # Widgets are slow to import, and procs import this package without them.
    from monarch_jupyter.widgets.explorer import Explorer

    found = find_mesh(mesh) if isinstance(mesh, str) else mesh
    return Explorer(shared_publisher(), shared_request_handler(), only=found.uid if found else "")


def _run(invocation: Invocation) -> Explorer | ValueGrid | ShardsView:
    names = invocation.arguments.positionals
    if len(names) > 1:
        raise CommandError("show takes one mesh or one variable, or none for all meshes")
    if not names:
        return _show_mesh(None)
    name = names[0]
    values = invocation.namespace.get(name)
    if isinstance(values, ValueMesh):
        grid = value_grid(cast("ValueMesh[object]", values), name)
        followed_variables.add(grid, name, invocation.namespace)
        return grid
    if is_tensor(values):
        return show_tensor(values)
    return _show_mesh(find_mesh(name, invocation.namespace))


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    if words:
        return []
    values = [
        name
        for name, value in namespace.items()
        if (isinstance(value, ValueMesh) or is_tensor(value)) and not name.startswith("_")
    ]
    return [*mesh_names(), *values]


COMMAND = Command(
    name="show",
    usage="show [NAME]",
    summary="a live view of the ranks of one mesh, or of all, or of values; a tensor's shards",
    run=_run,
    examples=("%monarch show workers", "%monarch show losses"),
    complete=_complete,
)


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of a mesh. Does not import torch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return isinstance(value, monarch.Tensor)


def show_tensor(tensor: Any) -> ShardsView:
    """Figures and a picture of the shard of each rank. Blocks until the ranks have answered.

    Args:
        tensor: a `monarch.Tensor`. Its ranks summarize it, so its elements do not travel.

    Raises:
        RemoteException: the operation that makes it has failed. SupervisionError: a rank is dead.
    """
    from monarch.tensors import fetch_shard, remote

    try:
        found = remote(summarize).call(tensor).get()
    except ActorError:
        # If the tensor has no value on a rank, a fetch names the line that issued its operation.
        made = remote(_probe, propagate=_probe)(tensor)
        sizes: Mapping[str, int] = tensor.mesh.sizes
        for point in itertools.product(*map(range, sizes.values())):
            fetch_shard(made, dict(zip(sizes, point, strict=True))).get()
        raise
    return ShardsView(repr(tensor).strip("<>"), found.values(), frontend.coordinates(found))


def _probe(tensor: Any) -> Any:
    """A tensor of no size that has a value where `tensor` has one. Runs on ranks."""
    return tensor.detach().new_zeros(())
