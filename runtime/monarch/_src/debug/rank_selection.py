"""Parse selections of ranks: `workers[gpus=0:4]`, `ranks(1,3)`, `ranks(gpus=2)`. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from monarch._src.errors import DebugError

Wanted: TypeAlias = "int | slice | tuple[int, ...]"
_NAMED = re.compile(r"\s*(?P<name>[^\s\[\]]+)\s*(?:\[(?P<dims>[^\[\]]*)\])?\s*\Z")
_RANKS = re.compile(r"\s*(?:ranks\((?P<inside>.*)\)|(?P<bare>\S.*))\s*\Z")
_RANGE = re.compile(r"(\d*)\s*:\s*(\d*)\s*(?::\s*(\d*))?\Z")
_PART = re.compile(r"(?P<dim>\w+)\s*=\s*(?P<at>\([^()]*\)|[^,=]+)\s*(?:,|\Z)\s*")
HOW = "write 3, 1,4,6, 0:8:2, or dims as in gpus=0:4 or gpus=(1,3)"


@dataclass(frozen=True)
class Selection:
    """A selection of ranks.

    `name` is the name of a mesh or of an actor (empty: any); `dims` and `ranks` select within it
    (empty and None: all).
    """

    name: str = ""
    dims: Mapping[str, Wanted] = field(default_factory=dict[str, Wanted])
    ranks: Wanted | None = None

    def takes(self, point: Mapping[str, int], sizes: Mapping[str, int], rank: int) -> bool:
        """Whether the selection contains the rank at that point.

        Raises:
            DebugError: it names a dim that the mesh does not have.
        """
        for dim, wanted in self.dims.items():
            if dim not in point:
                has = ", ".join(point) or "none"
                raise DebugError(f"{self.name or 'the mesh'} has no dim {dim!r}; it has {has}")
            if not _holds(wanted, point[dim], sizes[dim]):
                return False
        size = 1
        for one in sizes.values():
            size *= one
        return self.ranks is None or _holds(self.ranks, rank, size)

    def __str__(self) -> str:
        dims = ", ".join(f"{dim}={_text(wanted)}" for dim, wanted in self.dims.items())
        ranks = "" if self.ranks is None else f" ranks({_text(self.ranks).strip('()')})"
        return self.name + (f"[{dims}]" if dims else "") + ranks


def parse_named(text: str) -> Selection:
    """Parse `workers` or `workers[gpus=0:4]`.

    Raises:
        DebugError: the text has another form.
    """
    match = _NAMED.match(text)
    if match is None:
        raise DebugError(
            f"{text.strip()!r} selects no ranks; write the name of a mesh, or workers[gpus=0:4]"
        )
    inside = match["dims"]
    return Selection(match["name"], {} if inside is None else _dims(inside))


def parse_ranks(text: str, name: str = "") -> Selection:
    """Parse `ranks(1,3)`, `ranks(0:8)` or `ranks(gpus=2, hosts=(0,1))`; `ranks()` is optional.

    Raises:
        DebugError: the text has another form.
    """
    match = _RANKS.match(text)
    inside = "" if match is None else match["inside"] if match["bare"] is None else match["bare"]
    inside = inside.strip()
    if not inside or inside == ":":
        return Selection(name)
    if "=" in inside:
        return Selection(name, _dims(inside))
    return Selection(name, {}, _wanted(inside))


def _dims(text: str) -> dict[str, Wanted]:
    found: dict[str, Wanted] = {}
    at = 0
    text = text.strip()
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            raise DebugError(f"{text[at:].strip()!r} selects no ranks; {HOW}")
        inside = match["at"].strip()
        found[match["dim"]] = _wanted(inside[1:-1] if inside.startswith("(") else inside)
        at = match.end()
    return found


def _wanted(text: str) -> Wanted:
    bounds = _RANGE.match(text.strip())
    if bounds is not None:
        start, stop, step = (int(bound) if bound else None for bound in bounds.groups())
        if step != 0:
            return slice(start, stop, step)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise DebugError(f"{text.strip()!r} selects no ranks; {HOW}")
    return int(parts[0]) if len(parts) == 1 else tuple(int(part) for part in parts)


def _text(wanted: Wanted) -> str:
    if not isinstance(wanted, slice):
        return str(wanted)
    bounds = [wanted.start, wanted.stop, *([] if wanted.step is None else [wanted.step])]
    return ":".join("" if bound is None else str(bound) for bound in bounds)


def _holds(wanted: Wanted, at: int, size: int) -> bool:
    if isinstance(wanted, int):
        return at == wanted
    return at in (range(size)[wanted] if isinstance(wanted, slice) else wanted)
