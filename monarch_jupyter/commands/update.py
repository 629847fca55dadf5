"""`%monarch update`: a class that was defined anew, for its actors that live."""

from __future__ import annotations

import sys
from collections.abc import Iterable, MutableMapping, Sequence

from monarch import observe
from monarch.actor import Actor, ActorError, ActorMesh
from monarch_jupyter.commands.command import Command, Invocation
from monarch_jupyter.problems import CommandError, did_you_mean, one_line
from monarch_jupyter.rendering.words import count
from monarch_jupyter.stale_code import same_code


def update(cls: type[Actor]) -> list[ActorMesh]:
    """Put a class on every live actor of its name: state is kept, no constructor runs.

    Returns the actor meshes that have it now; later calls use it.

    Raises:
        CommandError: no actor of that name lives, or they can't take it; it says why, and which
            have it already.
    """
    found = meshes_of(cls.__name__)
    if not found:
        live = {observe.actor_class_of(mesh).__name__ for mesh in observe.actor_meshes()}
        listed = f"; there are {', '.join(sorted(live))}" if live else ""
        near = did_you_mean(cls.__name__, live) or listed
        raise CommandError(f"no actor of a class {cls.__name__} lives{near}")
    done: list[ActorMesh] = []
    for mesh in found:
        try:
            observe.update_actors(mesh, cls)
        except (ValueError, TypeError) as error:
            raise CommandError(_refused(mesh, str(error), done)) from None
        except ActorError as error:
            why = error.failures[0].message if error.failures else str(error)
            text = f"what they have does not fit the new class: {why}; spawn them again"
            raise CommandError(_refused(mesh, text, done)) from None
        done.append(mesh)
    return done


def meshes_of(name: str) -> list[ActorMesh]:
    """The live actor meshes of a class of that name."""
    return [m for m in observe.actor_meshes() if observe.actor_class_of(m).__name__ == name]


def _refused(mesh: ActorMesh, why: str, done: Sequence[ActorMesh]) -> str:
    names = ", ".join(observe.callees(other).name for other in done)
    has = f"; {names} {'has' if len(done) == 1 else 'have'} it already" if done else ""
    who = observe.callees(mesh)
    return one_line(f"{who.name} on {who.procs.name} keeps the old code: {why}{has}")


class StaleClasses:
    """Tells once of each class that was defined anew while actors of the old one live."""

    def __init__(self) -> None:
        self._told: set[tuple[int, type]] = set()

    def news(self, namespace: MutableMapping[str, object]) -> Iterable[str]:
        """A line for each that was not told of yet; one for several of a name, as a cell that was
        run again leaves them."""
        said: set[str] = set()
        for mesh in observe.actor_meshes():
            old, who = observe.actor_class_of(mesh), observe.callees(mesh)
            new = namespace.get(old.__name__)
            if new is old or not isinstance(new, type) or not issubclass(new, Actor):
                continue
            if (who.uid, new) in self._told:
                continue
            self._told.add((who.uid, new))
            if not same_code(old, new):
                name = old.__name__
                news = (
                    f"monarch: {name} has changed, and {who.name} on {who.procs.name} still runs "
                    f"the old code; `%monarch update {name}` puts the new one there, state kept"
                )
                if news not in said:
                    said.add(news)
                    yield news


def _run(invocation: Invocation) -> None:
    names = invocation.arguments.positionals
    if len(names) != 1:
        raise CommandError("update takes the name of one actor class; `%monarch update Trainer`")
    cls = invocation.namespace.get(names[0])
    if not isinstance(cls, type) or not issubclass(cls, Actor):
        known = _classes(invocation.namespace)
        what = "is no actor class" if cls is not None else "is not defined"
        raise CommandError(f"{names[0]} {what}{did_you_mean(names[0], known)}")
    for mesh in update(cls):
        who, ranks = observe.callees(mesh), count(len(mesh), "rank", "ranks")
        sys.stdout.write(
            f"{who.name} on {who.procs.name}: {ranks} run the new {cls.__name__}, state kept\n"
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
    summary="put a class that was defined anew on its live actors; they keep their state",
    run=_run,
    complete=_complete,
)
