"""`workers[gpus=0:4]`: a mesh by name, and which of its ranks. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from monarch_jupyter.errors import CommandError, did_you_mean

_WHOLE = re.compile(r"\s*(?P<name>[^\s\[\]]+)\s*(?:\[(?P<slice>[^\[\]]*)\])?\s*\Z")
_RANGE = re.compile(r"(-?\d+)?\s*:\s*(-?\d+)?\s*(?::\s*(-?\d+)?)?\Z")


@dataclass(frozen=True)
class MeshSelection:
    """A mesh's name and, for some of its dims, an index (which drops the dim) or a range of it."""

    name: str
    dims: dict[str, int | slice]

    def check(self, sizes: Mapping[str, int]) -> None:
        """Check the selection against the sizes of a mesh, by dim.

        Raises:
            CommandError: a dim the mesh lacks, or ranks outside it.
        """
        for dim, wanted in self.dims.items():
            if dim not in sizes:
                has = ", ".join(sizes) or "none"
                raise CommandError(
                    f"{self.name} has no dim '{dim}'; it has {has}{did_you_mean(dim, sizes)}"
                )
            size = sizes[dim]
            ranks = range(size)[wanted] if isinstance(wanted, slice) else range(size)
            outside = not isinstance(wanted, slice) and not 0 <= wanted < size
            beyond = isinstance(wanted, slice) and (wanted.stop or 0) > size
            if outside or beyond or not ranks:
                shown = _dim_text(dim, wanted)
                raise CommandError(
                    f"{shown} is outside {self.name}, whose {dim} go from 0 to {size - 1}; "
                    f"a range such as {dim}=0:{size} excludes its end"
                )

    def __str__(self) -> str:
        if not self.dims:
            return self.name
        return f"{self.name}[{', '.join(_dim_text(d, w) for d, w in self.dims.items())}]"


def parse_selection(text: str) -> MeshSelection:
    """The selection in `NAME` or `NAME[dim=3, dim=0:4, ...]`.

    Raises:
        CommandError: anything else.
    """
    match = _WHOLE.match(text)
    if match is None:
        raise CommandError(
            f"'{text.strip()}' names no ranks; write a mesh, or a slice such as workers[gpus=0:4]"
        )
    dims: dict[str, int | slice] = {}
    inside = match["slice"]
    if inside is not None:
        for part in inside.split(","):
            dim, equals, wanted = (piece.strip() for piece in part.partition("="))
            if not equals or not dim.isidentifier():
                raise CommandError(
                    f"'{part.strip()}' selects nothing; write dim=3 or dim=0:4, as in "
                    f"{match['name']}[gpus=0:4]"
                )
            if dim in dims:
                raise CommandError(f"dim {dim} is given twice; select it once")
            dims[dim] = _parse_wanted(dim, wanted)
    return MeshSelection(match["name"], dims)


def _parse_wanted(dim: str, text: str) -> int | slice:
    if re.fullmatch(r"-?\d+", text):
        index = int(text)
        if index < 0:
            raise CommandError(
                f"{dim}={text}: ranks count from 0 up; negative numbers are not accepted"
            )
        return index
    bounds = _RANGE.match(text)
    if bounds is None:
        raise CommandError(
            f"{dim}={text} is neither an index nor a range; write {dim}=3 or {dim}=0:4"
        )
    start, stop, step = (int(bound) if bound else None for bound in bounds.groups())
    if any(bound is not None and bound < 0 for bound in (start, stop, step)) or step == 0:
        raise CommandError(f"{dim}={text}: ranks count from 0 up, in steps of one or more")
    return slice(start, stop, step)


def _dim_text(dim: str, wanted: int | slice) -> str:
    if isinstance(wanted, int):
        return f"{dim}={wanted}"
    bounds = ["" if bound is None else str(bound) for bound in (wanted.start, wanted.stop)]
    if wanted.step is not None:
        bounds.append(str(wanted.step))
    return f"{dim}={':'.join(bounds)}"
