"""Spans and instruments of programs as tables. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from monarch.frontend import endpoint_text, name_point
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.metrics import CLIENT
from monarch_jupyter.rendering.units import columns, short_time

if TYPE_CHECKING:
    from monarch.observe import InstrumentMetrics, Metrics, SpanMetrics

_SPANS = [
    "mesh", "actor", "span", "part of", "count", "errors", "running", "mean", "p50", "p99",
    "longest", "slowest",
]  # fmt: skip
_INSTRUMENTS = [
    "mesh", "actor", "measured", "attributes", "count", "sum", "mean", "p50", "p99", "least",
    "most",
]  # fmt: skip


def measured_text(metrics: Metrics, meshes: Collection[str]) -> str:
    """The spans and the instruments of these meshes (by uid); empty if there are none."""
    tables = _tables(metrics, meshes)
    return "\n\n".join("\n".join(columns([head, *rows])) for head, rows in tables)


def measured_html(metrics: Metrics, meshes: Collection[str]) -> Html:
    """The same as tables."""
    return html.join(
        html.table(head, ([*row[:2], html.code(row[2]), *row[3:]] for row in rows))
        for head, rows in _tables(metrics, meshes)
    )


def _tables(
    metrics: Metrics, meshes: Collection[str]
) -> Iterable[tuple[list[str], Sequence[list[str]]]]:
    known = {*meshes, CLIENT}
    spans = [_span(row) for row in metrics.spans if row.mesh_uid in known]
    measured = [_instrument(row) for row in metrics.instruments if row.mesh_uid in known]
    if spans:
        yield _SPANS, spans
    if measured:
        yield _INSTRUMENTS, measured


def _span(row: SpanMetrics) -> list[str]:
    parent = row.parent or "-"
    if row.endpoint is not None:
        endpoint = endpoint_text(row.actor_class or "", row.endpoint)
        parent = endpoint if row.parent == row.endpoint else f"{row.parent} in {endpoint}"
    times = (row.mean_s, row.p50_s, row.p99_s, row.max_s)
    slowest = "-"
    if row.slowest is not None and row.processes > 1:
        process, mean_s = row.slowest
        slowest = f"{name_point(process.point) or process.mesh} {short_time(mean_s)}"
    return [
        row.mesh, row.actor or "-", row.name, parent, str(row.count), str(row.errors),
        str(row.running), *("-" if t is None else short_time(t) for t in times), slowest,
    ]  # fmt: skip


def _instrument(row: InstrumentMetrics) -> list[str]:
    attributes = ", ".join(f"{name}={value}" for name, value in row.attributes.items())
    name = f"{row.name} ({row.unit})" if row.unit else row.name
    count = f"{row.count}, {row.not_finite} not finite" if row.not_finite else str(row.count)
    values = (row.mean, row.p50, row.p99, row.min, row.max)
    return [
        row.mesh, row.actor or "-", name, attributes or "-", count, f"{row.total:,.10g}",
        *("-" if value is None else f"{value:.4g}" for value in values),
    ]  # fmt: skip
