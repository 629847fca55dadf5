"""`%monarch update`: give live actors the new definition of their class."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence

from monarch import frontend
from monarch.actor import Actor, ActorError, ActorMesh
from monarch_jupyter.errors import CommandError, did_you_mean, one_line
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.stale_classes import changed, old_bases, same_code, used_by
from monarch_jupyter.rendering.units import count


def update(cls: type[Actor]) -> list[ActorMesh]:
    """Give every live actor of this class name the new class. State is kept; no constructor runs.

    Returns the actor meshes that have the new class; later calls use it.

    Raises:
        CommandError: no live actor has a class of that name, or some cannot take the new one; the
            text says why, and which have it already.
    """
    found = meshes_of(cls.__name__)
    if not found:
        live = {frontend.actor_class_of(mesh).__name__ for mesh in frontend.actor_meshes()}
        listed = f"; there are {', '.join(sorted(live))}" if live else ""
        near = did_you_mean(cls.__name__, live) or listed
        raise CommandError(f"no live actor has the class {cls.__name__}{near}")
    done: list[ActorMesh] = []
    for mesh in found:
        try:
            frontend.update_actors(mesh, cls)
        except (ValueError, TypeError) as error:
            raise CommandError(_refused(mesh, str(error), done)) from None
        except ActorError as error:
            why = error.failures[0].message if error.failures else str(error)
            text = f"what they have does not fit the new class: {why}; spawn them again"
            raise CommandError(_refused(mesh, text, done)) from None
        _used[frontend.call_target_of(mesh).uid] = used_by(cls)
        done.append(mesh)
    return done


def meshes_of(name: str) -> list[ActorMesh]:
    """The live actor meshes of a class of that name."""
    return [m for m in frontend.actor_meshes() if frontend.actor_class_of(m).__name__ == name]


def _refused(mesh: ActorMesh, why: str, done: Sequence[ActorMesh]) -> str:
    names = ", ".join(frontend.call_target_of(other).name for other in done)
    has = f"; {names} {'has' if len(done) == 1 else 'have'} it already" if done else ""
    target = frontend.call_target_of(mesh)
    return one_line(f"{target.name} on {target.procs.name} keeps the old code: {why}{has}")


class StaleClasses:
    """Reports, once each, classes that were redefined while actors of the old class live.

    It also reports redefined functions and classes that an actor class uses. It records these when
    it first sees a mesh, after the cell that spawned it, and when the mesh is updated.
    """

    def __init__(self) -> None:
        self._reported: set[tuple[int, type]] = set()
        self._reported_used: set[tuple[int, str, int]] = set()

    def notices(self, namespace: MutableMapping[str, object]) -> Iterable[str]:
        """One line for each unreported change; meshes with the same line share it."""
        seen: set[str] = set()
        meshes = frontend.actor_meshes()
        for uid in _used.keys() - {frontend.call_target_of(mesh).uid for mesh in meshes}:
            del _used[uid]
        # If actors were spawned again under this name, the old ones need no notice.
        classes: list[type] = [frontend.actor_class_of(mesh) for mesh in meshes]
        current = {
            (frontend.call_target_of(mesh).name, cls.__name__)
            for mesh, cls in zip(meshes, classes, strict=True)
            if namespace.get(cls.__name__) is cls
        }
        for mesh in meshes:
            old, target = frontend.actor_class_of(mesh), frontend.call_target_of(mesh)
            new = namespace.get(old.__name__)
            if target.uid not in _used:
                _used[target.uid] = used_by(old)
            if new is old:
                notice = self._used_notice(mesh, _used[target.uid], namespace)
            elif (target.name, old.__name__) in current:
                notice = None
            else:
                notice = self._class_notice(mesh, old, new)
            if notice is not None and notice not in seen:
                seen.add(notice)
                yield notice

    def _class_notice(self, mesh: ActorMesh, old: type[Actor], new: object) -> str | None:
        if not isinstance(new, type) or not issubclass(new, Actor):
            return None
        target, name = frontend.call_target_of(mesh), old.__name__
        if (target.uid, new) in self._reported:
            return None
        self._reported.add((target.uid, new))
        if same_code(old, new):
            return None
        return (
            f"monarch: {name} has changed, and {target.name} on {target.procs.name} still runs "
            f"the old code; `%monarch update {name}` puts the new one there, state kept"
        )

    def _used_notice(
        self, mesh: ActorMesh, before: Mapping[str, object], namespace: Mapping[str, object]
    ) -> str | None:
        target = frontend.call_target_of(mesh)
        fresh = {
            name: value
            for name, value in changed(before, namespace).items()
            if (target.uid, name, id(value)) not in self._reported_used
        }
        if not fresh:
            return None
        self._reported_used.update((target.uid, name, id(value)) for name, value in fresh.items())
        names = " and ".join(filter(None, (", ".join([*fresh][:-1]), [*fresh][-1])))
        have, ones = ("has", "one") if len(fresh) == 1 else ("have", "ones")
        cls = target.class_name
        return (
            f"monarch: {names} {have} changed, and {target.name} on {target.procs.name}, which "
            f"uses {'it' if len(fresh) == 1 else 'them'}, still has the old {ones}; "
            f"`%monarch update {cls}` puts the new {ones} there, state kept"
        )


# By uid of an actor mesh: the functions and classes of cells that its class uses.
_used: dict[int, Mapping[str, object]] = {}


def _run(invocation: Invocation) -> None:
    names = invocation.arguments.positionals
    if len(names) != 1:
        raise CommandError("update takes the name of one actor class; `%monarch update Trainer`")
    cls = invocation.namespace.get(names[0])
    if not isinstance(cls, type) or not issubclass(cls, Actor):
        known = _classes(invocation.namespace)
        what = "is not an actor class" if cls is not None else "is not defined"
        raise CommandError(f"{names[0]} {what}{did_you_mean(names[0], known)}")
    for mesh in update(cls):
        target, ranks = frontend.call_target_of(mesh), count(len(mesh), "rank", "ranks")
        sys.stdout.write(
            f"{target.name} on {target.procs.name}: {ranks} run the new {cls.__name__}, "
            "state kept\n"
        )
    for base in old_bases(cls, invocation.namespace):
        sys.stdout.write(
            f"{cls.__name__} is still derived from the old {base}: run the cell that defines "
            f"{cls.__name__}, and update it again\n"
        )


def _classes(namespace: MutableMapping[str, object]) -> list[str]:
    return [
        name
        for name, value in namespace.items()
        if isinstance(value, type) and issubclass(value, Actor) and value is not Actor
    ]


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else _classes(namespace)


COMMAND = Command(
    name="update",
    usage="update CLASS",
    summary="give live actors the new definition of their class; they keep their state",
    run=_run,
    complete=_complete,
)
