"""Tables that the engine makes of others: snapshots of the tree of processes, and stacks. No I/O.

They have the names and columns of Monarch's. Monarch takes a snapshot every 30 s; here each query
takes its own, so `snapshot_id` has one value in an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monarch._src.telemetry.sql.state.columns import Column


@dataclass(frozen=True)
class View:
    """A table made by a query over `sources`."""

    name: str
    doc: str
    sources: tuple[str, ...]
    columns: tuple[Column, ...]
    sql: str


_SNAPSHOT = Column("snapshot_id", "VARCHAR", "the snapshot")
_NODE = Column("node_id", "VARCHAR", "the node: `root`, or the path of host, proc and actor")
_NOW = "epoch_us(now())"
_ID = f"printf('%x', {_NOW})"
_HOST = "session || '/' || host"
# With uids, since two meshes may have one name.
_PROC = "session || '/' || host || '/' || mesh || '-' || rank || '@' || to_hex(mesh_id)"
_ITS_PROC = (
    "session || '/' || host || '/' || proc_mesh || '-' || proc_rank || '@' || to_hex(proc_mesh_id)"
)
_ACTOR = f"{_ITS_PROC} || '/' || name || '-' || rank || '@' || to_hex(mesh_id)"
_CLIENTS = (
    "(SELECT DISTINCT session, host, proc_mesh AS mesh, proc_mesh_id AS mesh_id, "
    "proc_rank AS rank FROM actors WHERE proc_mesh = 'client')"
)
_ACTOR_NODES = f"(SELECT session, host, id, {_ACTOR} AS node FROM actors)"
_RUNNING = (
    "(SELECT session, host, to_actor_id AS id, endpoint, count(*) AS n, "
    "min(timestamp_us + (waited_s * 1e6)::BIGINT) AS since_us FROM messages "
    "WHERE status = 'active' GROUP BY ALL)"
)


def _empty(columns: tuple[Column, ...]) -> str:
    """A query with these columns and no row."""
    return f"SELECT {', '.join(f'NULL::{column.type}' for column in columns)} WHERE false"


def _frame_columns(dump: str) -> str:
    """The columns of a frame after its dump; `dump`: an expression that is the same in a dump."""
    return (
        f"dense_rank() OVER (PARTITION BY {dump} ORDER BY thread), max(depth) "
        f"OVER (PARTITION BY {dump}, thread) - depth, function, file, NULL::VARCHAR, "
        "string_split(file, '/')[-1], line, depth = 0"
    )


_ERRORS = (
    _SNAPSHOT, _NODE,
    Column("error_code", "VARCHAR", "the kind of error"),
    Column("error_message", "VARCHAR", "the error"),
)  # fmt: skip
_ORDERINGS = (
    _SNAPSHOT, _NODE,
    Column("enabled", "BOOLEAN", "whether the actor has a buffer for messages out of order"),
    Column("snapshot_complete", "BOOLEAN", "whether all senders are in the snapshot"),
    Column("skipped_session_count", "BIGINT", "the number of senders that are not"),
    Column("known_session_count", "BIGINT", "the number of senders"),
    Column("returned_buffered_session_count", "BIGINT", "of those, with messages that wait"),
    Column("returned_buffered_message_count", "BIGINT", "the number of messages that wait"),
    Column("returned_max_buffered_count", "BIGINT", "the most messages that wait of a sender"),
)  # fmt: skip
_ORDERING_SESSIONS = (
    _SNAPSHOT, _NODE,
    Column("session_id", "VARCHAR", "the sequence of messages of a sender"),
    Column("sender", "VARCHAR", "the sender"),
    Column("last_released_seq", "BIGINT", "the last message that the actor got"),
    Column("expected_next_seq", "BIGINT", "the message that it waits for"),
    Column("buffered_count", "BIGINT", "the number of messages that wait"),
    Column("oldest_buffered_seq", "BIGINT", "the first of them"),
    Column("newest_buffered_seq", "BIGINT", "the last of them"),
)  # fmt: skip
_LOCALS = (
    Column("dump_id", "VARCHAR", "as in `pyspy_dumps`"),
    Column("thread_id", "UBIGINT", "as in `pyspy_stack_traces`"),
    Column("frame_depth", "BIGINT", "as in `pyspy_frames`"),
    Column("name", "VARCHAR", "the variable"),
    Column("addr", "UBIGINT", "its address"),
    Column("arg", "BOOLEAN", "whether it is an argument"),
    Column("repr", "VARCHAR", "its value as text"),
)

_VIEWS = (
    View(
        "snapshots", "The snapshot that this query takes.", (),
        (_SNAPSHOT, Column("snapshot_ts", "BIGINT", "when it was taken, in microseconds")),
        f"SELECT {_ID}, {_NOW}",
    ),
    View(
        "nodes", "The tree of hosts, procs and actors: one row each.", ("hosts", "procs", "actors"),
        (
            _SNAPSHOT, _NODE,
            Column("node_kind", "VARCHAR", "root, host, proc or actor"),
            Column("as_of", "BIGINT", "when it was seen, in microseconds"),
        ),
        f"SELECT {_ID}, node, kind, {_NOW} FROM (SELECT 'root' AS node, 'root' AS kind "
        f"UNION ALL SELECT {_HOST}, 'host' FROM hosts UNION ALL SELECT {_PROC}, 'proc' FROM procs "
        f"UNION ALL SELECT {_PROC}, 'proc' FROM {_CLIENTS} "
        f"UNION ALL SELECT {_ACTOR}, 'actor' FROM actors)",
    ),
    View(
        "children", "The edges of that tree.", ("hosts", "procs", "actors"),
        (
            _SNAPSHOT,
            Column("parent_id", "VARCHAR", "a `node_id`"),
            Column("child_id", "VARCHAR", "a `node_id`"),
            Column("child_sort_key", "BIGINT", "the order among the children of a parent"),
            Column("is_system", "BOOLEAN", "always false: the runtime has no actors of its own"),
            Column("is_stopped", "BOOLEAN", "whether it has stopped or failed"),
        ),
        f"SELECT {_ID}, parent, child, row_number() OVER (PARTITION BY parent ORDER BY child) - 1, "
        f"false, stopped FROM (SELECT 'root' AS parent, {_HOST} AS child, false AS stopped "
        f"FROM hosts UNION ALL SELECT {_HOST}, {_PROC}, state IN ('stopped', 'failed') FROM procs "
        f"UNION ALL SELECT {_HOST}, {_PROC}, false FROM {_CLIENTS} "
        f"UNION ALL SELECT {_ITS_PROC}, {_ACTOR}, status IN ('stopped', 'failed') FROM actors)",
    ),
    View(
        "root_nodes", "The root of that tree.", ("hosts",),
        (
            _SNAPSHOT, _NODE,
            Column("num_hosts", "BIGINT", "the number of hosts"),
            Column("started_at", "BIGINT", "always NULL: sessions have no common start"),
            Column("started_by", "VARCHAR", "the sessions"),
        ),
        f"SELECT {_ID}, 'root', count(*), NULL::BIGINT, string_agg(DISTINCT session, ', ') "
        "FROM hosts",
    ),
    View(
        "host_nodes", "The hosts of that tree.", ("hosts",),
        (
            _SNAPSHOT, _NODE,
            Column("addr", "VARCHAR", "the host: its name, or the site of a worker"),
            Column("host_num_procs", "BIGINT", "the number of ranks there"),
        ),
        f"SELECT {_ID}, {_HOST}, host, procs FROM hosts",
    ),
    View(
        "proc_nodes", "The ranks of that tree.", ("procs", "actors"),
        (
            _SNAPSHOT, _NODE,
            Column("proc_name", "VARCHAR", "the mesh and the rank"),
            Column("num_actors", "BIGINT", "the number of actors there that live"),
            Column("stopped_retention_cap", "BIGINT", "always NULL"),
            Column("is_poisoned", "BOOLEAN", "whether the rank has failed"),
            Column("failed_actor_count", "BIGINT", "the number of actors there that have failed"),
        ),
        f"SELECT {_ID}, {_PROC}, mesh || '[' || rank || ']', coalesce(n, 0), NULL::BIGINT, "
        "state = 'failed', coalesce(failed, 0) FROM procs LEFT JOIN (SELECT session, host, "
        "proc_mesh_id AS mesh_id, proc_rank AS rank, count(*) FILTER (ended_us IS NULL) AS n, "
        "count(*) FILTER (status = 'failed') AS failed FROM actors GROUP BY ALL) "
        "USING (session, host, mesh_id, rank)",
    ),
    View(
        "actor_nodes", "The actors of that tree.", ("actors", "endpoints", "messages"),
        (
            _SNAPSHOT, _NODE,
            Column("actor_status", "VARCHAR", "its state, or the endpoint that runs and its time"),
            Column("actor_type", "VARCHAR", "its class"),
            Column("instance_id", "VARCHAR", "its full name"),
            Column("messages_processed", "BIGINT", "the number of calls that its name has handled"),
            Column("created_at", "BIGINT", "when it was made, in microseconds"),
            Column("last_message_handler", "VARCHAR", "the endpoint that runs; NULL if none"),
            Column("total_processing_time_us", "BIGINT", "the time of those calls"),
            Column("queue_depth", "BIGINT", "the number of calls that wait"),
            Column("is_system", "BOOLEAN", "always false"),
        ),
        f"SELECT {_ID}, {_ACTOR}, CASE WHEN running IS NULL THEN status ELSE running || "
        f"': processing for ' || (coalesce({_NOW} - active.since_us, 0) // 1000) || 'ms' END, "
        '"class", full_name, coalesce(calls, 0), timestamp_us, running, coalesce(total_us, 0), '
        "queued, false FROM actors LEFT JOIN (SELECT session, host, mesh_id AS proc_mesh_id, rank "
        'AS proc_rank, actor AS name, "class", sum(calls)::BIGINT AS calls, '
        "sum(total_s * 1e6)::BIGINT AS total_us FROM endpoints WHERE side = 'callee' GROUP BY ALL) "
        'USING (session, host, proc_mesh_id, proc_rank, name, "class") LEFT JOIN (SELECT session, '
        "host, to_actor_id AS id, min(timestamp_us + (waited_s * 1e6)::BIGINT) AS since_us "
        "FROM messages WHERE status = 'active' GROUP BY ALL) AS active USING (session, host, id)",
    ),
    View(
        "actor_failures", "The failures of actors, as far as they are remembered.",
        ("actor_status_events", "actors"),
        (
            _SNAPSHOT, _NODE,
            Column("failure_error_message", "VARCHAR", "the error"),
            Column("failure_root_cause_actor", "VARCHAR", "the actor that failed first: itself"),
            Column("failure_root_cause_name", "VARCHAR", "its name"),
            Column("failure_occurred_at", "BIGINT", "when it failed, in microseconds"),
            Column("failure_is_propagated", "BOOLEAN", "always false: each actor fails by itself"),
        ),
        f"SELECT {_ID}, coalesce(node, {_PROC} || '/' || actor || '@'), reason, "
        "actor_id::VARCHAR, actor, timestamp_us, false "
        "FROM (SELECT * REPLACE (actor_id AS id) FROM actor_status_events "
        f"WHERE new_status = 'Failed') LEFT JOIN {_ACTOR_NODES} USING (session, host, id)",
    ),
    View(
        "resolution_errors", "Always empty: the answer of a query lists its missing rows.", (),
        _ERRORS,
        _empty(_ERRORS),
    ),
    View(
        "active_handlers", "The endpoints that run.", ("messages", "actors"),
        (
            _SNAPSHOT, _NODE,
            Column("name", "VARCHAR", "the endpoint"),
            Column("active_count", "BIGINT", "the number of its calls that run"),
            Column("oldest_since", "BIGINT", "when the oldest began, in microseconds"),
        ),
        f"SELECT {_ID}, node, endpoint, n, since_us FROM {_RUNNING} "
        f"JOIN {_ACTOR_NODES} USING (session, host, id)",
    ),
    View(
        "actor_executions", "The number of endpoints that each actor runs.", ("actors", "messages"),
        (
            _SNAPSHOT, _NODE,
            Column("active_count", "BIGINT", "the number of its calls that run"),
            Column("complete", "BOOLEAN", "always true: all of them are counted"),
            Column("truncated", "BOOLEAN", "always false"),
        ),
        f"SELECT {_ID}, node, coalesce(sum(n), 0)::BIGINT, true, false FROM {_ACTOR_NODES} "
        f"LEFT JOIN {_RUNNING} USING (session, host, id) GROUP BY session, host, id, node",
    ),
    View(
        "actor_inbound_orderings",
        "Always empty: links keep the order of messages, so no actor has a buffer for them.", (),
        _ORDERINGS, _empty(_ORDERINGS),
    ),
    View(
        "ordering_sessions", "Always empty, as `actor_inbound_orderings`.", (),
        _ORDERING_SESSIONS, _empty(_ORDERING_SESSIONS),
    ),
    View(
        "pyspy_dumps", "The stacks of ranks, read while the query runs or stored before.",
        ("frames", "procs", "stored_frames"),
        (
            Column("dump_id", "VARCHAR", "the rank and the query"),
            Column("timestamp_us", "BIGINT", "when they were read"),
            Column("pid", "BIGINT", "the pid of the rank"),
            Column("binary", "VARCHAR", "always NULL"),
            Column("proc_ref", "VARCHAR", "the mesh and the rank"),
            Column("capture_mode", "VARCHAR", "`live`, or `stored`"),
            Column("warnings_json", "VARCHAR", "always an empty JSON array"),
        ),
        f"SELECT DISTINCT {_PROC} || '/' || {_ID}, {_NOW}, pid, NULL::VARCHAR, "
        "mesh || '[' || rank || ']', 'live', '[]' "
        "FROM frames JOIN procs USING (session, host, mesh_id, mesh, rank) "
        "WHERE frames.depth IS NOT NULL UNION ALL SELECT DISTINCT dump_id, timestamp_us, pid, "
        "NULL::VARCHAR, mesh || '[' || rank || ']', 'stored', '[]' FROM stored_frames",
    ),
    View(
        "pyspy_stack_traces", "The threads of those ranks.", ("frames", "procs", "stored_frames"),
        (
            Column("dump_id", "VARCHAR", "the rank and the query"),
            Column("pid", "BIGINT", "the pid of the rank"),
            Column("thread_id", "UBIGINT", "counts the threads of a rank"),
            Column("thread_name", "VARCHAR", "the name of the thread"),
            Column("os_thread_id", "UBIGINT", "always NULL"),
            Column("active", "BOOLEAN", "whether it does not wait for an actor"),
            Column("owns_gil", "BOOLEAN", "always NULL"),
        ),
        f"SELECT {_PROC} || '/' || {_ID}, pid, dense_rank() OVER (PARTITION BY {_PROC} "
        "ORDER BY thread), thread, NULL::UBIGINT, NOT bool_or(waits), NULL::BOOLEAN "
        "FROM frames JOIN procs USING (session, host, mesh_id, mesh, rank) "
        "WHERE frames.depth IS NOT NULL GROUP BY session, host, mesh, mesh_id, rank, pid, thread "
        "UNION ALL SELECT dump_id, pid, dense_rank() OVER (PARTITION BY dump_id ORDER BY thread), "
        "thread, NULL::UBIGINT, NOT bool_or(waits), NULL::BOOLEAN FROM stored_frames "
        "GROUP BY dump_id, pid, thread",
    ),
    View(
        "pyspy_frames", "The frames of those threads, the innermost first.",
        ("frames", "stored_frames"),
        (
            Column("dump_id", "VARCHAR", "the rank and the query"),
            Column("thread_id", "UBIGINT", "as in `pyspy_stack_traces`"),
            Column("frame_depth", "BIGINT", "counts from 0, the innermost"),
            Column("name", "VARCHAR", "the function"),
            Column("filename", "VARCHAR", "the file"),
            Column("module", "VARCHAR", "always NULL"),
            Column("short_filename", "VARCHAR", "the last part of the file's path"),
            Column("line", "BIGINT", "the line"),
            Column("is_entry", "BOOLEAN", "whether it is the outermost"),
        ),
        f"SELECT {_PROC} || '/' || {_ID}, "
        f"{_frame_columns(_PROC)} FROM frames WHERE depth IS NOT NULL "
        f"UNION ALL SELECT dump_id, {_frame_columns('dump_id')} FROM stored_frames",
    ),
    View(
        "pyspy_local_variables", "Always empty: py-spy reads no variables here.", (),
        _LOCALS, _empty(_LOCALS),
    ),
)  # fmt: skip

VIEWS: Mapping[str, View] = {view.name: view for view in _VIEWS}


def view_definition(view: View, now: str = _NOW) -> str:
    """The statement that makes a view. `now`: an SQL expression for the time of the rows, in
    microseconds since 1970."""
    names = ", ".join(f'"{column.name}"' for column in view.columns)
    cells = ", ".join(
        f'CAST("{column.name}" AS {column.type}) AS "{column.name}"' for column in view.columns
    )
    sql = view.sql.replace(_NOW, now)
    return f"CREATE VIEW {view.name} AS SELECT {cells} FROM ({sql}) AS found ({names})"
