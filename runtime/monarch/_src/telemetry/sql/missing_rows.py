"""Rows that an answer lacks, and how they are told. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monarch._src.shape.coordinates import name_ranks

_PLACE = re.compile(r"(?P<mesh>.*)\[(?P<point>\w+=\d+(?:, \w+=\d+)*)\](?P<host>.*)")


@dataclass(frozen=True)
class MissingRows:
    """Rows that the answer lacks: the table, the host or rank that owes them, and why."""

    table: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.table}: {self.where}: {self.reason}"


def missing_lines(missing: Iterable[MissingRows]) -> list[str]:
    """A line for each table and reason; ranks of one mesh that share them are in one line."""
    together: dict[tuple[str, str, str, str], list[Mapping[str, int]]] = {}
    for one in missing:
        found = _PLACE.fullmatch(one.where)
        if found is None:
            together[one.table, one.where, "", one.reason] = []
            continue
        point = dict(side.split("=") for side in found["point"].split(", "))
        key = (one.table, found["mesh"], found["host"], one.reason)
        together.setdefault(key, []).append({dim: int(at) for dim, at in point.items()})
    return [
        f"missing rows of {table}: {mesh}{f'[{name_ranks(points)}]' if points else ''}{host}: {why}"
        for (table, mesh, host, why), points in together.items()
    ]
