"""The meshes of this kernel, by name or variable."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

from monarch import frontend, observe
from monarch.actor import ActorMesh, ProcMesh, ValueMesh
from monarch_jupyter.errors import CommandError, did_you_mean


def mesh_names() -> list[str]:
    """The names of all meshes that live."""
    return [mesh.name for mesh in observe.meshes()]


def complete_meshes(words: Sequence[str], _namespace: MutableMapping[str, object]) -> list[str]:
    """Completions for a command that takes names of meshes."""
    return [name for name in mesh_names() if name not in words]


def complete_endable(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    """Completions for a command that takes names of meshes of processes or actors."""
    actors = [frontend.call_target_of(mesh).name for mesh in frontend.actor_meshes()]
    bound = [n for n, mesh in namespace.items() if _whole(mesh) and not n.startswith("_")]
    names = dict.fromkeys([*mesh_names(), *bound, *actors])
    return [name for name in names if name not in words]


def as_spawned(mesh: ProcMesh) -> ProcMesh:
    """All the ranks that were spawned with these, under the dims that they were spawned with."""
    return next(one for one in observe.meshes() if one.uid == mesh.uid)


def places_of(spawned: ProcMesh, mesh: ProcMesh) -> ValueMesh[int]:
    """The ranks that a view stands for, as they were spawned."""
    return frontend.as_viewed(ValueMesh(spawned.extent, range(len(spawned))), mesh)


def actors_on(mesh: ProcMesh) -> list[ActorMesh]:
    """The actor meshes of this kernel with an actor on any of these ranks."""
    ranks, uid = set(places_of(as_spawned(mesh), mesh).values()), int(mesh.uid, 16)
    targets = [(one, frontend.call_target_of(one)) for one in frontend.actor_meshes()]
    return [
        one
        for one, target in targets
        if target.procs.uid == uid and not ranks.isdisjoint(target.region.ranks())
    ]


def no_name(command: str, wanted: str) -> CommandError:
    """The error of a command that lacks a name; the text lists the meshes."""
    names = mesh_names()
    there = _listed(names) if names else "; there are no meshes"
    return CommandError(f"{command} needs {wanted}{there}")


def find_mesh(name: str, namespace: Mapping[str, object] | None = None) -> ProcMesh:
    """The proc mesh of this name, or bound to this variable.

    Raises:
        CommandError: there is none; the text names a close match, or how to make a mesh.
    """
    live = observe.meshes()
    value = (namespace or {}).get(name)
    if isinstance(value, ProcMesh):
        if any(mesh.uid == value.uid for mesh in live):
            return value
        if not value.stopped:
            raise CommandError(
                f"{name} no longer belongs to this kernel; `%monarch attach` takes kept ones back"
            )
        raise CommandError(f"{name} has stopped; `%monarch spawn {name} ...` makes a new one")
    for mesh in live:
        if mesh.name == name:
            return mesh
    names = [mesh.name for mesh in live]
    if isinstance(value, ActorMesh):
        raise CommandError(
            f"{name} is a mesh of actors; name the mesh of processes{_listed(names)}"
        )
    if value is not None:
        raise CommandError(f"{name} is not a mesh but a {type(value).__name__}{_listed(names)}")
    whole, bracket, _ = name.partition("[")
    if bracket and whole in names:
        raise CommandError(f"{name} is a part of a mesh; this takes the whole: {whole}")
    near = did_you_mean(name, names)
    raise CommandError(f"there is no mesh '{name}'{near or _listed(names)}")


def find_endable(name: str, namespace: Mapping[str, object] | None = None) -> ProcMesh | ActorMesh:
    """The proc mesh or whole actor mesh of this name, or bound to this variable.

    Of several actor meshes of one name, the one that has failed. A slice stands for its whole mesh
    of actors.

    Raises:
        CommandError: there is none, or there are several.
    """
    value = (namespace or {}).get(name)
    whole = _whole(value)
    if whole is not None:
        return whole
    if isinstance(value, ProcMesh) or name in mesh_names():
        return find_mesh(name, namespace)
    found = [mesh for mesh in frontend.actor_meshes() if frontend.call_target_of(mesh).name == name]
    found = [mesh for mesh in found if has_failed(mesh)] or found
    if len(found) > 1:
        places = sorted({frontend.call_target_of(mesh).procs.name for mesh in found})
        raise CommandError(
            f"{len(found)} meshes of actors are called {name}, on {', '.join(places)}; name a "
            "variable that holds one of them"
        )
    if found:
        return found[0]
    if isinstance(value, ActorMesh):
        raise CommandError(f"{name} has stopped, or belongs to another process; spawn it again")
    return find_mesh(name, namespace)


def has_failed(mesh: ActorMesh) -> bool:
    """Whether an actor of this mesh has died, or its constructor has raised."""
    return bool(frontend.failed_ranks(mesh))


def _whole(value: object) -> ActorMesh | None:
    """The mesh of this kernel that `value` is, or is a slice of; None for anything else."""
    if not isinstance(value, ActorMesh):
        return None
    uid = frontend.call_target_of(value).uid
    live = frontend.actor_meshes()
    return next((mesh for mesh in live if frontend.call_target_of(mesh).uid == uid), None)


def _listed(names: list[str]) -> str:
    if not names:
        return "; make one with `%monarch spawn workers gpus=8`"
    return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
