"""Rows that a rank or the client has: its actors, the messages at them, its calls, its counts.

Runs in: any process with a runtime, on its receiving thread, beside running user code, of which it
runs none. Loaded with the first request for rows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

from monarch._src.actor.run.mailbox import caller_of
from monarch._src.actor.state.program_metrics import bounds
from monarch._src.failures.report import at_text
from monarch._src.telemetry.opentelemetry import NAME
from monarch._src.telemetry.sql.agent_rows import shape_json
from monarch._src.telemetry.sql.state.rows import Row, answer, problem_of
from monarch._src.telemetry.sql.state.schema import TABLES
from monarch._src.wire.messages import Call, ReadTable, TableRead

if TYPE_CHECKING:
    from monarch._src.actor.refs import ProcsRef
    from monarch._src.actor.run.cell import ActorCell
    from monarch._src.actor.runtime import Runtime
    from monarch._src.wire.metrics_codec import MeasureKey
    from monarch._src.wire.table_codec import Cell

CLIENT = "client"


def read_table(run: Runtime, request: ReadTable) -> TableRead:
    """The rows of this process that the request wants."""
    table = TABLES.get(request.table)
    problem = problem_of(table, request)
    rows_of = PROCESS_ROWS.get(request.table)
    if table is None or problem or rows_of is None:
        return TableRead(request.request, problem=problem or "processes have no such rows")
    return answer(table, request, list(rows_of(run)), run.site)


def _place(run: Runtime) -> tuple[int, str, int]:
    """The uid and name of the proc mesh, and the rank of this process in it."""
    ref = run.proc_ref
    if ref is not None:
        return ref.uid, ref.name, run.rank
    return (0 if run.client_ref is None else run.client_ref.uid), CLIENT, 0


def _cells(run: Runtime) -> list[ActorCell]:
    return [cast("ActorCell", cell) for cell in list(run.cells.values())]


def actor_number(uid: int, rank: int) -> int:
    """A 64-bit number for the actor of that rank of an actor mesh."""
    return int.from_bytes(blake2b(f"{uid:x}.{rank}".encode(), digest_size=8).digest(), "big")


# --- actors ---------------------------------------------------------------------------------------


def _actors(run: Runtime) -> Iterator[Row]:
    place, pid = _place(run), os.getpid()
    for cell in _cells(run):
        spec, running = cell.spec, list(cell.running_calls.endpoints())
        if cell.instance_object is None and cell.dead is None:
            running = ["__init__"]
        if cell.dead is None:
            status = "processing" if running else "idle"
        else:
            status = "stopped" if cell.dead.kind == "stopped" else "failed"
        yield (
            actor_number(spec.actor, spec.rank), spec.actor, spec.rank,
            str(cell.instance.actor_id), f"{place[1]}{at_text(cell.point)}.{spec.name}", *place,
            pid, spec.name, spec.class_name, status, ", ".join(running) or None,
            cell.mailbox.queued_calls(),
        )  # fmt: skip


def _meshes(run: Runtime) -> Iterator[Row]:
    """The actor meshes whose first actor is here, so that each mesh is one row."""
    for cell in _cells(run):
        spec = cell.spec
        if spec.rank == 0:
            name = spec.class_name.rpartition(".")[2]
            yield (
                spec.actor, None, f"Python<{name}>", spec.name, f"{spec.name}-{spec.actor:x}",
                shape_json(spec.labels, spec.sizes), spec.mesh,
            )  # fmt: skip


def _messages(run: Runtime) -> Iterator[Row]:
    place = _place(run)
    for cell in _cells(run):
        for peer, call, payload in list(cell.running_calls.calls.values()):
            sender = caller_of((peer, call, payload))
            yield _message(cell, place, sender, call, "active", None)
        for item in cell.mailbox.items():
            if isinstance(item, tuple):
                yield _message(cell, place, caller_of(item), item[1], "queued", item[3])


def _message(
    cell: ActorCell,
    place: tuple[int, str, int],
    sender: str,
    call: Call,
    status: str,
    arrived_ns: int | None,
) -> Row:
    spec = cell.spec
    # Messages that no caller waits for have no number; the object is theirs while they exist.
    key = f"{spec.actor:x}.{spec.rank}.{sender}.{call.call or f'object {id(call)}'}"
    number = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    return (
        number, None if arrived_ns is None else _wall_us(arrived_ns),
        actor_number(spec.actor, spec.rank), call.endpoint, status, *place, spec.name, sender,
        call.call or None,
    )  # fmt: skip


def _wall_us(monotonic_ns: int) -> int:
    """A time of the monotonic clock as microseconds since the epoch."""
    return (time.time_ns() - time.monotonic_ns() + monotonic_ns) // 1000


# --- calls ----------------------------------------------------------------------------------------


def _calls(run: Runtime) -> Iterator[Row]:
    caller = (run.name, *_place(run))
    for call in run.calls.calls():
        if not call.endpoint:
            continue
        target: Any = call.actor_mesh
        procs: ProcsRef = target.procs
        awaited = any(future.awaited for future in call.futures_of())
        made = _wall_us(call.begun_ns) if call.begun_ns else None
        for position in call.owing():
            yield (
                *caller, call.number, made, procs.uid, procs.name,
                call.region.global_rank(position), target.name, target.class_name, call.endpoint,
                len(call.region), awaited,
            )  # fmt: skip


def _endpoints(run: Runtime) -> Iterator[Row]:
    place = _place(run)
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
    place = _place(run)
    for counted in run.inspect_handlers.counted().figures:
        key = counted.key
        if key.span:
            yield (
                *place, key.actor or None, key.actor_class or None, key.endpoint or None, key.span,
                key.parent or None, counted.calls, counted.errors, counted.in_flight,
                counted.total_ns / 1e9, counted.max_ns / 1e9,
            )  # fmt: skip


def _metric_sums(run: Runtime) -> Iterator[Row]:
    place = _place(run)
    for measure in run.inspect_handlers.counted().measures:
        key = measure.key
        if key.kind != "histogram":
            yield (
                *_metric(key), key.kind == "counter", *_labels(key, place), measure.total, *place,
                key.actor or None,
            )  # fmt: skip


def _metric_histograms(run: Runtime) -> Iterator[Row]:
    place = _place(run)
    for measure in run.inspect_handlers.counted().measures:
        key, count = measure.key, measure.count - measure.not_finite
        if key.kind == "histogram":
            upper = [bounds(bucket)[1] for bucket, _ in measure.buckets]
            yield (
                *_metric(key), *_labels(key, place), count, measure.total,
                measure.low if count else None, measure.high if count else None,
                json.dumps(upper), json.dumps([number for _, number in measure.buckets]), *place,
                key.actor or None,
            )  # fmt: skip


def _metric(key: MeasureKey) -> tuple[Cell, ...]:
    return key.name, time.time_ns() // 1000, NAME, key.unit, "cumulative"


def _labels(key: MeasureKey, place: tuple[int, str, int]) -> tuple[Cell, ...]:
    resource = {"mesh": place[1], "rank": place[2], "actor": key.actor, "class": key.actor_class}
    return json.dumps(dict(key.attributes)), json.dumps(resource)


PROCESS_ROWS: dict[str, Callable[[Runtime], Iterator[Row]]] = {
    "actors": _actors,
    "meshes": _meshes,
    "messages": _messages,
    "calls": _calls,
    "endpoints": _endpoints,
    "span_counts": _spans,
    "metric_sums": _metric_sums,
    "metric_histograms": _metric_histograms,
}
"""From the name of a table to the rows that a process has of it."""
