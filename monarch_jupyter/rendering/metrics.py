"""Metrics of endpoints as tables. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from monarch.frontend import endpoint_text, name_point, name_ranks
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import byte_size, columns, short_time, three_digits

if TYPE_CHECKING:
    from monarch.observe import EndpointMetrics, Metrics, Process

MOST = 8
"""Endpoints listed under a list of meshes; `%monarch ls --metrics` has all."""

CLIENT = "0"
"""The uid under which endpoints of the client's own actors are counted."""


def endpoints_text(metrics: Metrics, meshes: Collection[str], *, every: bool) -> str:
    """A line an endpoint of these meshes (by uid); empty if none was called."""
    rows = _chosen(metrics, meshes, every=every)
    shown = rows if every else rows[:MOST]
    lines = columns([_head(every=every), *(_cells(r, every=every) for r in shown)]) if rows else []
    return "\n".join([*lines, *_notes(metrics, len(rows) - len(shown), every=every)])


def endpoints_html(metrics: Metrics, meshes: Collection[str], *, every: bool) -> Html:
    """The same as a table."""
    rows = _chosen(metrics, meshes, every=every)
    shown = rows if every else rows[:MOST]
    lines: list[list[object]] = []
    for row in shown:
        cells: list[object] = list(_cells(row, every=every))
        cells[2] = html.code(cells[2])
        if row.errors:
            at = _head(every=every).index("errors")
            cells[at] = html.toned(cells[at], "bad")
        lines.append(cells)
    parts: list[object] = [html.table(_head(every=every), lines)] if rows else []
    parts += [
        html.element("div", html.toned(note, "muted"))
        for note in _notes(metrics, len(rows) - len(shown), every=every)
    ]
    return html.join(parts)


def _chosen(metrics: Metrics, meshes: Collection[str], *, every: bool) -> Sequence[EndpointMetrics]:
    """Endpoints of these meshes: all, or only the callee side, longest total time first."""
    known = [row for row in metrics.endpoints if row.mesh_uid in meshes or row.mesh_uid == CLIENT]
    if every:
        return known
    callees = _merged([row for row in known if row.side == "callee"])
    return sorted(callees, key=lambda row: -row.total_s)


def _merged(rows: Sequence[EndpointMetrics]) -> list[EndpointMetrics]:
    """The rows, with one for all endpoints of an actor of the runtime: they have one text."""
    groups: dict[tuple[str, ...], list[EndpointMetrics]] = {}
    for row in rows:
        text = endpoint_text(row.actor_class, row.endpoint)
        groups.setdefault((row.mesh_uid, row.actor, text), []).append(row)
    return [found[0] if len(found) == 1 else _sum_of(found) for found in groups.values()]


def _sum_of(rows: Sequence[EndpointMetrics]) -> EndpointMetrics:
    """One row for several endpoints, without figures that those of the parts do not give."""
    total_s = sum(row.total_s for row in rows)
    timed = sum(count for row in rows for _, count in row.histogram)
    return replace(
        rows[0],
        calls=sum(row.calls for row in rows),
        errors=sum(row.errors for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        bytes_in=sum(row.bytes_in for row in rows),
        bytes_out=sum(row.bytes_out for row in rows),
        total_s=total_s,
        mean_s=total_s / timed if timed else None,
        p99_s=None,
        slowest=None,
    )


def _head(*, every: bool) -> list[str]:
    if every:
        return [
            "mesh", "actor", "endpoint", "by", "calls", "errors", "in flight", "calls/s", "mean",
            "p50", "p90", "p99", "longest", "waited", "slowest", "in", "out",
        ]  # fmt: skip
    return [
        "mesh", "actor", "endpoint", "calls", "errors", "running", "mean", "p99", "slowest", "in",
        "out",
    ]  # fmt: skip


def _cells(row: EndpointMetrics, *, every: bool) -> list[str]:
    who = [row.mesh, row.actor, endpoint_text(row.actor_class, row.endpoint)]
    counts = [str(row.calls), str(row.errors), str(row.in_flight)]
    sizes = [byte_size(row.bytes_in), byte_size(row.bytes_out)]
    if not every:
        times = [_time(row.mean_s), _time(row.p99_s), _slowest(row)]
        return [*who, *counts, *times, *sizes]
    who.append("ranks" if row.adverb is None else row.adverb)
    taken = (row.mean_s, row.p50_s, row.p90_s, row.p99_s, row.max_s, row.waited_s)
    times = [three_digits(row.calls_per_s), *(_time(t) for t in taken), _slowest(row)]
    return [*who, *counts, *times, *sizes]


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else short_time(seconds)


def _slowest(row: EndpointMetrics) -> str:
    """The process whose calls took longest, if there are several."""
    if row.slowest is None or row.processes == 1:
        return "-"
    process, mean_s = row.slowest
    where = _name(process) if row.adverb else name_point(process.point) or process.mesh
    return f"{where} {short_time(mean_s)}"


def _name(process: Process) -> str:
    return f"{process.mesh} {name_point(process.point)}".strip()


def _notes(metrics: Metrics, left_out: int, *, every: bool) -> list[str]:
    said: list[str] = []
    if left_out:
        said.append(f"and {left_out} more; `%monarch ls --metrics` shows all")
    elif metrics.endpoints and not every:
        said.append("as ranks ran them; `%monarch ls --metrics` shows callers too")
    groups: dict[tuple[str, str], list[Process]] = {}
    for missing in metrics.missing:
        groups.setdefault((missing.process.mesh, missing.reason), []).append(missing.process)
    for (mesh, reason), processes in groups.items():
        ranks = name_ranks(process.point for process in processes)
        said.append(f"no metrics from {f'{mesh} {ranks}'.strip()}: {reason}")
    return said
