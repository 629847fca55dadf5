"""Rows that a rank or the client has: its actors, the messages at them, its calls, its counts.

Runs in: any process with a runtime, on its receiving thread, beside running user code, of which it
runs none. Loaded with the first request for rows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from monarch._src.actor.context import ActorId
from monarch._src.actor.state.endpoint_metrics import bounds_ns
from monarch._src.actor.state.history import HISTORY, ActorEvent
from monarch._src.actor.state.program_metrics import bounds
from monarch._src.config import settings_with_sources
from monarch._src.failures.report import at_text
from monarch._src.net.session_directory import address_of
from monarch._src.telemetry.opentelemetry import NAME
from monarch._src.telemetry.sql.history_rows import HISTORY_ROWS, RowsMissingError, lost_rows
from monarch._src.telemetry.sql.place import (
    CLIENT,
    actor_number,
    cells_of,
    host_number,
    place_of,
    shape_json,
    wall_us,
)
from monarch._src.telemetry.sql.state.rows import Row, answer, problem_of
from monarch._src.telemetry.sql.state.schema import TABLES
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import ReadTable, TableRead
from monarch._src.wire.process_codec import Key, MeasureKey, MeasureKind

if TYPE_CHECKING:
    from monarch._src.actor.refs import ProcsRef
    from monarch._src.actor.runtime import Runtime
    from monarch._src.wire.table_codec import Cell


def read_table(run: Runtime, request: ReadTable) -> TableRead:
    """The rows of this process that the request wants."""
    table = TABLES.get(request.table)
    problem = problem_of(table, request)
    rows_of = PROCESS_ROWS.get(request.table)
    if table is None or problem or rows_of is None:
        return TableRead(request.request, problem=problem or "processes have no such rows")
    try:
        found = answer(table, request, rows_of(run), run.site)
    except RowsMissingError as missing:
        return TableRead(request.request, problem=str(missing))
    found.lost = lost_rows(request)  # after the rows were read: none is lost unsaid
    return found


# --- actors ---------------------------------------------------------------------------------------


def _actors(run: Runtime) -> Iterator[Row]:
    place, pid = place_of(run), os.getpid()
    made = {event[1]: event[0] for event in HISTORY.actors.all() if event[5] == "Created"}
    for cell in cells_of(run):
        spec, running = cell.spec, list(cell.running_calls.endpoints())
        if cell.instance_object is None and cell.dead is None:
            running = ["__init__"]
        if cell.dead is None:
            status = "processing" if running else "idle"
        else:
            status = "stopped" if cell.dead.kind == "stopped" else "failed"
        yield (
            actor_number(spec.actor, run.name),
            wall_us(made[spec.actor]) if spec.actor in made else None, spec.actor, spec.rank,
            str(cell.instance.actor_id), f"{place[1]}{at_text(cell.point)}.{spec.name}", *place,
            pid, spec.name, spec.class_name, status, ", ".join(running) or None,
            cell.mailbox.queued_calls(), None,
        )  # fmt: skip
    for end in _ended(run):
        yield (
            actor_number(end.mesh, run.name), wall_us(made[end.mesh]) if end.mesh in made else None,
            end.mesh, end.rank, str(ActorId(run.name, end.mesh, end.name)),
            f"{place[1]}{at_text(end.point)}.{end.name}", *place, pid, end.name, end.class_name,
            end.status.lower(), None, 0, wall_us(end.time_ns),
        )  # fmt: skip


def _ended(run: Runtime) -> list[ActorEvent]:
    """The ends of the actors of this session that have ended, as far as they are remembered.

    A failed actor also stops; its failure is its end.
    """
    live = set(run.cells)
    found: dict[int, ActorEvent] = {}
    for item in HISTORY.actors.all():
        event = ActorEvent(*item)
        if event.mesh in live or event.time_ns < run.begun_ns:
            continue
        if event.status in ENDS and event.mesh not in found:
            found[event.mesh] = event
    return list(found.values())


def _attributes(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    for cell in cells_of(run):
        seen = cell.snapshot()
        for name, text in seen.attributes:
            yield *place, seen.name, seen.class_name, name, text


def _meshes(run: Runtime) -> Iterator[Row]:
    """The actor meshes whose first actor is here, so that each mesh is one row.

    The client is a proc mesh too if it has actors, so that each actor mesh has one.
    """
    cells, ended, place = cells_of(run), _ended(run), place_of(run)
    made = {event[1]: event[0] for event in HISTORY.actors.all() if event[5] == "Created"}
    if run.proc_ref is None and (cells or ended):
        yield (
            place[0], wall_us(run.begun_ns), "Proc", CLIENT, run.name,
            shape_json([], []), host_number(address_of(run.directory, AGENT)), None,
        )  # fmt: skip
    for cell in cells:
        spec = cell.spec
        if spec.rank == 0:
            yield _actor_mesh_row(
                spec.actor, made.get(spec.actor), spec.name, spec.class_name, spec.labels,
                spec.sizes, spec.mesh,
            )  # fmt: skip
    for end in ended:
        if end.rank == 0:
            yield _actor_mesh_row(
                end.mesh, made.get(end.mesh), end.name, end.class_name, end.labels, end.sizes,
                place[0],
            )  # fmt: skip


def _actor_mesh_row(
    uid: int, made_ns: int | None, name: str, class_name: str, labels: Sequence[str],
    sizes: Sequence[int], procs: int,
) -> Row:  # fmt: skip
    made_us = None if made_ns is None else wall_us(made_ns)
    return (
        uid, made_us, f"Python<{class_name.rpartition('.')[2]}>", name, f"{name}-{uid:x}",
        shape_json(labels, sizes), procs, None,
    )  # fmt: skip


# --- calls ----------------------------------------------------------------------------------------


def _calls(run: Runtime) -> Iterator[Row]:
    caller = (run.name, *place_of(run))
    for call in run.calls.calls():
        if not call.endpoint:
            continue
        target: Any = call.actor_mesh
        procs: ProcsRef = target.procs
        awaited = any(future.awaited for future in call.futures_of())
        made = wall_us(call.begun_ns) if call.begun_ns else None
        for position in call.owing():
            yield (
                *caller, call.number, made, procs.uid, procs.name,
                call.region.global_rank(position), target.name, target.class_name, call.endpoint,
                len(call.region), awaited,
            )  # fmt: skip


def _endpoints(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    for counted in run.inspect_handlers.counted().figures:
        key = counted.key
        if key.span:
            continue
        yield (
            *place, "caller" if key.adverb else "callee", key.adverb or None, key.mesh_name,
            key.actor, key.actor_class, key.endpoint, counted.calls, counted.errors,
            counted.in_flight, counted.bytes_in, counted.bytes_out, counted.timed,
            counted.total_ns / 1e9, counted.max_ns / 1e9, counted.waited_ns / 1e9,
        )  # fmt: skip


# --- programs -------------------------------------------------------------------------------------


def _spans(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    for counted in run.inspect_handlers.counted().figures:
        key = counted.key
        if key.span:
            yield (
                *place, key.actor or None, key.actor_class or None, key.endpoint or None, key.span,
                key.parent or None, counted.calls, counted.errors, counted.in_flight,
                counted.total_ns / 1e9, counted.max_ns / 1e9,
            )  # fmt: skip


def _metric_sums(run: Runtime) -> Iterator[Row]:
    place, begun_us = place_of(run), wall_us(run.begun_ns)
    counted = run.inspect_handlers.counted()
    for measure in counted.measures:
        key = measure.key
        if key.kind in ("counter", "up_down_counter"):
            yield (
                *_metric(key, begun_us, NAME), "cumulative", key.kind == "counter",
                *_labels(key, place), measure.total, None, None, *place, key.actor or None,
            )  # fmt: skip
    for figures in counted.figures:
        if not figures.key.span:
            name = f"endpoint_{figures.key.adverb}_throughput" if figures.key.adverb else HANDLED
            key = _endpoint_key(figures.key, "counter", name, "1")
            yield (
                *_metric(key, begun_us, OWN), "cumulative", True, *_labels(key, place), None, None,
                figures.calls, *place, key.actor or None,
            )  # fmt: skip


def _metric_gauges(run: Runtime) -> Iterator[Row]:
    place, begun_us = place_of(run), wall_us(run.begun_ns)
    for measure in run.inspect_handlers.counted().measures:
        key = measure.key
        if key.kind == "gauge":
            yield (
                *_metric(key, begun_us, NAME), *_labels(key, place), measure.total, None, None,
                *place, key.actor or None,
            )  # fmt: skip
    for cell in cells_of(run):
        spec = cell.spec
        key = MeasureKey(place[0], place[1], spec.class_name, spec.name, "gauge", QUEUED, "1")
        yield (
            *_metric(key, begun_us, OWN), *_labels(key, place), None, None,
            cell.mailbox.queued_calls(), *place, spec.name,
        )  # fmt: skip


def _metric_histograms(run: Runtime) -> Iterator[Row]:
    place, begun_us = place_of(run), wall_us(run.begun_ns)
    counted = run.inspect_handlers.counted()
    for measure in counted.measures:
        key, count = measure.key, measure.count - measure.not_finite
        if key.kind == "histogram":
            upper = [bounds(bucket)[1] for bucket, _ in measure.buckets]
            low, high = (measure.low, measure.high) if count else (None, None)
            yield (
                *_metric(key, begun_us, NAME), "cumulative", *_labels(key, place), count,
                measure.total, None, None, low, None, None, high, None, None, json.dumps(upper),
                json.dumps([number for _, number in measure.buckets]), *place, key.actor or None,
            )  # fmt: skip
    for figures in counted.figures:
        if not figures.key.span and figures.timed:
            side = f"endpoint_{figures.key.adverb}" if figures.key.adverb else "endpoint_handler"
            key = _endpoint_key(figures.key, "histogram", f"{side}_latency_us_histogram", "us")
            upper = [bounds_ns(bucket)[1] / 1e3 for bucket, _ in figures.buckets]
            yield (
                *_metric(key, begun_us, OWN), "cumulative", *_labels(key, place), figures.timed,
                figures.total_ns / 1e3, None, None, None, None, None, figures.max_ns / 1e3, None,
                None, json.dumps(upper), json.dumps([number for _, number in figures.buckets]),
                *place, key.actor or None,
            )  # fmt: skip


OWN = "monarch.runtime"
"""The scope of metrics that no program has made. Their names are Monarch's."""
ENDS = frozenset({"Stopped", "Failed"})
"""The last states of actors."""
HANDLED = "py_mesages_handled"  # as Monarch writes it
QUEUED = "actor.message_queue_size"


def _endpoint_key(key: Key, kind: MeasureKind, name: str, unit: str) -> MeasureKey:
    """The instrument that Monarch has for a count of endpoints."""
    attributes = (("actor", key.actor_class), ("method", key.endpoint))
    return MeasureKey(
        key.mesh, key.mesh_name, key.actor_class, key.actor, kind, name, unit, "", attributes
    )


def _metric(key: MeasureKey, begun_us: int, scope: str) -> tuple[Cell, ...]:
    return key.name, time.time_ns() // 1000, begun_us, scope, key.unit


def _labels(key: MeasureKey, place: tuple[int, str, int]) -> tuple[Cell, ...]:
    resource = {"mesh": place[1], "rank": place[2], "actor": key.actor, "class": key.actor_class}
    return json.dumps(dict(key.attributes)), json.dumps(resource)


def _settings(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    for name, value, source in settings_with_sources():
        yield *place, name, json.dumps(value), source


PROCESS_ROWS: dict[str, Callable[[Runtime], Iterator[Row]]] = {
    "actors": _actors,
    "attributes": _attributes,
    "meshes": _meshes,
    "calls": _calls,
    "endpoints": _endpoints,
    "span_counts": _spans,
    "metric_sums": _metric_sums,
    "metric_gauges": _metric_gauges,
    "metric_histograms": _metric_histograms,
    "settings": _settings,
    **HISTORY_ROWS,
}
"""From the name of a table to the rows that a process has of it."""
