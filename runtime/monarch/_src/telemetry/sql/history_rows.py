"""Rows of the tables with history: ended events that a process keeps, and unfinished ones.

Runs in: any process with a runtime, on its receiving thread, beside running user code, of which it
runs none. Loaded with the first request for rows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._src.actor.run.mailbox import caller_of
from monarch._src.actor.state.history import (
    HISTORY,
    EndedSpan,
    LogRecord,
    Sent,
    TorchEvent,
)
from monarch._src.telemetry.sql.place import (
    Place,
    actor_number,
    cells_of,
    mixed,
    place_of,
    shape_json,
    view_json,
    wall_offset_ns,
    wall_us,
)
from monarch._src.telemetry.sql.state.rows import Row, wants_before
from monarch._src.wire.ids import number_of

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell
    from monarch._src.actor.runtime import Runtime
    from monarch._src.telemetry.spans import OpenSpan
    from monarch._src.wire.messages import Call, ReadTable

NS_PER_S = 1e9


class RowsMissingError(Exception):
    """A process cannot have these rows; its text says why."""


# --- messages -------------------------------------------------------------------------------------


class _Message(NamedTuple):
    """One message at the actor that receives it. Times are monotonic ns; None: not yet."""

    actor: int
    name: str
    caller: str
    sent_by: int
    call: int
    endpoint: str
    arrived_ns: int
    begun_ns: int | None
    ended_ns: int | None
    status: str

    def number(self, run: Runtime) -> int:
        """Its `id`: the same while it is queued, while it runs, and in the history."""
        base = number_of(f"{self.actor:x}.{run.name}.{self.caller}")
        return mixed(base, self.call or self.arrived_ns)


def _names() -> dict[int, str]:
    """The names of actors, by uid, as far as their beginnings are remembered."""
    return {event[1]: event[3] for event in HISTORY.actors.all()}


def _all_messages(run: Runtime) -> Iterator[_Message]:
    HISTORY.expire(time.monotonic_ns())
    names = _names()
    if HISTORY.handled is not None:
        rows = HISTORY.handled.all()
        for ended_ns, actor, caller, sent_by, call, endpoint, arrived_ns, ran_ns, failed in rows:
            yield _Message(
                actor, names.get(actor, ""), caller, sent_by, call, endpoint, arrived_ns,
                None if ran_ns < 0 else ended_ns - ran_ns, ended_ns,
                "failed" if failed else "complete",
            )  # fmt: skip
    for cell in cells_of(run):
        yield from _unfinished(run, cell)


def _unfinished(run: Runtime, cell: ActorCell) -> Iterator[_Message]:
    begun: dict[bytes, list[int]] = {}
    for since, actor, endpoint in run.slot.running():
        if actor == cell.board_name:
            begun.setdefault(endpoint, []).append(since)
    for item in list(cell.running_calls.calls.values()):
        times = begun.get(item[1].endpoint.encode())
        # It may have been taken from the queue and not begun yet.
        yield _now(cell, item[1], caller_of(item), item[3], times.pop(0) if times else item[3])
    for queued in cell.mailbox.items():
        if isinstance(queued, tuple):
            yield _now(cell, queued[1], caller_of(queued), queued[3], None)


def _now(
    cell: ActorCell, call: Call, caller: str, arrived_ns: int, begun_ns: int | None
) -> _Message:
    spec, status = cell.spec, "queued" if begun_ns is None else "active"
    return _Message(
        spec.actor, spec.name, caller, call.sent_by, call.call, call.endpoint, arrived_ns,
        begun_ns, None, status,
    )  # fmt: skip


def _messages(run: Runtime) -> Iterator[Row]:
    place, offset_ns = place_of(run), wall_offset_ns()
    for one in _all_messages(run):
        waited_s = None if one.begun_ns is None else (one.begun_ns - one.arrived_ns) / NS_PER_S
        ran_s = None
        if one.ended_ns is not None and one.begun_ns is not None:
            ran_s = (one.ended_ns - one.begun_ns) / NS_PER_S
        yield (
            one.number(run), (offset_ns + one.arrived_ns) // 1000,
            actor_number(one.sent_by, one.caller), actor_number(one.actor, run.name), one.endpoint,
            None, one.status, waited_s, ran_s,
            *place, one.name, one.caller, one.call or None,
        )  # fmt: skip


def _message_status_events(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    for one in _all_messages(run):
        number = one.number(run)
        final = one.status if one.ended_ns is not None else "complete"
        times = (("queued", one.arrived_ns), ("active", one.begun_ns), (final, one.ended_ns))
        for status, at_ns in times:
            if at_ns is not None:
                yield number ^ number_of(status), wall_us(at_ns), number, status, *place


# --- sent messages --------------------------------------------------------------------------------


def _sent_messages(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    HISTORY.expire(time.monotonic_ns())
    if HISTORY.sent is not None:
        for item in HISTORY.sent.all():
            yield _sent(run, Sent(*item), place, ended=True)
    for call in run.calls.calls():
        if call.endpoint and call.begun_ns:
            target: Any = call.actor_mesh
            now = Sent(
                0, call.begun_ns, call.number, call.sent_by, target.uid, call.mesh, target.name,
                call.region, call.endpoint, call.failed,
            )  # fmt: skip
            yield _sent(run, now, place, ended=False)


def _sent(run: Runtime, one: Sent, place: Place, *, ended: bool) -> Row:
    region = one.region
    return (
        mixed(number_of(run.name), one.call or one.begun_ns), wall_us(one.begun_ns),
        actor_number(one.sent_by, run.name), one.actors, view_json(region),
        shape_json(region.labels, list(region.ndslice.sizes)), one.call or None, one.procs,
        one.name, one.endpoint, len(region), wall_us(one.ended_ns) if ended else None, one.failed,
        *place,
    )  # fmt: skip


# --- actors ---------------------------------------------------------------------------------------


def _actor_status_events(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    for time_ns, uid, _, name, class_name, status, reason, *_ in HISTORY.actors.all():
        yield (
            mixed(actor_number(uid, run.name), time_ns), wall_us(time_ns),
            actor_number(uid, run.name), status, reason or None, *place, name, class_name,
        )  # fmt: skip


# --- spans and log records ------------------------------------------------------------------------


def _all_spans() -> Iterator[EndedSpan | OpenSpan]:
    HISTORY.expire(time.monotonic_ns())
    if HISTORY.spans is not None:
        yield from (EndedSpan(*item) for item in HISTORY.spans.all())
    yield from list(HISTORY.open_spans.values())


def _spans(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    for one in _all_spans():
        at, took_us, failed = one.place, None, False
        if isinstance(one, EndedSpan):
            took_us, failed = (one.ended_ns - one.begun_ns) // 1000, one.failed
        target = f"{at.actor_class}.{at.actor}" if at.actor_class else at.actor
        fields = json.dumps({"endpoint": at.endpoint} if at.endpoint else {})
        yield (
            run.name, one.id, one.name, target, "INFO", fields, wall_us(one.begun_ns),
            one.parent or None, one.thread_name, None, None, took_us,
            failed, at.actor or None, at.endpoint or None, *place,
        )  # fmt: skip


def _span_events(run: Runtime) -> Iterator[Row]:
    place = place_of(run)
    for one in _all_spans():
        yield run.name, one.id, wall_us(one.begun_ns), "enter", *place
        if isinstance(one, EndedSpan):
            yield run.name, one.id, wall_us(one.ended_ns), "exit", *place
            yield run.name, one.id, wall_us(one.ended_ns), "close", *place


def _events(run: Runtime) -> Iterator[Row]:
    HISTORY.expire(time.monotonic_ns())
    place = place_of(run)
    for item in [] if HISTORY.events is None else HISTORY.events.all():
        one = LogRecord(*item)
        yield (
            f"event {one.file}:{one.line}", one.logger, level_name(one.level),
            json.dumps({"message": one.text}), wall_us(one.time_ns), one.span or None,
            str(one.thread), one.thread_name, one.module, one.file, one.line, one.text,
            one.actor or None, *place,
        )  # fmt: skip


def level_name(level: int) -> str:
    """Monarch's name of a level of `logging`."""
    if level >= logging.ERROR:
        return "ERROR"
    if level >= logging.WARNING:
        return "WARN"
    return "INFO" if level >= logging.INFO else "DEBUG"


# --- torch ----------------------------------------------------------------------------------------


def _torch_events(run: Runtime) -> Iterator[Row]:
    HISTORY.expire(time.monotonic_ns())
    if HISTORY.torch_problem:
        raise RowsMissingError(HISTORY.torch_problem)
    place, epoch_ns = place_of(run), wall_us(0) * 1000
    for item in () if HISTORY.torch_events is None else HISTORY.torch_events.all():
        one = TorchEvent(*item)
        yield (
            wall_us(one.begun_ns), epoch_ns + one.begun_ns, one.ended_ns - one.begun_ns, one.name,
            one.kind, one.device, one.thread_name, *place,
        )  # fmt: skip


# --- recordings -----------------------------------------------------------------------------------


def _recordings(run: Runtime) -> Iterator[Row]:
    HISTORY.expire(time.monotonic_ns())
    place, retention_s = place_of(run), HISTORY.retention_ns / NS_PER_S
    for name, ring in HISTORY.rings().items():
        if ring is HISTORY.actors:
            continue
        yield (
            *place, name, retention_s, ring.rows.maxlen, len(ring.rows), ring.nbytes, ring.added,
            ring.dropped,
        )  # fmt: skip


_RINGS = {
    "messages": "messages", "message_status_events": "messages", "sent_messages": "sent_messages",
    "actor_status_events": "actor_status_events", "spans": "spans", "span_events": "spans",
    "events": "events", "torch_events": "torch_events",
}  # fmt: skip
"""From the name of a table to that of the ring that its rows come from, as in `recordings`."""


def lost_rows(request: ReadTable) -> list[tuple[str, int, int]]:
    """The rows that the request may want and that made room for newer ones; see `TableRead`."""
    HISTORY.expire(time.monotonic_ns())
    name = _RINGS.get(request.table, "")
    ring = HISTORY.rings().get(name)
    if ring is None or not ring.lost:
        return []
    oldest_ns = ring.oldest_ns
    # Events of torch are added when its profiler ends, in any order. A dropped row may be of the
    # same microsecond as the oldest one.
    since_us = 0 if oldest_ns is None or name == "torch_events" else wall_us(oldest_ns) + 1
    return [("", ring.lost, since_us)] if not since_us or wants_before(request, since_us) else []


HISTORY_ROWS: dict[str, Callable[[Runtime], Iterator[Row]]] = {
    "messages": _messages,
    "message_status_events": _message_status_events,
    "sent_messages": _sent_messages,
    "actor_status_events": _actor_status_events,
    "spans": _spans,
    "span_events": _span_events,
    "events": _events,
    "torch_events": _torch_events,
    "recordings": _recordings,
}
"""From the name of a table to the rows that a process has of it."""
