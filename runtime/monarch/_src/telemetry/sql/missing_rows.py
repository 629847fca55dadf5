"""Rows that an answer lacks, and those that history has dropped or does not keep. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

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
        mesh, point, host = _parsed(one.where)
        found = together.setdefault((one.table, mesh, host, one.reason), [])
        if point:
            found.append(point)
    return [
        f"missing rows of {table}: {mesh}{f'[{name_ranks(points)}]' if points else ''}{host}: {why}"
        for (table, mesh, host, why), points in together.items()
    ]


@dataclass(frozen=True)
class DroppedRows:
    """Rows of the history of a process that made room for newer ones.

    Attributes:
        table: the table that lacks them.
        where: the rank, such as `workers[gpus=1] on HOST`; for `log_lines`, the host.
        count: their number; of `message_status_events` and `span_events`, the number of messages
            and spans.
        complete_since_us: the time from which on no row is dropped, in microseconds since 1970; 0:
            not known.
    """

    table: str
    where: str
    count: int
    complete_since_us: int

    def __str__(self) -> str:
        return f"{self.table}: {self.where}: {_dropped_text(self.count, self.complete_since_us)}"


def dropped_lines(dropped: Iterable[DroppedRows]) -> list[str]:
    """A line for each table and mesh, with the sum of its ranks and the latest of their times."""
    together: dict[tuple[str, str, str], list[tuple[dict[str, int], DroppedRows]]] = {}
    for one in dropped:
        mesh, point, host = _parsed(one.where)
        together.setdefault((one.table, mesh, host), []).append((point, one))
    lines: list[str] = []
    for (table, mesh, host), found in together.items():
        points = [point for point, _ in found if point]
        ranks = f"[{name_ranks(points)}]" if points else ""
        times = [one.complete_since_us for _, one in found]
        text = _dropped_text(sum(one.count for _, one in found), max(times) if all(times) else 0)
        lines.append(f"dropped rows of {table}: {mesh}{ranks}{host}: {text}")
    return lines


def _parsed(where: str) -> tuple[str, dict[str, int], str]:
    """The mesh, the point, and the rest of a place; without a point, all of it is the mesh."""
    found = _PLACE.fullmatch(where)
    if found is None:
        return where, {}, ""
    point = dict(side.split("=") for side in found["point"].split(", "))
    return found["mesh"], {dim: int(at) for dim, at in point.items()}, found["host"]


def _dropped_text(count: int, since_us: int) -> str:
    text = f"{count} made room for newer ones"
    if not since_us:
        return text
    since = datetime.fromtimestamp(since_us / 1e6, timezone.utc)
    return f"{text}; complete since {since:%Y-%m-%d %H:%M:%S} UTC"


def not_kept_lines(tables: Sequence[str]) -> list[str]:
    """A line for tables that are empty because no process keeps history."""
    if not tables:
        return []
    names = ", ".join(f"`{name}`" for name in tables)
    remedy = "monarch.observe.record() keeps it from then on"
    return [f"no process keeps history, so the past is not in {names}; {remedy}"]
