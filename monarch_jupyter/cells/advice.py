"""Advice after actors or processes have ended, in one line.

Runs in: the kernel, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch import frontend, observe
from monarch.actor import ActorMesh, ProcMesh, RankFailure
from monarch_jupyter.meshes.spawn_requests import can_restart, restarts_ranks
from monarch_jupyter.meshes.survivors import selection_text, slices_of, surviving_slices
from monarch_jupyter.rendering.units import count

# Kinds of failures after which the failed actor or process cannot be called any more.
_ENDED = ("proc died", "actor died", "nobody waited", "not handled", "constructor")

RESTARTS = (
    '`%monarch spawn --restart` (in code, restart="on-failure") makes a mesh that starts such '
    "ranks again, with their actors."
)


MOST = 4
"""Slices that a remedy lists."""


def has_ended(failure: RankFailure) -> bool:
    """Whether the actor or process can never be called again, since no restart follows."""
    return failure.kind in _ENDED and not failure.restarted


def advice(
    failures: Sequence[RankFailure], namespace: Mapping[str, object], refusal: str = ""
) -> str:
    """The ranks that still work, and the magic that ends the failed ones; lines to be pasted.

    Empty if all can be called again. `namespace`: the notebook's, for the variables that hold the
    meshes. `refusal`: what was not done because of the failures.
    """
    ended = [failure for failure in failures if has_ended(failure)]
    if not ended:
        return ""
    place, it = (ended[0].where, "it") if len(ended) == 1 else ("those ranks", "them")
    raises = refusal or f"calls that include {place} raise from now on"
    procs = _proc_mesh(ended)
    if procs is None:
        return f"{raises}: stop the mesh and spawn it again, or go on with a slice without {it}"
    actors = None if any(map(_is_death, ended)) else _actor_mesh(procs, ended)
    if actors is not None:
        name = _variable(actors, namespace) or frontend.call_target_of(actors).name
        return (
            f"calls to {name} that include {place} raise from now on; all else on {procs.name} "
            f"goes on. This line ends {name}, to spawn it again:\n%monarch stop {name}"
        )
    name = _variable(procs, namespace) or procs.name
    again = f"This line ends {name}, to spawn it again:\n%monarch stop {name}"
    by_itself = ""
    if can_restart(procs):
        by_itself = "" if restarts_ranks(procs) else f" {RESTARTS}"
        again = f"This line starts {name} again, without its actors:\n%monarch restart {name}"
    ranks = {failure.rank for failure in ended}.union(frontend.failed_ranks(procs))
    dead = [procs.extent.point_of_rank(rank) for rank in sorted(ranks)]
    if procs.sizes and frontend.can_restart(procs, sorted(ranks)):
        some, in_place = ("This line", "its place") if len(ranks) == 1 else ("This", "their places")
        slices = [selection_text(one) for one in slices_of(procs.sizes, dead)]
        lines = "\n".join(f"%monarch restart {name}[{one}]" for one in slices)
        again = f"{some} brings {it} back in {in_place}, and makes the actors there anew:\n{lines}"
    left = [f"%%monarch on {name}[{selection_text(one)}]"
            for one in surviving_slices(procs.sizes, dead)]  # fmt: skip
    if not left:
        return f"{raises}.{by_itself} {again}"
    more = f", and on {count(len(left) - MOST, 'smaller slice')}" if len(left) > MOST else ""
    lines = "\n".join(left[:MOST])
    return f"{raises}.{by_itself} Cells run on the other ranks with{more}:\n{lines}\n{again}"


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
        for mesh in frontend.actor_meshes()
        if (target := frontend.call_target_of(mesh)).procs.name == procs.name
        and classes == {target.class_name}
        and ranks <= set(target.region.ranks())
    ]
    failed = [mesh for mesh in found if ranks.intersection(frontend.failed_ranks(mesh))]
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
    return frontend.call_target_of(mesh).uid if isinstance(mesh, ActorMesh) else mesh.uid
