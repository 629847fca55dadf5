"""ValueMesh: one value for each rank of a mesh, the result of a call. No I/O.

Owns its values together with all views of it, through one `Runs`. Invariant: the ranks of
``_region`` are indices into ``_values``. ``_origin``, for front ends, says where the values came
from: the ranks, in the mesh that was spawned, of all of ``_values``, and the extent of that mesh.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from operator import index as as_int
from reprlib import Repr
from typing import Any, Generic, TypeVar, cast

from monarch._src.shape.coordinates import Coordinates, coordinates_of
from monarch._src.shape.extent import Extent, Point, Region, dims_text
from monarch._src.shape.mesh_ops import MeshTrait
from monarch._src.shape.run_length import Runs, fold
from monarch._src.shape.shape import Shape

_R = TypeVar("_R")
_V = TypeVar("_V")
_P = TypeVar("_P")

_SHOWN = 16
"""How many values, or runs of them, a repr contains."""


class ValueMesh(MeshTrait, Generic[_R]):
    """A value for each rank of a shape, in rank order; sliced, split and flattened like any mesh.

    Immutable, picklable, and readable from any thread. Compared by identity, since its values need
    not be comparable. Neighbouring values that are equal builtins, or the same object, are stored
    once. ValueError if there is not one value for every rank.
    """

    __slots__ = ("__weakref__", "_origin", "_region", "_values")

    _region: Region
    _values: Runs[_R]
    _origin: tuple[Sequence[int], Extent] | None

    def __init__(self, shape: Shape | Region | Extent, values: Iterable[_R] | Runs[_R]) -> None:
        runs = values if isinstance(values, Runs) else Runs(values)
        extent = shape if isinstance(shape, Extent) else shape.extent
        if len(runs) != extent.nelements:
            raise ValueError(
                f"ValueMesh: {len(runs)} values for the {extent.nelements} ranks of {extent!r}; "
                "give one for every rank"
            )
        self._region = extent.region
        self._values = runs
        self._origin = None

    @staticmethod
    def from_encoded(
        shape: Shape | Region | Extent,
        payloads: Iterable[_P],
        decode: Callable[[_P], _V],
        spawned: Extent | None = None,
    ) -> ValueMesh[_V]:
        """Values in encoded form, one payload for each rank, in rank order.

        ``decode`` makes a value of a payload. It runs in the thread that first reads the value, at
        most once for neighbours with equal payloads (bytes-like, or short tuples of them); views
        share the result. If it raises, the reader gets the error, and the next read tries again.
        Nothing is decoded here. ValueError as for the constructor. ``spawned``: the extent of the
        mesh whose ranks the region has.
        """
        made: ValueMesh[_V] = ValueMesh(shape, Runs.of_encoded(payloads, decode))
        if spawned is not None and isinstance(shape, Region):
            made._origin = (shape.ranks(), spawned)
        return made

    @staticmethod
    def from_indexed(
        shape: Shape | Region | Extent, pairs: Iterable[tuple[int, _V]]
    ) -> ValueMesh[_V]:
        """From (position, value) pairs in any order; the last value for a position counts.

        IndexError for a position that is not in the shape, ValueError if one has no value.
        """
        count = shape.nelements if isinstance(shape, Extent) else len(shape)
        by_position: dict[int, _V] = {}
        for position, value in pairs:
            if not 0 <= position < count:
                raise IndexError(
                    f"ValueMesh: no position {position}; there are {count}, counted from 0"
                )
            by_position[position] = value
        missing = [position for position in range(count) if position not in by_position]
        if missing:
            raise ValueError(
                f"ValueMesh: no value for position {missing[0]} ({len(missing)} of {count} are "
                "missing)"
            )
        return ValueMesh(shape, (by_position[position] for position in range(count)))

    def _new_with_region(self, region: Region) -> ValueMesh[_R]:
        view = object.__new__(type(self))
        view._region = region
        view._values = self._values
        view._origin = self._origin
        return view

    def _coordinates(self) -> Coordinates:
        if self._origin is None:
            return Coordinates.own(self._region.sizes)
        ranks, spawned = self._origin
        here = [ranks[index] for index in self._region.ranks()]
        return coordinates_of(self._region.sizes, here, spawned)

    # Reading.

    def items(self) -> Iterator[tuple[Point, _R]]:
        """(point, value) in rank order. Points and their ranks are relative to this slice."""
        return zip(self._region.extent.points(), self._read(), strict=True)

    def __iter__(self) -> Iterator[tuple[Point, _R]]:
        return self.items()

    def values(self) -> list[_R]:
        """The values in rank order."""
        return list(self._read())

    def item(self, **coords: int) -> _R:
        """The value at these coordinates, one for each dim; none for a single value.

        KeyError if a dim is unknown or missing, IndexError if a coordinate is negative or out of
        range.
        """
        extent = self._region.extent
        for label in coords:
            if label not in extent:
                raise KeyError(f"item: no dim {label!r}; there are {dims_text(extent)}")
        for label in extent:
            if label not in coords:
                raise KeyError(f"item: no coordinate for dim {label!r}; give {dims_text(extent)}")
        try:
            position = extent.point(**coords).rank
        except IndexError as error:
            raise IndexError(f"item: {error}") from None
        return self._values[self._region.global_rank(position)]

    def get(self, i: int) -> _R:
        """The value at a position in rank order.

        ValueError if there is no such position, as in Monarch; `item` raises IndexError.
        """
        position = as_int(i)
        if not 0 <= position < len(self._region):
            raise ValueError(
                f"get: no value at {position}; there are {len(self._region)}, counted from 0"
            )
        return self._values[self._region.global_rank(position)]

    def __getitem__(self, rank: int) -> _R:
        """The value of a rank; a negative one counts from the end, as in a list.

        Raises:
            TypeError: not an int. IndexError: there is no such rank.
        """
        try:
            position = as_int(rank)
        except TypeError:
            raise TypeError(
                f"a ValueMesh is indexed by the number of a rank, not by {type(rank).__name__}; "
                "for a part of it, write values.slice(dim=...)"
            ) from None
        count = len(self._region)
        if not -count <= position < count:
            raise IndexError(f"no value of rank {position}; there are {count}, counted from 0")
        return self._values[self._region.global_rank(position % count)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The values as an array of numpy, over the dims of the mesh and those of the values.

        Raises:
            ValueError: the values have different shapes, or `copy` is False.
        """
        if copy is False:
            raise ValueError("the values of a ValueMesh cannot be had as an array without a copy")
        numpy: Any = sys.modules["numpy"]  # which calls this method
        found = numpy.asarray(self.values(), dtype)
        return found.reshape((*self._region.sizes.values(), *found.shape[1:]))

    def to_pandas(self) -> Any:
        """The values as a pandas DataFrame with a row for each rank, indexed by the dims.

        Values that are mappings, such as the metrics of a step, have their keys as columns; all
        others are in a column `value`.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            pandas: Any = import_module("pandas")
        except ModuleNotFoundError as error:
            if error.name != "pandas":
                raise
            raise ImportError(
                "to_pandas() needs pandas, which is not installed; pip install pandas, or use "
                "items()"
            ) from None
        values, extent = self.values(), self._region.extent
        if all(isinstance(value, Mapping) for value in values):
            frame = pandas.DataFrame.from_records([dict(cast("Any", value)) for value in values])
        else:
            frame = pandas.DataFrame({"value": pandas.Series(values)})
        if extent:
            places = [tuple(point.values()) for point in extent.points()]
            frame.index = pandas.MultiIndex.from_tuples(places, names=extent.labels)
            if len(extent) == 1:
                frame.index = frame.index.get_level_values(0)
        return frame

    def _read(self) -> Iterator[_R]:
        ranks = self._region.ranks()
        if ranks == range(len(self._values)):
            return iter(self._values)
        return map(self._values.__getitem__, ranks)

    # A pickle contains the values of this view, decoded: other processes may be unable to decode.

    def __reduce__(self) -> tuple[object, ...]:
        extent = self._region.extent
        counted = list(fold(self._read()))
        if self._origin is None:
            return _restore, (extent, counted)
        ranks, spawned = self._origin
        here = tuple(ranks[index] for index in self._region.ranks())
        return _restore, (extent, counted, (here, spawned))

    def __repr__(self) -> str:
        """Bounded: decodes and shows only the first values, with equal neighbours combined."""
        count = len(self._region)
        shown: list[str] = []
        if count <= _SHOWN:
            shown.extend(map(_short, self._read()))
        else:
            seen = 0
            for run, value in islice(fold(self._read()), _SHOWN):
                shown.append(_short(value) if run == 1 else f"{run} x {_short(value)}")
                seen += run
            if seen < count:
                shown.append(f"... {count - seen} more")
        return f"ValueMesh({self._region.extent!r}, [{', '.join(shown)}])"


def _restore(
    extent: Extent,
    counted: list[tuple[int, Any]],
    origin: tuple[Sequence[int], Extent] | None = None,
) -> ValueMesh[Any]:
    restored: ValueMesh[Any] = ValueMesh(extent, Runs.of_counts(counted))
    restored._origin = origin  # pyright: ignore[reportPrivateUsage]
    return restored


class _Short(Repr):
    """Python's bounded repr, with dicts in their own order and everything on one line."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 60
        self.maxlevel = 3

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print very long ints in decimal, and is slow for long ones.
        return repr(x) if x.bit_length() <= 256 else f"<int of {x.bit_length()} bits>"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x) if len(x) <= 40 else f"<bytes of {len(x)}: {x[:16]!r}...>"

    def repr_bytearray(self, x: bytearray, level: int) -> str:
        return repr(x) if len(x) <= 40 else f"<bytearray of {len(x)}: {bytes(x[:16])!r}...>"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if not x:
            return "{}"
        if level <= 0:
            return "{...}"
        shown = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in islice(x.items(), self.maxlist)
        ]
        if len(x) > self.maxlist:
            shown.append("...")
        return "{" + ", ".join(shown) + "}"


_SHORT = _Short()
_LINE_BREAK = re.compile(r"\s*\n\s*")


def _short(value: object) -> str:
    return _LINE_BREAK.sub(" ", _SHORT.repr(value))
