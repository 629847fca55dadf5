"""Variables that a cell on ranks takes along and brings back, and its time-out.

Runs in: the kernel's main thread.
Invariants: all is checked before anything is sent, except whether the ranks have the names that are
to come back, since the cell may bind them.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass

from monarch.actor import ProcMesh
from monarch_jupyter.errors import CommandError, did_you_mean, one_line


@dataclass(frozen=True)
class CellData:
    """The names that go to the ranks (`push` whole, `scatter` in parts) and that come back."""

    push: tuple[str, ...] = ()
    scatter: tuple[str, ...] = ()
    gather: tuple[str, ...] = ()
    timeout: float | None = None

    def send(self, mesh: ProcMesh, namespace: Mapping[str, object]) -> None:
        """Bind variables of the notebook on the ranks.

        Raises:
            CommandError: a variable that there is not, cannot be pickled, or does not divide.
            SupervisionError: a rank has died.
        """
        for option, names in (("--push", self.push), ("--scatter", self.scatter)):
            for name in names:
                if name not in namespace:
                    near = did_you_mean(name, (n for n in namespace if not n.startswith("_")))
                    raise CommandError(
                        f"{option} {name}: the notebook has no variable {name!r}"
                        f"{near or '; assign it in a cell first'}"
                    )
        try:
            # The parts first: more can be wrong with them.
            if self.scatter:
                mesh.scatter(**{name: namespace[name] for name in self.scatter})
            if self.push:
                mesh.push(**{name: namespace[name] for name in self.push})
        except (TypeError, ValueError) as error:
            raise CommandError(one_line(str(error))) from None

    def fetch(self, mesh: ProcMesh, namespace: MutableMapping[str, object]) -> None:
        """Bind values of the ranks in the notebook, each name to a ValueMesh.

        Raises:
            CommandError: a rank has no such name, though the cell has run.
            ActorError: a value cannot be pickled. SupervisionError: a rank has died.
        """
        try:
            found = {name: mesh.pull(name) for name in self.gather}
        except NameError as error:
            raise CommandError(f"the cell has run; {one_line(str(error))}") from None
        namespace.update(found)


def names_in(option: str, values: Iterable[str]) -> tuple[str, ...]:
    """The names in values such as `x,y`.

    Raises:
        CommandError: a part of a value is no name.
    """
    names: list[str] = []
    for value in values:
        for name in value.split(","):
            if not name:
                raise CommandError(
                    f"{option} {value}: write the names with commas and without spaces, as in "
                    f"{option} x,y"
                )
            if not name.isidentifier() or keyword.iskeyword(name):
                raise CommandError(f"{option} {value}: {name!r} is not the name of a variable")
            names.append(name)
    return tuple(dict.fromkeys(names))


def seconds(option: str, value: str | float) -> float:
    """A time-out.

    Raises:
        CommandError: it is no number above 0.
    """
    try:
        found = float(value)
    except ValueError:
        raise CommandError(f"{option} {value}: give seconds, as in {option} 30") from None
    if not found > 0:  # NaN is not
        raise CommandError(f"{option} {value}: give seconds above 0, or leave it out for no limit")
    return found


def variables(namespace: Mapping[str, object]) -> list[str]:
    """The names that a user has bound in the notebook, for completion."""
    hidden = ("In", "Out", "exit", "quit", "open", "get_ipython")
    return sorted(n for n in namespace if not n.startswith("_") and n not in hidden)
