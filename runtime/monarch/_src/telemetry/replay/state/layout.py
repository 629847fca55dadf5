"""The file of a recording: its tables, views and statements. No I/O.

For each table that a query may read, `history.NAME` has its rows with `recorded_us`. Rows of
*events* (messages, spans, lines) have a key and are kept once, in their last form. Other tables are
*sampled*: a sample has all rows of that time. In `main` each table has its usual name and columns:
events, and the rows of the last sample. The variable `at_us` moves that view back in time: a
message that ended later is then still queued or active.

A row that is not finished stays so in the file when its process has gone. Such a message is *lost*,
and no such row is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.telemetry.sql.state.schema import (
    ATTRIBUTES,
    FRAMES,
    STORED_FRAMES,
    TABLES,
    Table,
)
from monarch._src.telemetry.sql.state.views import VIEWS, view_definition
from monarch._src.wire.messages import Condition

AT = "at_us"
"""The variable that says of which time the tables of `main` are, in microseconds."""
SCHEMA = "history"
MARGIN_US = 10_000_000
"""How far the clocks of hosts may differ without loss, in microseconds."""


@dataclass(frozen=True)
class EventTable:
    """A table of events.

    `key`: the columns that a row is known by. `open_if`: an SQL condition of rows that may still
    change. `earlier`: SQL expressions for columns whose values were other ones before the row got
    its last form; `{at}` is the time of the view.
    """

    key: tuple[str, ...]
    open_if: str = "false"
    earlier: Mapping[str, str] = field(default_factory=dict[str, str])


_BEGAN = "timestamp_us + waited_s * 1e6"
_ENDED = "timestamp_us + (waited_s + ran_s) * 1e6"
EVENTS: Mapping[str, EventTable] = {
    "messages": EventTable(
        ("id",),
        "status IN ('queued', 'active')",
        {
            "status": f"CASE WHEN {_BEGAN} > {{at}} THEN 'queued' WHEN {_ENDED} > {{at}} "
            "THEN 'active' WHEN status = 'lost' AND recorded_us >= {at} THEN "
            "if(waited_s IS NULL, 'queued', 'active') ELSE status END",
            "waited_s": f"CASE WHEN {_BEGAN} > {{at}} THEN NULL ELSE waited_s END",
            "ran_s": f"CASE WHEN {_ENDED} > {{at}} THEN NULL ELSE ran_s END",
        },
    ),
    "message_status_events": EventTable(("id",)),
    "sent_messages": EventTable(
        ("id",),
        "ended_us IS NULL",
        {
            "ended_us": "CASE WHEN ended_us > {at} THEN NULL ELSE ended_us END",
            "failed": "failed AND coalesce(ended_us <= {at}, true)",
        },
    ),
    "actor_status_events": EventTable(("id",)),
    "spans": EventTable(
        ("process_id", "id"),
        "duration_us IS NULL",
        {
            "duration_us": "CASE WHEN timestamp_us + duration_us > {at} THEN NULL "
            "ELSE duration_us END",
            "failed": "failed AND coalesce(timestamp_us + duration_us <= {at}, true)",
        },
    ),
    "span_events": EventTable(("process_id", "id", "event_type")),
    "events": EventTable(
        ("session", "host", "mesh_id", "rank", "thread_id", "timestamp_us", "text")
    ),
    "log_lines": EventTable(("session", "host", "number")),
}
LEFT_OUT = (ATTRIBUTES.name, FRAMES.name, STORED_FRAMES.name)
"""The tables that are not recorded, since they cost the ranks more than the others."""
SAMPLED = tuple(name for name in TABLES if name not in EVENTS and name not in LEFT_OUT)
_NEWEST = f"(SELECT max(recorded_us) FROM {SCHEMA}.samples WHERE recorded_us <= {{at}})"
_AT = f"coalesce(getvariable('{AT}'), 9223372036854775807)"


def needs(since_us: Mapping[str, int]) -> dict[str, Need]:
    """The needs of a sample: whole tables, but of events only those from these times on."""
    found: dict[str, Need] = {}
    for name in (*EVENTS, *SAMPLED):
        columns = tuple(column.name for column in TABLES[name].columns)
        conditions: tuple[Condition, ...] = ()
        if name in EVENTS and name in since_us:
            conditions = (Condition("timestamp_us", ">=", [since_us[name]]),)
        found[name] = Need(columns, conditions)
    return found


def _columns(table: Table) -> str:
    return ", ".join(f'"{column.name}" {column.type}' for column in table.columns)


def creation() -> list[str]:
    """The statements that make the file."""
    made = [f"CREATE SCHEMA {SCHEMA}", f"CREATE TABLE {SCHEMA}.samples (recorded_us BIGINT)"]
    missing = '"name" VARCHAR, place VARCHAR, reason VARCHAR, recorded_us BIGINT'
    made.append(f"CREATE TABLE {SCHEMA}.missing_rows ({missing})")
    for table in TABLES.values():
        made.append(f"CREATE TABLE {SCHEMA}.{table.name} ({_columns(table)}, recorded_us BIGINT)")
        which = f"recorded_us = {_NEWEST.format(at=_AT)}"
        columns = "* EXCLUDE (recorded_us)"
        if table.name in EVENTS:
            which = f"timestamp_us <= {_AT}"
            columns += _replaced(EVENTS[table.name].earlier)
        made.append(
            f"CREATE VIEW {table.name} AS SELECT {columns} FROM {SCHEMA}.{table.name} WHERE {which}"
        )
    now = _NEWEST.format(at=_AT)
    return [*made, *(view_definition(view, now) for view in VIEWS.values())]


def _replaced(earlier: Mapping[str, str]) -> str:
    if not earlier:
        return ""
    cells = (f'{sql.format(at=_AT)} AS "{name}"' for name, sql in earlier.items())
    return f" REPLACE ({', '.join(cells)})"


def staging() -> list[str]:
    """The statements that make the temporary tables into which rows are loaded."""
    return [
        f"CREATE TEMP TABLE new_{name} ({_columns(TABLES[name])})" for name in (*EVENTS, *SAMPLED)
    ]


def moves(name: str, now_us: int) -> list[str]:
    """The statements that move the loaded rows of a table into the recording."""
    found: list[str] = []
    events = EVENTS.get(name)
    if events is not None:
        keys = " AND ".join(f'old."{key}" IS NOT DISTINCT FROM new."{key}"' for key in events.key)
        found.append(f"DELETE FROM {SCHEMA}.{name} AS old USING new_{name} AS new WHERE {keys}")
    found.append(f"INSERT INTO {SCHEMA}.{name} SELECT *, {now_us} FROM new_{name}")
    found.append(f"DELETE FROM new_{name}")
    return found


def losses(now_us: int) -> str:
    """The statement that marks the messages which were lost with their process by that sample."""
    open_if = EVENTS["messages"].open_if
    return (
        f"UPDATE {SCHEMA}.messages AS event SET status = 'lost' "
        f"WHERE {open_if} AND {_gone(str(now_us))}"
    )


def _gone(now: str) -> str:
    """An SQL condition: the process of `event` has ended, as of the sample of that time.

    It was there in the sample that the row is from, and its host has answered since. The client is
    in no row of `procs`, so its rows are never of a process that has gone.
    """
    host = "{0}.session = event.session AND {0}.host = event.host"
    place = host + " AND {0}.mesh_id = event.mesh_id AND {0}.rank = event.rank"
    return (
        f"EXISTS (SELECT 1 FROM {SCHEMA}.hosts AS heard "
        f"WHERE heard.recorded_us = {now} AND {host.format('heard')}) "
        f"AND EXISTS (SELECT 1 FROM {SCHEMA}.procs AS before "
        f"WHERE before.recorded_us = event.recorded_us AND {place.format('before')} "
        f"AND NOT EXISTS (SELECT 1 FROM {SCHEMA}.procs AS after "
        f"WHERE after.recorded_us = {now} AND {place.format('after')} "
        "AND after.state NOT IN ('failed', 'stopped') AND after.restarts = before.restarts))"
    )


def watermark(name: str) -> str:
    """The query for the time from which events of a table are needed next; NULL: all."""
    table, newest = f"{SCHEMA}.{name}", f"(SELECT max(recorded_us) FROM {SCHEMA}.samples)"
    return (
        f"SELECT least((SELECT max(timestamp_us) - {MARGIN_US} FROM {table}), "
        f"(SELECT min(timestamp_us) FROM {table} AS event "
        f"WHERE {EVENTS[name].open_if} AND NOT ({_gone(newest)})))"
    )


def bounds(name: str, oldest_us: int, most_rows: int) -> list[str]:
    """The statements that drop rows which are too old or too many."""
    table = f"{SCHEMA}.{name}"
    too_many = (
        f"SELECT recorded_us FROM {table} ORDER BY recorded_us DESC LIMIT 1 OFFSET {most_rows}"
    )
    return [
        f"DELETE FROM {table} WHERE recorded_us < {oldest_us}",
        f"DELETE FROM {table} WHERE recorded_us <= ({too_many})",
    ]


def bounded() -> Sequence[str]:
    """The tables with bounds."""
    return (*EVENTS, *SAMPLED, "samples", "missing_rows")


def literal(value: Any) -> str:
    """A text as SQL."""
    return "'" + str(value).replace("'", "''") + "'"
