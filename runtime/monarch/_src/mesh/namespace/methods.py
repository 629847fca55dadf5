"""`push`, `scatter` and `pull` of a ProcMesh.

Runs in: any process, on the calling thread.
"""

from __future__ import annotations

import keyword
import logging
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monarch._src.actor.attribution import transfer_span
from monarch._src.actor.call.on_ranks import OnRanksError
from monarch._src.actor.call.pickling_errors import unpicklable_item
from monarch._src.actor.serialize import pack_value
from monarch._src.failures.report import at_text, points_text
from monarch._src.mesh.procs import Procs
from monarch._src.shape import MeshTrait, ValueMesh

if TYPE_CHECKING:
    from monarch._src.mesh.namespace.actor import Namespace
    from monarch._src.wire.frames import Payload

log = logging.getLogger("monarch.mesh")

_OF_RANKS = ("rank", "point")  # bound on each rank by the runner of cells


class HasNamespace(MeshTrait):
    """Mixed into ProcMesh: values in the `__main__` of each rank, where cells run."""

    _procs: Procs

    @property
    @abstractmethod
    def name(self) -> str:
        """The name given at spawn."""

    @abstractmethod
    def spawn(self, name: str, Class: Any, *args: Any, **kwargs: Any) -> Any:
        """Make one actor of `Class` on every proc."""

    @abstractmethod
    def _where(self) -> list[dict[str, int]]:
        """The points of the ranks of this mesh in the mesh that was spawned."""

    def push(self, /, **values: Any) -> None:
        """Bind each value to its name on every rank, and wait until all ranks have them.

        The names are those of the rank's `__main__`, which cells on the rank use, and functions
        that `map` runs. Large values travel as arguments of calls do: once to each host.

        Raises:
            TypeError: a value that cannot be pickled, or no value.
            ValueError: a name that cannot be bound.
            SupervisionError: a rank has died. In each of these cases no name is bound on any rank.
        """
        _check_names("push", values)
        with transfer_span(f"push {', '.join(values)} to {self.name}"):
            self._bind("push", values, None)

    def scatter(self, /, **values: Any) -> None:
        """Bind a part of each value to its name on every rank, in order of ranks.

        The parts are consecutive rows along the first axis of an array, a tensor or a data frame,
        or consecutive items of a list. They have the class and the properties of the value, such
        as a mask, a time zone or categories. If the ranks do not divide the rows, the first ranks
        have one row more than the others, and a warning says so.

        Raises:
            TypeError: a value without rows, one whose class a part would lose, one that cannot be
                pickled, or no value.
            ValueError: a part would lose a property of the value, or a name that cannot be bound.
            SupervisionError: a rank has died. In each of these cases no name is bound on any rank.
        """
        from monarch._src.mesh.namespace.rows import cut, row_count

        _check_names("scatter", values)
        count = len(self._region)
        parts: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, value in values.items():
            for own, part in zip(parts, cut(name, value, count), strict=True):
                own[name] = part
        with transfer_span(f"scatter {', '.join(values)} over {self.name}"):
            self._bind("scatter", values, parts)
        for name, value in values.items():
            rows = row_count(value)
            if rows % count:
                log.warning("%s", _uneven_text(name, rows, self._where(), self.name))

    def pull(self, name: str, *, join: bool = False) -> Any:
        """The values that this name has on the ranks.

        Args:
            join: join the values along their first axis, as `scatter` has cut them. They have to be
                of one type on all ranks, and alike in dtype, columns, categories, names and other
                axes. Of integers, floats or text of numpy, the widest dtype is taken.

        Returns:
            A ValueMesh, or with `join` the joined value.

        Raises:
            NameError: a rank has no such name.
            TypeError: the values cannot be joined, or are not of one type.
            ValueError: the values differ in a property, so that joining them would lose it.
            ActorError: a value cannot be pickled.
            SupervisionError: a rank has died.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'pull: give a name, such as "loss"; {name!r} is none')
        with transfer_span(f"pull {name} from {self.name}"), self._namespace("pull") as namespace:
            there = namespace.has.call(name).get().values()
            if not all(there):
                raise NameError(self._missing_text(name, there, lambda: _known(namespace)))
            values: ValueMesh[Any] = namespace.value.call(name).get()
            if not join:
                return values
            from monarch._src.mesh.namespace.rows import join as joined

            where = self._where()
            return joined(name, list(values.values()), lambda at: self.name + at_text(where[at]))

    @contextmanager
    def _namespace(self, method: str) -> Generator[Namespace]:
        from monarch._src.mesh.namespace.actor import Pull, Push, Scatter

        cls = {"push": Push, "scatter": Scatter, "pull": Pull}[method]
        namespace: Any = self.spawn(method, cls)
        try:
            yield namespace
        finally:
            namespace.stop("its values are bound, or read").get()

    def _bind(
        self, method: str, values: Mapping[str, Any], parts: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Bind `values` on every rank, or to each rank its own of `parts`."""
        with self._namespace(method) as namespace:
            # In two steps, so that no rank has new values if one cannot get its own.
            try:
                if parts is None:
                    received: list[Any] = [namespace.receive.call(dict(values))]
                else:
                    ranks: list[Any] = [
                        namespace.slice(**dict(point)) for point in self.extent.points()
                    ]
                    received = [
                        rank.receive.call_one(part) for rank, part in zip(ranks, parts, strict=True)
                    ]
            except Exception as error:
                _raise_for_value(method, values)
                raise error
            for answer in received:
                answer.get()
            namespace.bind.call().get()
        if self._procs.owned and not self._procs.kept:
            self._keep(values, parts)

    def _keep(self, values: Mapping[str, Any], parts: Sequence[Mapping[str, Any]] | None) -> None:
        """Remember the bound values in the client: a rank that is restarted gets them again."""
        names, ranks = self._procs.names, self._region.ranks()
        if parts is None:
            for name, value in values.items():
                names.bound(name, ranks, _packed_or_none(value))
            return
        for rank, part in zip(ranks, parts, strict=True):
            for name, value in part.items():
                names.bound(name, [rank], _packed_or_none(value))

    def _missing_text(
        self, name: str, there: Sequence[bool], names: Callable[[], Sequence[str]]
    ) -> str:
        lacking = [point for point, has in zip(self._where(), there, strict=True) if not has]
        if len(lacking) < len(there):
            ranks = points_text([(point, self.name) for point in lacking])
            has = "has" if len(lacking) == 1 else "have"
            return f"pull: {ranks} of {self.name} {has} no name {name!r}; pull it from a slice"
        from difflib import get_close_matches  # needed for this error only

        near = get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "a cell on the ranks, or push, binds one"
        return f"pull: no rank of {self._text()} has a name {name!r}; {hint}"

    def _text(self) -> str:
        """`workers`, or `workers[gpus=3]` for one rank."""
        where = self._where()
        return self.name + (at_text(where[0]) if len(where) == 1 else "")


def _packed_or_none(value: Any) -> Payload | None:
    """The value, to be kept; None if it refers to objects on the ranks, such as tensors."""
    try:
        return pack_value(value, loose=True)
    except OnRanksError:
        return None


def _uneven_text(name: str, rows: int, where: Sequence[dict[str, int]], mesh: str) -> str:
    """The numbers of rows of the ranks at these points, if they differ."""
    size, more = divmod(rows, len(where))
    first, others = ([(at, mesh) for at in part] for part in (where[:more], where[more:]))
    return (
        f"scatter: {name} has {rows:,} rows for {len(where):,} ranks of {mesh}: {size + 1:,} on "
        f"{points_text(first)}, and {size or 'none'} on {points_text(others)}"
    )


def _check_names(method: str, values: Mapping[str, Any]) -> None:
    if not values:
        raise TypeError(f"{method}: give at least one value, as in {method}(x=x)")
    for name in values:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{method}: {name!r} cannot be the name of a variable")
        if name.startswith("__") or name in _OF_RANKS:
            raise ValueError(f"{method}: each rank has a {name!r} of its own; choose another name")


def _raise_for_value(method: str, values: Mapping[str, Any]) -> None:
    """Raise the error that names the value which cannot be pickled, if one cannot."""
    for name, value in values.items():
        try:
            pack_value(value, loose=True)
        except Exception as error:
            raise unpicklable_item(method, name, value, error) from error


def _known(namespace: Any) -> list[str]:
    return sorted({name for names in namespace.names.call().get().values() for name in names})
