"""The OpenAPI 3.1 document of the admin API, and the shapes of its answers. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from monarch._src.admin.state import cursors
from monarch._src.admin.state.case_file import CaseFile
from monarch._src.admin.state.nodes import Missing, NodePayload
from monarch._src.admin.state.openmetrics import CONTENT_TYPE
from monarch._src.observe.flame_graph.state.samples import MOST_RATE, MOST_SECONDS
from monarch._src.wire.messages import StackGroup

Schema: TypeAlias = "dict[str, Any]"
TEMPLATE = "#/components/schemas/{name}"
_NAME = r"[A-Za-z0-9_.\-]{1,100}"
REFERENCE = rf"^(root|host:{_NAME}|(proc|actor):{_NAME}(:[0-9a-f]+){{2,3}})$"
LONGEST_SQL = 65536
SVG = "image/svg+xml"
LONGEST_TIMEOUT_S = 60.0


class NodeAnswer(NodePayload):
    """A node of one snapshot. `children` is a page; `next_cursor` is that of the next page."""

    snapshot: int = 0
    next_cursor: str | None = None
    missing: tuple[Missing, ...] = ()


class NodeList(msgspec.Struct):
    """A page of nodes of one snapshot."""

    snapshot: int
    nodes: list[NodePayload]
    next_cursor: str | None
    missing: tuple[Missing, ...] = ()


class AdminInfo(msgspec.Struct):
    """This server. `role` is the role of the client that asks."""

    host: str
    url: str
    pid: int
    version: str
    role: str
    sessions: list[str]


class QueryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A query: one SELECT in DuckDB's dialect."""

    sql: str
    timeout_s: float | None = None


class Dropped(msgspec.Struct):
    """Rows of the history that made room for newer ones.

    `complete_since_us`: the time from which on none is dropped, in microseconds since 1970; 0: not
    known.
    """

    table: str
    where: str
    count: int
    complete_since_us: int


class QueryAnswer(msgspec.Struct):
    """The rows of a query; partial if `missing` has entries.

    `dropped`: rows that the query may have asked for and that the history has dropped. `not_kept`:
    tables of the history that have no rows because no process keeps history.
    """

    rows: list[dict[str, Any]]
    columns: list[str]
    types: list[str]
    missing: tuple[Missing, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    not_kept: tuple[str, ...] = ()


class Frame(msgspec.Struct):
    """A line of a program."""

    name: str
    filename: str
    line: int


class Thread(msgspec.Struct):
    """The stack of a thread, the outermost frame first."""

    name: str
    waits: bool
    frames: list[Frame]


def threads_of(group: StackGroup) -> list[Thread]:
    """The threads that the ranks of a group share."""
    return [
        Thread(
            one.name or "MainThread", one.waits,
            [Frame(f.name, f.filename, f.line) for f in one.frames],
        )
        for one in group.threads
    ]  # fmt: skip


class StacksAnswer(msgspec.Struct):
    """The stacks of one proc, read by py-spy from outside. `activity` is the position in words.

    `threads` is empty for a proc that reports itself idle, unless `idle` asks for it.
    """

    proc: str
    activity: str
    threads: list[Thread]


class DumpAnswer(msgspec.Struct):
    """A dump of stacks that the server has stored: its `dump_id` in the tables of py-spy."""

    dump_id: str


class FlameRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How to sample the stacks of a proc. The fields are Monarch's.

    `threads`: all threads of the user's code. `native`: with functions of C and C++.
    `nonblocking`: without pausing the process.
    """

    duration_s: Annotated[int, msgspec.Meta(ge=1, le=MOST_SECONDS)] = 5
    rate_hz: Annotated[int, msgspec.Meta(ge=1, le=MOST_RATE)] = 100
    native: bool = False
    threads: bool = False
    nonblocking: bool = False


class ConfigEntry(msgspec.Struct):
    """A setting of a process. `source`: default, environment, runtime or derived."""

    name: str
    value: str
    source: str


class ConfigAnswer(msgspec.Struct):
    """The settings of one proc."""

    proc: str
    settings: list[ConfigEntry]


class ActionAnswer(msgspec.Struct):
    """The report of an action, a line each."""

    done: list[str]


class ErrorBody(msgspec.Struct):
    """An error: a code for programs, a message for people."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct):
    """The form of every error."""

    error: ErrorBody


STRUCTS: tuple[type[msgspec.Struct], ...] = (
    NodeAnswer, NodeList, AdminInfo, QueryRequest, QueryAnswer, StacksAnswer, DumpAnswer,
    FlameRequest, ConfigAnswer,
    ActionAnswer, ErrorAnswer, CaseFile,
)  # fmt: skip

CODES = {
    400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found",
    405: "method_not_allowed", 409: "conflict", 413: "too_large", 415: "bad_request",
    500: "internal_error", 503: "service_unavailable", 504: "gateway_timeout",
}  # fmt: skip


def error_answer(status: int, message: str) -> ErrorAnswer:
    """The body of an error with that status."""
    return ErrorAnswer(ErrorBody(CODES.get(status, "internal_error"), message))


class Operation(NamedTuple):
    """One operation, for the document. `answer` is a struct, or a media type of text."""

    method: str
    path: str
    name: str
    summary: str
    answer: type[msgspec.Struct] | str
    errors: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    body: type[msgspec.Struct] | None = None


_STATE = (400, 401, 404, 504)
_ACTION = (400, 401, 403, 404, 409, 504)
OPERATIONS = (
    Operation("get", "/v1/root", "root", "The root node", NodeAnswer, (400, 401),
              ("limit", "cursor")),
    Operation("get", "/v1/nodes", "nodes", "All nodes, or those of one kind", NodeList, (400, 401),
              ("kind", "limit", "cursor")),
    Operation("get", "/v1/tree", "tree", "All nodes as text", "text/plain", (401,)),
    Operation("get", "/v1/admin", "admin", "This server", AdminInfo, (401,)),
    Operation("get", "/v1/schema", "schema", "JSON Schema of a node", "application/schema+json",
              (401,)),
    Operation("get", "/v1/schema/admin", "schema_admin", "JSON Schema of /v1/admin",
              "application/schema+json", (401,)),
    Operation("get", "/v1/schema/error", "schema_error", "JSON Schema of errors",
              "application/schema+json", (401,)),
    Operation("get", "/v1/openapi.json", "openapi", "This document", "application/json", (401,)),
    Operation("get", "/v1/explain", "explain", "The case file of a fault or hang", CaseFile,
              (400, 401), ("stacks",)),
    Operation("get", "/v1/pyspy/{proc}", "pyspy", "The stacks of a proc", StacksAnswer,
              (*_STATE, 503), ("proc", "full", "idle")),
    Operation("get", "/v1/config/{proc}", "config", "The settings of a proc", ConfigAnswer,
              _STATE, ("proc",)),
    Operation("get", "/v1/{reference}", "node", "A node", NodeAnswer, _STATE,
              ("reference", "limit", "cursor")),
    Operation("post", "/v1/query", "query", "Run SQL over the live state", QueryAnswer,
              (400, 401, 413, 503, 504), body=QueryRequest),
    Operation("post", "/v1/pyspy_profile_svg/{proc}", "flame_graph", "A flame graph of a proc",
              SVG, (*_STATE, 413, 503), ("proc",), FlameRequest),
    Operation("post", "/v1/pyspy_dump/{proc}", "pyspy_dump",
              "Read the stacks of a proc, and store them for queries", DumpAnswer,
              (*_STATE, 503), ("proc",)),
    Operation("post", "/v1/stop/{host}", "stop", "End the session of a host; owners only",
              ActionAnswer, _ACTION, ("host",)),
    Operation("post", "/v1/kill/{proc}", "kill", "Kill the process of a proc; owners only",
              ActionAnswer, _ACTION, ("proc",)),
    Operation("get", "/SKILL.md", "skill", "A guide for AI agents that look into programs",
              "text/markdown", (401,)),
    Operation("get", "/metrics", "metrics", "Figures in the OpenMetrics format", CONTENT_TYPE,
              (401,)),
)  # fmt: skip
"""The operations. `/v1/{reference}` comes after all paths that it would match."""


def _reference(name: str, kinds: str) -> Schema:
    return {
        "name": name, "in": "path", "required": True, "description": f"a reference: {kinds}",
        "schema": {"type": "string", "pattern": REFERENCE, "maxLength": 200},
    }  # fmt: skip


def _query(name: str, schema: Schema, text: str) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


_FLAG: Schema = {"type": "string", "enum": ["0", "1"]}
PARAMETERS: Mapping[str, Schema] = {
    "reference": _reference("reference", "root, or that of a host, proc or actor"),
    "proc": _reference("proc", "that of a proc"),
    "host": _reference("host", "that of a host"),
    "limit": _query(
        "limit", {"type": "integer", "minimum": 1, "maximum": cursors.MOST},
        f"the most items of a page (default {cursors.USUAL})",
    ),
    "cursor": _query(
        "cursor", {"type": "string", "maxLength": cursors.LONGEST}, "the next page of a list"
    ),
    "kind": _query("kind", {"type": "string", "enum": ["host", "proc", "actor"]}, "one kind only"),
    "full": _query("full", _FLAG, "1: all threads, with the frames of the runtime"),
    "idle": _query("idle", _FLAG, "1: also read a proc that reports itself idle"),
    "stacks": _query("stacks", _FLAG, "0: leave stacks out, which take py-spy"),
}  # fmt: skip


def schema_of(struct: type[msgspec.Struct]) -> Schema:
    """The JSON Schema of one answer, by itself."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(struct),
    }


def document(version: str) -> Schema:
    """The whole OpenAPI document."""
    references, components = msgspec.json.schema_components(STRUCTS, ref_template=TEMPLATE)
    by_struct = dict(zip(STRUCTS, references, strict=True))
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, by_struct)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Monarch admin API",
            "version": version,
            "description": "The live state of sessions of Monarch for Jupyter.",
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(operation: Operation, by_struct: Mapping[type[msgspec.Struct], Schema]) -> Schema:
    if isinstance(operation.answer, str):
        media = operation.answer
        schema: Schema = {"type": "string"} if "json" not in media else {"type": "object"}
    else:
        media, schema = "application/json", by_struct[operation.answer]
    errors = {
        str(status): {
            "description": CODES[status],
            "content": {"application/json": {"schema": by_struct[ErrorAnswer]}},
        }
        for status in sorted({*operation.errors, 500})
    }
    found: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [PARAMETERS[name] for name in operation.parameters],
        "responses": {
            "200": {"description": operation.summary, "content": {media: {"schema": schema}}},
            **errors,
        },
    }
    if operation.body is not None:
        content = {"application/json": {"schema": by_struct[operation.body]}}
        found["requestBody"] = {"required": True, "content": content}
    return found
