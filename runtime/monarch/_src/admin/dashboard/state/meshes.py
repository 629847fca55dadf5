"""Meshes as the explorer reads them, from the tables `meshes`, `procs` and `actors`. No I/O.

The page's side is the types `Mesh` and `Row` of `widgets/js/protocol.js`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias

import msgspec

TABLES = ("meshes", "procs", "actors")
CLIENT = "client"
MIB = 1 << 20
Row: TypeAlias = "Mapping[str, Any]"


class RankMessage(msgspec.Struct):
    """One rank. `since_s`: seconds in this state. `where`: the line at which it is paused."""

    rank: int
    point: dict[str, int]
    pid: int | None
    state: str
    actor: str | None
    endpoint: str | None
    since_s: float
    messages: int
    rss_mib: float | None
    failure: str | None
    errors: int
    restarts: int
    where: str | None


class MeshMessage(msgspec.Struct):
    """One mesh with all its ranks. `failed`: a line for each failed actor of a rank that lives."""

    uid: str
    name: str
    host: str
    state: str
    sizes: dict[str, int]
    actors: list[str]
    failed: list[str]
    debugged: list[int]
    age_s: float
    rows: list[RankMessage]


def meshes_of(tables: Mapping[str, Sequence[Row]], now_us: int) -> list[MeshMessage]:
    """The proc meshes in the order of their spawns. `now_us`: microseconds since 1970."""
    by_mesh: dict[tuple[str, int], list[Row]] = {}
    for row in tables.get("procs", ()):
        if row["mesh"] != CLIENT:
            by_mesh.setdefault((row["session"], row["mesh_id"]), []).append(row)
    actors: dict[tuple[str, int], list[Row]] = {}
    for row in tables.get("actors", ()):
        actors.setdefault((row["session"], row["proc_mesh_id"]), []).append(row)
    about = {(row["session"], row["id"]): row for row in tables.get("meshes", ())}
    found: list[tuple[int, MeshMessage]] = []
    for (session, uid), procs in by_mesh.items():
        mesh = about.get((session, uid), {})
        spawned_us = mesh.get("timestamp_us") or now_us
        ranks = [_rank(row) for row in sorted(procs, key=lambda row: row["rank"])]
        there = actors.get((session, uid), [])
        found.append(
            (
                spawned_us,
                MeshMessage(
                    f"{uid:x}", procs[0]["mesh"], _host_text(procs), _state(ranks),
                    _sizes(mesh.get("shape_json"), procs), _names(there), _failed(there, ranks), [],
                    max(0.0, (now_us - spawned_us) / 1e6), ranks,
                ),
            )
        )  # fmt: skip
    return [message for _, message in sorted(found, key=lambda pair: (pair[0], pair[1].uid))]


def _rank(row: Row) -> RankMessage:
    rss = row["rss_bytes"]
    where = None
    if row["function"] is not None:
        where = f"{row['function']} ({PurePath(row['file']).name}:{row['line']})"
    return RankMessage(
        row["rank"], _point(row), row["pid"], row["state"], row["actor"], row["endpoint"],
        row["since_s"] or 0.0, row["messages"] or 0, None if rss is None else rss / MIB,
        row["failure"], row["errors"] or 0, row["restarts"] or 0, where,
    )  # fmt: skip


def _point(row: Row) -> dict[str, int]:
    found: dict[str, int] = json.loads(row["point_json"] or "{}")
    return found


def _sizes(shape: str | None, procs: Iterable[Row]) -> dict[str, int]:
    """Labels with sizes; of a mesh of which only ranks are known, those that hold them all."""
    if shape:
        extent: dict[str, list[Any]] = json.loads(shape)["inner"]
        return dict(zip(extent["labels"], extent["sizes"], strict=True))
    largest: dict[str, int] = {}
    for row in procs:
        for label, index in _point(row).items():
            largest[label] = max(largest.get(label, 0), index + 1)
    return largest


def _host_text(procs: Iterable[Row]) -> str:
    hosts = list(dict.fromkeys(row["host"] for row in procs))
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"


def _state(ranks: Sequence[RankMessage]) -> str:
    states = {one.state for one in ranks}
    if "failed" in states:
        return "failed"
    if "starting" in states:
        return "starting"
    return "stopped" if states == {"stopped"} else "ready"


def _names(actors: Iterable[Row]) -> list[str]:
    """The names of live actors of the user, each once."""
    return list(dict.fromkeys(row["name"] for row in actors if row["status"] != "stopped"))


def _failed(actors: Iterable[Row], ranks: Iterable[RankMessage]) -> list[str]:
    points = {one.rank: one.point for one in ranks if one.state != "failed"}
    by_name: dict[str, list[int]] = {}
    for row in actors:
        if row["status"] == "failed" and row["proc_rank"] in points:
            by_name.setdefault(row["name"], []).append(row["proc_rank"])
    lines: list[str] = []
    for name, found in by_name.items():
        first, rest = min(found), len(set(found)) - 1
        at = ", ".join(f"{label}={index}" for label, index in points[first].items())
        more = f" and {rest} more" if rest else ""
        lines.append(f"{name} has failed at {at or 'rank 0'}{more}")
    return lines
