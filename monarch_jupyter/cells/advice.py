"""What to type after actors or processes have ended, in one line.

Runs in: the kernel, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch import observe
from monarch.actor import ActorMesh, ProcMesh, RankFailure
from monarch_jupyter.actions.restart import can_restart, restarts_ranks
from monarch_jupyter.meshes.survivors import surviving_slice

# Kinds of failures after which the failed actor or process cannot be called any more.
_ENDED = ("proc died", "actor died", "nobody waited", "not handled", "constructor")

RESTARTS = (
    '`%monarch spawn --restart` (in code, restart="on-failure") makes a mesh that starts such '
    "ranks again, with their actors."
)


def has_ended(failure: RankFailure) -> bool:
    """Whether the actor or process can never be called again, since no restart follows."""
    return failure.kind in _ENDED and not failure.restarted


def advice(failures: Sequence[RankFailure], namespace: Mapping[str, object]) -> str:
    """The ranks that still work, and on a line of its own the magic that ends the failed ones.

    Empty if all can be called again. `namespace`: the notebook's, for the variables that hold the
    meshes.
    """
    ended = [failure for failure in failures if has_ended(failure)]
    if not ended:
        return ""
    place, it = (ended[0].where, "it") if len(ended) == 1 else ("those ranks", "them")
    procs = _proc_mesh(ended)
    if procs is None:
        return (
            f"calls that include {place} raise from now on: stop the mesh and spawn it again, or "
            f"go on with a slice without {it}"
        )
    actors = None if any(map(_is_death, ended)) else _actor_mesh(procs, ended)
    if actors is not None:
        name = _variable(actors, namespace) or observe.call_target_of(actors).name
        return (
            f"calls to {name} that include {place} raise from now on; all else on {procs.name} "
            f"goes on. This line ends {name}, to spawn it again:\n%monarch stop {name}"
        )
    dims = procs.extent
    left = surviving_slice(procs.sizes, [dims.point_of_rank(failure.rank) for failure in ended])
    name = _variable(procs, namespace) or procs.name
    instead = "" if left is None else f" Go on with {name}.slice({slice_text(*left)}), or"
    if can_restart(procs):
        by_itself = "" if restarts_ranks(procs) else f" {RESTARTS}"
        return (
            f"calls that include {place} raise from now on.{by_itself}{instead or ' To'} start "
            f"{name} again, without its actors:\n%monarch restart {name}"
        )
    return (
        f"calls that include {place} raise from now on.{instead or ' To'} end {name} and spawn it "
        f"again:\n%monarch stop {name}"
    )


def slice_text(dim: str, ranks: range) -> str:
    """`gpus=slice(0, 4)`, the argument of `slice` for these ranks."""
    return f"{dim}=slice({ranks.start}, {ranks.stop})"


def _is_death(failure: RankFailure) -> bool:
    """Whether no actor lives on that rank: its process has died, or never got as far as actors."""
    return failure.kind == "proc died" or failure.death is not None or not failure.actor_class


def _proc_mesh(failures: Sequence[RankFailure]) -> ProcMesh | None:
    names = {failure.mesh_name for failure in failures}
    found = [mesh for mesh in observe.meshes() if mesh.name in names]
    return found[0] if len(found) == 1 == len(names) else None


def _actor_mesh(procs: ProcMesh, failures: Sequence[RankFailure]) -> ActorMesh | None:
    """The one actor mesh of this kernel that has failed in this way; None if it is not clear."""
    ranks, classes = {one.rank for one in failures}, {one.actor_class for one in failures}
    found = [
        mesh
        for mesh in observe.actor_meshes()
        if (target := observe.call_target_of(mesh)).procs.name == procs.name
        and classes == {target.class_name}
        and ranks <= set(target.region.ranks())
    ]
    failed = [mesh for mesh in found if ranks.intersection(observe.failed_ranks(mesh))]
    # The report to the owner may come after the error of the call.
    found = failed or found
    return found[-1] if found else None


def _variable(mesh: ProcMesh | ActorMesh, namespace: Mapping[str, object]) -> str | None:
    """The name of a variable that holds the whole mesh."""
    for name, value in list(namespace.items()):
        if name.startswith("_") or not isinstance(value, type(mesh)) or len(value) != len(mesh):
            continue
        if _uid(value) == _uid(mesh):
            return name
    return None


def _uid(mesh: ProcMesh | ActorMesh) -> str | int:
    return observe.call_target_of(mesh).uid if isinstance(mesh, ActorMesh) else mesh.uid
