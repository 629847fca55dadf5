"""Stacks and flame graphs of the ranks of a mesh or of a slice."""

from __future__ import annotations

from collections.abc import MutableMapping

from monarch import observe
from monarch.actor import ActorMesh, ProcMesh
from monarch.observe import FlameGraph, Stacks, StacksError
from monarch_jupyter.errors import CommandError
from monarch_jupyter.meshes.registry import find_mesh
from monarch_jupyter.meshes.selection import parse_selection


def stacks(
    mesh: ProcMesh | ActorMesh | str | None = None, *, full: bool = False, idle: bool = False
) -> Stacks:
    """The stacks of the ranks of a mesh, of `"workers[gpus=0:4]"`, or of all meshes.

    `full` includes all threads and the frames of the runtime; `idle` includes ranks that report to
    be idle.

    Raises:
        CommandError: there is no such mesh, or this machine does not allow reading stacks.
    """
    found = select_procs(mesh, {}) if isinstance(mesh, str) else mesh
    try:
        return observe.stacks(found, full=full, idle=idle)
    except StacksError as error:
        raise CommandError(str(error)) from None


def select_procs(text: str, namespace: MutableMapping[str, object]) -> ProcMesh:
    selection = parse_selection(text)
    mesh = find_mesh(selection.name, namespace)
    selection.check(mesh.sizes)
    return mesh.slice(**selection.dims) if selection.dims else mesh


def flame(
    mesh: ProcMesh | ActorMesh | str | None = None,
    *,
    seconds: int = 5,
    rate: int = 100,
    threads: bool = False,
    native: bool = False,
) -> FlameGraph:
    """Sample the ranks of a mesh, of `"workers[gpus=0:4]"`, or of all meshes; takes `seconds`.

    See `monarch.observe.flame_graph`.

    Raises:
        CommandError: there is no such mesh, or this machine does not allow reading stacks.
    """
    found = select_procs(mesh, {}) if isinstance(mesh, str) else mesh
    try:
        return observe.flame_graph(
            found, seconds=seconds, rate=rate, threads=threads, native=native
        )  # fmt: skip
    except (StacksError, ValueError) as error:
        raise CommandError(str(error)) from None
