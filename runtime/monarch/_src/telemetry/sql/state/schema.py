"""The tables that a query may read: their columns, types and sources. No I/O.

Names and types are those of Monarch's tables where a table has the same rows. `session` and `host`
are added by the process that runs the query, since an agent does not know under which names it is
found; every other column comes from the source of its table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch._src.telemetry.sql.state.columns import (
    ADDED,
    MESH,
    PLACE,
    Column,
    ProcessColumns,
    Source,
    Table,
    Type,
)
from monarch._src.telemetry.sql.state.history_tables import HISTORY_TABLES

__all__ = ["ADDED", "TABLES", "Column", "ProcessColumns", "Source", "Table", "Type", "column_names"]

HOSTS = Table(
    "hosts", "The hosts, each with its agent.", Source.AGENT, None,
    (
        Column("agent_pid", "BIGINT", "the pid of the host agent"),
        Column("timestamp_us", "BIGINT", "the clock of the host when its agent answered"),
        Column("cores", "BIGINT", "the number of usable processors"),
        Column("meshes", "BIGINT", "the number of proc meshes with ranks there"),
        Column("procs", "BIGINT", "the number of ranks there"),
        Column("log_lines", "BIGINT", "the number of lines in `log_lines`"),
        Column("log_lines_dropped", "BIGINT", "the number of older lines that were dropped"),
    ),
)  # fmt: skip

PROCS = Table(
    "procs", "The ranks of all proc meshes, as `monarch ps` shows them.", Source.AGENT, PLACE,
    (
        *MESH,
        Column("point_json", "VARCHAR", "the coordinates of the rank, a JSON object"),
        Column("pid", "BIGINT", "the pid; NULL before the process exists"),
        Column("state", "VARCHAR", "starting, idle, busy, paused, suspended, failed or stopped"),
        Column("since_s", "DOUBLE", "seconds in this state"),
        Column("actor", "VARCHAR", "the class of the actor that runs an endpoint; NULL if none"),
        Column("endpoint", "VARCHAR", "the endpoint that runs; NULL if none"),
        Column("messages", "BIGINT", "the number of messages handled"),
        Column("errors", "BIGINT", "the number of those that failed"),
        Column("busy_s", "DOUBLE", "seconds in which an endpoint ran"),
        Column("rss_bytes", "BIGINT", "resident memory; NULL if not known"),
        Column("cpu_s", "DOUBLE", "seconds of processor time of its process; NULL if not known"),
        Column("gpu_bytes", "BIGINT", "memory of its process on GPUs; NULL if it uses none"),
        Column("gpu_percent", "BIGINT", "per cent of a GPU that it keeps busy; NULL if none"),
        Column("restarts", "BIGINT", "the number of restarts of the rank"),
        Column("failure", "VARCHAR", "why it failed; NULL if it has not"),
        Column("function", "VARCHAR", "the function that a paused rank is in; otherwise NULL"),
        Column("file", "VARCHAR", "the file that a paused rank is in; otherwise NULL"),
        Column("line", "BIGINT", "the line that a paused rank is at; otherwise NULL"),
    ),
)  # fmt: skip

MESHES = Table(
    "meshes", "Host meshes, the proc meshes on them, and the actor meshes on those.",
    Source.AGENT | Source.PROCESSES, None,
    (
        Column("id", "UBIGINT", "the uid of the mesh"),
        Column("timestamp_us", "BIGINT", "when it was spawned; NULL for hosts, or if forgotten"),
        Column("class", "VARCHAR", "`Host`, `Proc`, or `Python<Class>` for actors"),
        Column("given_name", "VARCHAR", "its name; `hosts` or `procs` if none was given"),
        Column("full_name", "VARCHAR", "the name and the uid; of the client, its node"),
        Column("shape_json", "VARCHAR", "labels and sizes of its dims, a JSON object"),
        Column("parent_mesh_id", "UBIGINT", "the `id` of the mesh that it is on; NULL for hosts"),
        Column("parent_view_json", "VARCHAR", "its ranks of that mesh, a JSON object, if known"),
    ),
    key="full_name",  # the clients of two sessions have the same uid
)  # fmt: skip

ACTORS = Table(
    "actors", "The actors of all ranks and of the client, also ended ones, each a row.",
    Source.PROCESSES,
    ProcessColumns("proc_mesh_id", "proc_mesh", "proc_rank"),
    (
        Column("id", "UBIGINT", "a number for this actor"),
        Column("timestamp_us", "BIGINT", "when it was made; NULL if that is forgotten"),
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
        Column("ended_us", "BIGINT", "when it stopped or failed; NULL while it lives"),
    ),
)  # fmt: skip

ATTRIBUTES = Table(
    "attributes", "The attributes of live actors, as short texts; no code of theirs runs for it.",
    Source.PROCESSES, PLACE,
    (
        *MESH,
        Column("actor", "VARCHAR", "the name of the actor"),
        Column("class", "VARCHAR", "its class, with the module"),
        Column("name", "VARCHAR", "the name of the attribute"),
        Column("text", "VARCHAR", "its value; of arrays and tensors the kind and shape"),
    ),
)  # fmt: skip

CALLS = Table(
    "calls", "Calls in flight at their callers: a row for each rank that has not answered.",
    Source.PROCESSES, ProcessColumns("caller_mesh_id", "caller_mesh", "caller_rank"),
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
    Source.PROCESSES, PLACE,
    (
        *MESH,
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
    Source.PROCESSES, PLACE,
    (
        *MESH,
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

_INSTRUMENT = (
    Column("name", "VARCHAR", "the name of the instrument"),
    Column("timestamp_us", "BIGINT", "when the process answered"),
    Column("start_timestamp_us", "BIGINT", "when the process began to count"),
    Column("scope_name", "VARCHAR", "`monarch`, the name of the meter"),
    Column("unit", "VARCHAR", "as created"),
)
_METRIC = (
    *_INSTRUMENT,
    Column("temporality", "VARCHAR", "`cumulative`: values since the process began"),
)
_LABELS = (
    Column("attributes_json", "VARCHAR", "attributes as texts, a JSON object"),
    Column("resource_attributes_json", "VARCHAR", "the mesh, rank, actor and class, a JSON object"),
)

METRIC_SUMS = Table(
    "metric_sums", "Counters of programs (`get_meter`) and of endpoints, in each process.",
    Source.PROCESSES, PLACE,
    (
        *_METRIC,
        Column("is_monotonic", "BOOLEAN", "false for an up-down counter"),
        *_LABELS,
        Column("sum_f64", "DOUBLE", "the sum of the finite values; NULL for integers"),
        Column("sum_i64", "BIGINT", "always NULL"),
        Column("sum_u64", "UBIGINT", "the sum of one of Monarch's own counters"),
        *MESH,
        Column("actor", "VARCHAR", "the name of the actor; NULL outside actors"),
    ),
)  # fmt: skip

METRIC_GAUGES = Table(
    "metric_gauges", "Last values: gauges of programs (`get_meter`), and queues of actors.",
    Source.PROCESSES, PLACE,
    (
        *_INSTRUMENT,
        *_LABELS,
        Column("value_f64", "DOUBLE", "the last finite value; NULL for integers"),
        Column("value_i64", "BIGINT", "always NULL"),
        Column("value_u64", "UBIGINT", "the value of one of Monarch's own gauges"),
        *MESH,
        Column("actor", "VARCHAR", "the name of the actor; NULL outside actors"),
    ),
)  # fmt: skip

METRIC_HISTOGRAMS = Table(
    "metric_histograms", "Histograms of programs (`get_meter`) and of endpoints, in each process.",
    Source.PROCESSES, PLACE,
    (
        *_METRIC,
        *_LABELS,
        Column("count", "UBIGINT", "the number of finite values"),
        Column("sum_f64", "DOUBLE", "their sum"),
        Column("sum_i64", "BIGINT", "always NULL"),
        Column("sum_u64", "UBIGINT", "always NULL"),
        Column("min_f64", "DOUBLE", "the smallest; NULL without values, or if not known"),
        Column("min_i64", "BIGINT", "always NULL"),
        Column("min_u64", "UBIGINT", "always NULL"),
        Column("max_f64", "DOUBLE", "the largest; NULL without values"),
        Column("max_i64", "BIGINT", "always NULL"),
        Column("max_u64", "UBIGINT", "always NULL"),
        Column("bounds_json", "VARCHAR", "upper bounds of buckets that have values, a JSON array"),
        Column("bucket_counts_json", "VARCHAR", "the number of values in each, a JSON array"),
        *MESH,
        Column("actor", "VARCHAR", "the name of the actor; NULL outside actors"),
    ),
)  # fmt: skip

SETTINGS = Table(
    "settings", "The settings (`monarch.config`) in force in each process.", Source.PROCESSES,
    PLACE,
    (
        *MESH,
        Column("name", "VARCHAR", "the name of the setting"),
        Column("value", "VARCHAR", "its value, a JSON value"),
        Column("source", "VARCHAR", "default, environment, runtime or derived"),
    ),
)  # fmt: skip

LOG_LINES = Table(
    "log_lines", "The last lines that ranks have written, a bounded number.", Source.AGENT, PLACE,
    (
        Column("number", "BIGINT", "counts the lines of the host"),
        Column("timestamp_us", "BIGINT", "when the host agent read it"),
        *MESH,
        Column("stream", "VARCHAR", "stdout or stderr"),
        Column("text", "VARCHAR", "the line"),
    ),
)  # fmt: skip

FRAMES = Table(
    "frames", "The stacks of ranks, read by py-spy while the query runs.", Source.STACKS, PLACE,
    (
        *MESH,
        Column("activity", "VARCHAR", "the position in words, such as `in Trainer.step` or `idle`"),
        Column("thread", "VARCHAR", "the thread, `MainThread` for the main one; NULL if not read"),
        Column("depth", "BIGINT", "counts the frames of a thread from 0, the outermost"),
        Column("function", "VARCHAR", "the function"),
        Column("file", "VARCHAR", "the file"),
        Column("line", "BIGINT", "the line"),
        Column("waits", "BOOLEAN", "whether the thread waits for the answer of an actor"),
    ),
)  # fmt: skip

STORED_FRAMES = Table(
    "stored_frames",
    "The stacks that an admin server has stored; no rows in queries of other processes.",
    Source.STORED, PLACE,
    (
        Column("dump_id", "VARCHAR", "the dump, as `POST /v1/pyspy_dump` has answered"),
        Column("timestamp_us", "BIGINT", "when it was read"),
        Column("pid", "BIGINT", "the pid of the rank"),
        *MESH,
        Column("thread", "VARCHAR", "the thread, `MainThread` for the main one"),
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
        HOSTS, PROCS, MESHES, ACTORS, ATTRIBUTES, CALLS, ENDPOINTS, SPANS, METRIC_SUMS,
        METRIC_GAUGES, METRIC_HISTOGRAMS, SETTINGS, LOG_LINES, FRAMES, STORED_FRAMES,
        *HISTORY_TABLES,
    )
}  # fmt: skip


def column_names(columns: Sequence[Column]) -> list[str]:
    """The names of these columns."""
    return [column.name for column in columns]
