"""The tables that also have history, of processes that keep it (`telemetry.history`). No I/O.

Their names and first columns are Monarch's. Without history they have the rows of now.
"""

from __future__ import annotations

from monarch._src.telemetry.sql.state.columns import MESH, PLACE, Column, Source, Table

MESSAGES = Table(
    "messages", "Messages at the actors that receive them: unfinished ones, and the history.",
    Source.PROCESSES, PLACE,
    (
        Column("id", "UBIGINT", "a number for this message at this rank"),
        Column("timestamp_us", "BIGINT", "when it arrived"),
        Column("from_actor_id", "UBIGINT", "the `id` in `actors`, if its process keeps history"),
        Column("to_actor_id", "UBIGINT", "the `id` in `actors`"),
        Column("endpoint", "VARCHAR", "the endpoint that it is for"),
        Column("port_index", "UBIGINT", "always NULL: endpoints have names"),
        Column(
            "status", "VARCHAR",
            "queued, active, complete or failed; in a recording also lost, with its process",
        ),
        Column("waited_s", "DOUBLE", "seconds in the queue; NULL while queued"),
        Column("ran_s", "DOUBLE", "seconds that the endpoint ran; NULL unless complete or failed"),
        *MESH,
        Column("actor", "VARCHAR", "the name of the actor"),
        Column("sender", "VARCHAR", "the node that gets the answer, as `caller` in `calls`"),
        Column("call", "BIGINT", "the number of the call, as in `calls`; NULL if nothing waits"),
    ),
)  # fmt: skip

MESSAGE_STATUS_EVENTS = Table(
    "message_status_events", "The states of each row of `messages`, with their times.",
    Source.PROCESSES, PLACE,
    (
        Column("id", "UBIGINT", "a number for this event"),
        Column("timestamp_us", "BIGINT", "when the message got into that state"),
        Column("message_id", "UBIGINT", "the `id` in `messages`"),
        Column("status", "VARCHAR", "queued, active, complete or failed"),
        *MESH,
    ),
)  # fmt: skip

SENT_MESSAGES = Table(
    "sent_messages", "Calls at their callers, one row for all ranks: open ones, and the history.",
    Source.PROCESSES, PLACE,
    (
        Column("id", "UBIGINT", "a number for this call"),
        Column("timestamp_us", "BIGINT", "when the call was made"),
        Column("sender_actor_id", "UBIGINT", "the `id` in `actors` of the caller, if it is one"),
        Column("actor_mesh_id", "UBIGINT", "the uid of the actor mesh, as in `meshes`"),
        Column("view_json", "VARCHAR", "the called ranks of the proc mesh, a JSON object"),
        Column("shape_json", "VARCHAR", "their labels and sizes, a JSON object"),
        Column("call", "BIGINT", "the number of the call, as in `calls`; NULL if nothing waits"),
        Column("target_mesh_id", "UBIGINT", "the uid of the proc mesh that was called"),
        Column("actor", "VARCHAR", "the name of the actor that was called"),
        Column("endpoint", "VARCHAR", "the endpoint"),
        Column("ranks", "BIGINT", "the number of ranks that were called"),
        Column("ended_us", "BIGINT", "when the last rank answered; NULL while one owes an answer"),
        Column("failed", "BOOLEAN", "whether a rank failed"),
        *MESH,
    ),
)  # fmt: skip

ACTOR_STATUS_EVENTS = Table(
    "actor_status_events", "The lives of actors, of the last 1,024 events of each process.",
    Source.PROCESSES, PLACE,
    (
        Column("id", "UBIGINT", "a number for this event"),
        Column("timestamp_us", "BIGINT", "when the actor got into that state"),
        Column("actor_id", "UBIGINT", "the `id` in `actors`"),
        Column("new_status", "VARCHAR", "Created, Initializing, Idle, Stopped or Failed"),
        Column("reason", "VARCHAR", "why it ended; NULL for other states"),
        *MESH,
        Column("actor", "VARCHAR", "the name of the actor"),
        Column("class", "VARCHAR", "its class"),
    ),
)  # fmt: skip

SPANS = Table(
    "spans", "Runs of spans of programs (`span`, `traced`): the history.", Source.PROCESSES, PLACE,
    (
        Column("process_id", "VARCHAR", "the node of the process"),
        Column("id", "UBIGINT", "a number for this run"),
        Column("name", "VARCHAR", "the name of the span"),
        Column("target", "VARCHAR", "the class and name of the actor; empty outside actors"),
        Column("level", "VARCHAR", "always INFO"),
        Column("fields_json", "VARCHAR", "the endpoint that ran, a JSON object"),
        Column("timestamp_us", "BIGINT", "when it began"),
        Column("parent_id", "UBIGINT", "the `id` of the enclosing span; NULL without"),
        Column("thread_name", "VARCHAR", "the thread"),
        Column("file", "VARCHAR", "always NULL"),
        Column("line", "BIGINT", "always NULL"),
        Column("duration_us", "BIGINT", "its length; NULL while it runs"),
        Column("failed", "BOOLEAN", "whether an exception left it"),
        Column("actor", "VARCHAR", "the name of the actor; NULL outside actors"),
        Column("endpoint", "VARCHAR", "the endpoint that ran; NULL outside endpoints"),
        *MESH,
    ),
)  # fmt: skip

SPAN_EVENTS = Table(
    "span_events", "The begins and ends of the rows of `spans`.", Source.PROCESSES, PLACE,
    (
        Column("process_id", "VARCHAR", "the node of the process"),
        Column("id", "UBIGINT", "the `id` in `spans`"),
        Column("timestamp_us", "BIGINT", "when it happened"),
        Column("event_type", "VARCHAR", "enter, exit or close"),
        *MESH,
    ),
)  # fmt: skip

EVENTS = Table(
    "events", "Records of Python's `logging`: the history.", Source.PROCESSES, PLACE,
    (
        Column("name", "VARCHAR", "`event`, the file and the line"),
        Column("target", "VARCHAR", "the logger"),
        Column("level", "VARCHAR", "DEBUG, INFO, WARN or ERROR"),
        Column("fields_json", "VARCHAR", "the text as `message`, a JSON object"),
        Column("timestamp_us", "BIGINT", "when it was logged"),
        Column("parent_span", "UBIGINT", "the `id` in `spans` of the enclosing one; NULL without"),
        Column("thread_id", "VARCHAR", "the number of the thread"),
        Column("thread_name", "VARCHAR", "its name"),
        Column("module_path", "VARCHAR", "the module"),
        Column("file", "VARCHAR", "the file"),
        Column("line", "BIGINT", "the line"),
        Column("text", "VARCHAR", "the text"),
        Column("actor", "VARCHAR", "the name of the actor; NULL outside actors"),
        *MESH,
    ),
)  # fmt: skip

TORCH_EVENTS = Table(
    "torch_events", "Events of torch's profiler during a profile with `torch=True`: the history.",
    Source.PROCESSES, PLACE,
    (
        Column("timestamp_us", "BIGINT", "when it began"),
        Column("begin_ns", "BIGINT", "the same in nanoseconds since the epoch"),
        Column("duration_ns", "BIGINT", "its length in nanoseconds"),
        Column("name", "VARCHAR", "the operation, kernel or annotation"),
        Column("kind", "VARCHAR", "cpu_op, user_annotation, kernel, gpu_memcpy, ..."),
        Column("device", "VARCHAR", "`cpu`, or a device such as `cuda:0`"),
        Column("thread_name", "VARCHAR", "the thread, or the stream of a device"),
        *MESH,
    ),
)  # fmt: skip

RECORDINGS = Table(
    "recordings", "The history that each process keeps, and the number of dropped rows.",
    Source.PROCESSES, PLACE,
    (
        *MESH,
        Column("name", "VARCHAR", "the table that has these rows"),
        Column("retention_s", "DOUBLE", "how long rows are kept, in seconds"),
        Column("most", "BIGINT", "the maximal number of rows"),
        Column("kept", "BIGINT", "the number of rows now"),
        Column("bytes", "BIGINT", "the size of their texts"),
        Column("added", "BIGINT", "the number of rows since it was switched on"),
        Column("dropped", "BIGINT", "the number of rows that made room for others too early"),
    ),
)  # fmt: skip

HISTORY_TABLES = (
    MESSAGES, MESSAGE_STATUS_EVENTS, SENT_MESSAGES, ACTOR_STATUS_EVENTS, SPANS, SPAN_EVENTS, EVENTS,
    TORCH_EVENTS, RECORDINGS,
)  # fmt: skip
