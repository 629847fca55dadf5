"""The tables that a query may read: their columns, types and sources. No I/O.

Names and types are those of Monarch's tables where a table has the same rows. `session` and `host`
are added by the process that runs the query, since an agent does not know under which names it is
found; every other column comes from the source of its table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Type = Literal["BIGINT", "UBIGINT", "DOUBLE", "VARCHAR", "BOOLEAN"]


class Source(enum.Flag):
    """The processes that have rows of a table."""

    AGENT = enum.auto()  # each host agent
    PROCESSES = enum.auto()  # each rank, and the client
    STACKS = enum.auto()  # py-spy, which an agent runs on its ranks


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: Type
    doc: str


@dataclass(frozen=True)
class Place:
    """The columns that name the process of a row: the uid and name of its mesh, and its rank.

    An agent asks only the processes that conditions on these columns leave.
    """

    mesh_id: str
    mesh: str
    rank: str


@dataclass(frozen=True)
class Table:
    """A table. `sent` are the columns that its source sends, in that order."""

    name: str
    doc: str
    source: Source
    place: Place | None
    sent: tuple[Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, those of the query's process first."""
        return (*ADDED, *self.sent)

    def index(self, column: str) -> int:
        """The index of a sent column. KeyError if there is none of that name."""
        return _INDEXES[self.name][column]


ADDED = (
    Column("session", "VARCHAR", "the name of the session, as `monarch ps` shows it"),
    Column("host", "VARCHAR", "the host: its name, or the site of a worker"),
)

_MESH = (
    Column("mesh_id", "UBIGINT", "the uid of the proc mesh"),
    Column("mesh", "VARCHAR", "the name of the proc mesh; `client` for the client"),
    Column("rank", "BIGINT", "the rank in the proc mesh; 0 for the client"),
)
_PLACE = Place("mesh_id", "mesh", "rank")

HOSTS = Table(
    "hosts", "The hosts, each with its agent.", Source.AGENT, None,
    (
        Column("agent_pid", "BIGINT", "the pid of the host agent"),
        Column("cores", "BIGINT", "the number of usable processors"),
        Column("meshes", "BIGINT", "the number of proc meshes with ranks there"),
        Column("procs", "BIGINT", "the number of ranks there"),
        Column("log_lines", "BIGINT", "the number of lines in `log_lines`"),
        Column("log_lines_dropped", "BIGINT", "the number of older lines that were dropped"),
    ),
)  # fmt: skip

PROCS = Table(
    "procs", "The ranks of all proc meshes, as `monarch ps` shows them.", Source.AGENT, _PLACE,
    (
        *_MESH,
        Column("point_json", "VARCHAR", "the coordinates of the rank, a JSON object"),
        Column("pid", "BIGINT", "the pid; NULL before the process exists"),
        Column("state", "VARCHAR", "starting, idle, busy, paused, failed or stopped"),
        Column("since_s", "DOUBLE", "seconds in this state"),
        Column("actor", "VARCHAR", "the class of the actor that runs an endpoint; NULL if none"),
        Column("endpoint", "VARCHAR", "the endpoint that runs; NULL if none"),
        Column("messages", "BIGINT", "the number of messages handled"),
        Column("errors", "BIGINT", "the number of those that failed"),
        Column("busy_s", "DOUBLE", "seconds in which an endpoint ran"),
        Column("rss_bytes", "BIGINT", "resident memory; NULL if not known"),
        Column("restarts", "BIGINT", "the number of restarts of the rank"),
        Column("failure", "VARCHAR", "why it failed; NULL if it has not"),
        Column("function", "VARCHAR", "the function that a paused rank is in; otherwise NULL"),
        Column("file", "VARCHAR", "the file that a paused rank is in; otherwise NULL"),
        Column("line", "BIGINT", "the line that a paused rank is at; otherwise NULL"),
    ),
)  # fmt: skip

MESHES = Table(
    "meshes", "Proc meshes and the actor meshes on them.", Source.AGENT | Source.PROCESSES, None,
    (
        Column("id", "UBIGINT", "the uid of the mesh"),
        Column("timestamp_us", "BIGINT", "when it was spawned; NULL for actor meshes"),
        Column("class", "VARCHAR", "`Proc`, or `Python<Class>` for actors"),
        Column("given_name", "VARCHAR", "the name given at spawn"),
        Column("full_name", "VARCHAR", "the name and the uid"),
        Column("shape_json", "VARCHAR", "labels and sizes of its dims, a JSON object"),
        Column("parent_mesh_id", "UBIGINT", "the proc mesh of an actor mesh; otherwise NULL"),
    ),
)  # fmt: skip

ACTORS = Table(
    "actors", "The actors of all ranks and of the client, each a row.", Source.PROCESSES,
    Place("proc_mesh_id", "proc_mesh", "proc_rank"),
    (
        Column("id", "UBIGINT", "a number for this actor"),
        Column("mesh_id", "UBIGINT", "the uid of its actor mesh, as in `meshes`"),
        Column("rank", "BIGINT", "its rank in the actor mesh"),
        Column("full_name", "VARCHAR", "the node, the name and the uid"),
        Column("display_name", "VARCHAR", "the rank and the name, for people"),
        Column("proc_mesh_id", "UBIGINT", "the uid of the proc mesh"),
        Column("proc_mesh", "VARCHAR", "the name of the proc mesh; `client` for the client"),
        Column("proc_rank", "BIGINT", "the rank in the proc mesh; 0 for the client"),
        Column("pid", "BIGINT", "the pid of its process"),
        Column("name", "VARCHAR", "the name given at spawn"),
        Column("class", "VARCHAR", "its class, with the module"),
        Column("status", "VARCHAR", "idle, processing, failed or stopped"),
        Column("running", "VARCHAR", "the endpoints that run, oldest first; NULL if none"),
        Column("queued", "BIGINT", "the number of calls that wait for it"),
    ),
)  # fmt: skip

MESSAGES = Table(
    "messages", "Messages that an actor has received and not finished.", Source.PROCESSES, _PLACE,
    (
        Column("id", "UBIGINT", "a number for this message at this rank"),
        Column("timestamp_us", "BIGINT", "when a queued one arrived; NULL for an active one"),
        Column("to_actor_id", "UBIGINT", "the `id` in `actors`"),
        Column("endpoint", "VARCHAR", "the endpoint that it is for"),
        Column("status", "VARCHAR", "queued or active"),
        *_MESH,
        Column("actor", "VARCHAR", "the name of the actor"),
        Column("sender", "VARCHAR", "the node that gets the answer, as `caller` in `calls`"),
        Column("call", "BIGINT", "the number of the call, as in `calls`; NULL if nothing waits"),
    ),
)  # fmt: skip

CALLS = Table(
    "calls", "Calls in flight at their callers: a row for each rank that has not answered.",
    Source.PROCESSES, Place("caller_mesh_id", "caller_mesh", "caller_rank"),
    (
        Column("caller", "VARCHAR", "the node that called"),
        Column("caller_mesh_id", "UBIGINT", "the uid of its proc mesh"),
        Column("caller_mesh", "VARCHAR", "the name of its proc mesh; `client` for the client"),
        Column("caller_rank", "BIGINT", "its rank there; 0 for the client"),
        Column("call", "BIGINT", "the number of the call; it grows from call to call"),
        Column("timestamp_us", "BIGINT", "when the call was made; NULL if that was not counted"),
        Column("mesh_id", "UBIGINT", "the uid of the proc mesh that was called"),
        Column("mesh", "VARCHAR", "the name of that proc mesh"),
        Column("rank", "BIGINT", "a rank of it that has not answered"),
        Column("actor", "VARCHAR", "the name of the actor that was called"),
        Column("class", "VARCHAR", "its class"),
        Column("endpoint", "VARCHAR", "the endpoint"),
        Column("ranks", "BIGINT", "the number of ranks that were called"),
        Column("awaited", "BOOLEAN", "whether a thread or task waits for the answer now"),
    ),
)  # fmt: skip

ENDPOINTS = Table(
    "endpoints", "Counts of endpoints in each process, as `monarch.observe.metrics` sums them.",
    Source.PROCESSES, _PLACE,
    (
        *_MESH,
        Column("side", "VARCHAR", "`callee`, or `caller`"),
        Column("adverb", "VARCHAR", "how the caller called; NULL for the callee"),
        Column("target_mesh", "VARCHAR", "the proc mesh of the actor"),
        Column("actor", "VARCHAR", "the name of the actor"),
        Column("class", "VARCHAR", "its class"),
        Column("endpoint", "VARCHAR", "the endpoint"),
        Column("calls", "BIGINT", "the number of calls begun"),
        Column("errors", "BIGINT", "the number of failed calls"),
        Column("in_flight", "BIGINT", "the number of calls that have not ended"),
        Column("bytes_in", "BIGINT", "bytes of pickled arguments (callee) or answers (caller)"),
        Column("bytes_out", "BIGINT", "bytes of pickled answers (callee) or arguments (caller)"),
        Column("timed", "BIGINT", "the number of calls that have ended and were timed"),
        Column("total_s", "DOUBLE", "seconds of those calls"),
        Column("max_s", "DOUBLE", "the longest of them"),
        Column("waited_s", "DOUBLE", "seconds that calls waited in the queue of the callee"),
    ),
)  # fmt: skip

SPANS = Table(
    "span_counts", "Counts of the spans of programs (`span`, `traced`) in each process.",
    Source.PROCESSES, _PLACE,
    (
        *_MESH,
        Column("actor", "VARCHAR", "the name of the actor; NULL outside actors"),
        Column("class", "VARCHAR", "its class; NULL outside actors"),
        Column("endpoint", "VARCHAR", "the endpoint that ran; NULL outside endpoints"),
        Column("name", "VARCHAR", "the name of the span"),
        Column("parent", "VARCHAR", "the enclosing span, or else the endpoint; NULL without"),
        Column("count", "BIGINT", "the number of times it began"),
        Column("errors", "BIGINT", "the number of times an exception left it"),
        Column("running", "BIGINT", "the number of times it has not ended"),
        Column("total_s", "DOUBLE", "seconds of all ended runs"),
        Column("max_s", "DOUBLE", "the longest of them"),
    ),
)  # fmt: skip

_METRIC = (
    Column("name", "VARCHAR", "the name of the instrument"),
    Column("timestamp_us", "BIGINT", "when the process answered"),
    Column("scope_name", "VARCHAR", "`monarch`, the name of the meter"),
    Column("unit", "VARCHAR", "as created"),
    Column("temporality", "VARCHAR", "`cumulative`: values since the first one"),
)
_LABELS = (
    Column("attributes_json", "VARCHAR", "attributes as texts, a JSON object"),
    Column("resource_attributes_json", "VARCHAR", "the mesh, rank, actor and class, a JSON object"),
)

METRIC_SUMS = Table(
    "metric_sums", "Counters of programs (`get_meter`) in each process.", Source.PROCESSES, _PLACE,
    (
        *_METRIC,
        Column("is_monotonic", "BOOLEAN", "false for an up-down counter"),
        *_LABELS,
        Column("sum_f64", "DOUBLE", "the sum of the finite values"),
        *_MESH,
        Column("actor", "VARCHAR", "the name of the actor; NULL outside actors"),
    ),
)  # fmt: skip

METRIC_HISTOGRAMS = Table(
    "metric_histograms", "Histograms of programs (`get_meter`) in each process.",
    Source.PROCESSES, _PLACE,
    (
        *_METRIC,
        *_LABELS,
        Column("count", "UBIGINT", "the number of finite values"),
        Column("sum_f64", "DOUBLE", "their sum"),
        Column("min_f64", "DOUBLE", "the smallest; NULL without values"),
        Column("max_f64", "DOUBLE", "the largest; NULL without values"),
        Column("bounds_json", "VARCHAR", "upper bounds of buckets that have values, a JSON array"),
        Column("bucket_counts_json", "VARCHAR", "the number of values in each, a JSON array"),
        *_MESH,
        Column("actor", "VARCHAR", "the name of the actor; NULL outside actors"),
    ),
)  # fmt: skip

LOG_LINES = Table(
    "log_lines", "The last lines that ranks have written, a bounded number.", Source.AGENT, _PLACE,
    (
        Column("number", "BIGINT", "counts the lines of the host"),
        Column("timestamp_us", "BIGINT", "when the host agent read it"),
        *_MESH,
        Column("stream", "VARCHAR", "stdout or stderr"),
        Column("text", "VARCHAR", "the line"),
    ),
)  # fmt: skip

FRAMES = Table(
    "frames", "The stacks of ranks, read by py-spy while the query runs.", Source.STACKS, _PLACE,
    (
        *_MESH,
        Column("activity", "VARCHAR", "the position in words, such as `in Trainer.step` or `idle`"),
        Column("thread", "VARCHAR", "the thread, `MainThread` for the main one; NULL if not read"),
        Column("depth", "BIGINT", "counts the frames of a thread from 0, the outermost"),
        Column("function", "VARCHAR", "the function"),
        Column("file", "VARCHAR", "the file"),
        Column("line", "BIGINT", "the line"),
        Column("waits", "BOOLEAN", "whether the thread waits for the answer of an actor"),
    ),
)  # fmt: skip

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        HOSTS, PROCS, MESHES, ACTORS, CALLS, MESSAGES, ENDPOINTS, SPANS, METRIC_SUMS,
        METRIC_HISTOGRAMS, LOG_LINES, FRAMES,
    )
}  # fmt: skip

_INDEXES = {
    name: {column.name: index for index, column in enumerate(table.sent)}
    for name, table in TABLES.items()
}


def column_names(columns: Sequence[Column]) -> list[str]:
    """The names of these columns."""
    return [column.name for column in columns]
