"""The answers of the admin API: each function answers one operation, or refuses it.

Runs in: the admin server, on worker threads. No function here knows HTTP beyond a status. Signals
reach processes of this user on this machine only. A process is signalled through a descriptor that
was opened before the check that it belongs to the session, so a pid that was given to another
process meanwhile is safe.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

import msgspec

from monarch._src.admin.cluster_reader import (
    ClusterReader,
    rows_of,
    session_named,
    whole,
)
from monarch._src.admin.explain import case_from
from monarch._src.admin.state import cursors, openapi
from monarch._src.admin.state.case_file import CaseFile
from monarch._src.admin.state.nodes import Cluster, Missing, NodePayload
from monarch._src.admin.state.openmetrics import exposition
from monarch._src.admin.state.references import BadReferenceError, Reference, parse, parse_proc
from monarch._src.admin.state.stack_dumps import StackDumps
from monarch._src.errors import QueryError, QueryTimeoutError
from monarch._src.net.observer import Question, ask_agents
from monarch._src.observe.flame_graph.query import ANSWER_S as SAMPLES_S
from monarch._src.observe.flame_graph.query import FlameGraph
from monarch._src.session import reap
from monarch._src.session.directories import Session
from monarch._src.system import process_table
from monarch._src.telemetry.sql.collect import Collected
from monarch._src.telemetry.sql.query import run_query
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.telemetry.sql.state.schema import STORED_FRAMES
from monarch._src.wire.messages import (
    Condition,
    ReadStacks,
    Refused,
    SampleStacks,
    StacksRead,
    StacksSampled,
)

METRIC_TABLES = ("hosts", "procs", "endpoints", "span_counts", "metric_sums", "metric_histograms")
STACKS_S = 30.0
ANSWER_S = 2.0
STOP_S = 15.0
QUERY_S = 30.0
"""How long the engine may compute one query."""
MOST_ROWS = 100_000

A = TypeVar("A", StacksRead, StacksSampled)


class Refusal(Exception):
    """A request that cannot be answered, with a status of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


# --- nodes ----------------------------------------------------------------------------------------


def node(reader: ClusterReader, reference: str, query: Mapping[str, str]) -> openapi.NodeAnswer:
    """A node, with a page of its children."""
    wanted = str(_parsed(reference))
    cluster, offset, limit = _listed(reader, query, {"limit", "cursor"})
    found = cluster.nodes.get(wanted)
    if found is None:
        raise Refusal(404, f"there is no node {wanted} in snapshot {cluster.number}")
    if found.properties.Error is not None:
        raise Refusal(504, f"{wanted}: {found.properties.Error.message}")
    page = cursors.page_of(found.children, cluster.number, offset, limit)
    return openapi.NodeAnswer(
        found.identity, found.properties, list(page.items), found.parent, found.as_of,
        cluster.number, page.next_cursor, cluster.missing,
    )  # fmt: skip


def nodes(reader: ClusterReader, query: Mapping[str, str]) -> openapi.NodeList:
    """A page of all nodes, or of those of one kind."""
    kind = query.get("kind")
    if kind not in (None, "host", "proc", "actor"):
        raise Refusal(400, "kind must be host, proc or actor")
    cluster, offset, limit = _listed(reader, query, {"limit", "cursor", "kind"})
    every = [
        one
        for one in cluster.nodes.values()
        if kind is None or one.identity.partition(":")[0] == kind
    ]
    page = cursors.page_of(every, cluster.number, offset, limit)
    bounded = [_with_few_children(one) for one in page.items]
    return openapi.NodeList(cluster.number, bounded, page.next_cursor, cluster.missing)


def _with_few_children(one: NodePayload) -> NodePayload:
    """The node; its children are left out, since each names it as the parent."""
    return msgspec.structs.replace(one, children=[])


def _listed(
    reader: ClusterReader, query: Mapping[str, str], known: set[str]
) -> tuple[Cluster, int, int]:
    """The snapshot, offset and limit that a request for a list wants."""
    _check_names(query, known)
    try:
        limit = cursors.parse_limit(query.get("limit"))
        text = query.get("cursor")
        cursor = None if text is None else cursors.decode(text)
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    if cursor is None:
        return reader.cluster(), 0, limit
    cluster = reader.kept(cursor.snapshot)
    if cluster is None:
        raise Refusal(
            400,
            f"snapshot {cursor.snapshot} is not kept any more; leave the cursor out to begin anew",
        )
    return cluster, cursor.offset, limit


def _check_names(query: Mapping[str, str], known: set[str]) -> None:
    unknown = sorted(set(query) - known)
    if unknown:
        raise Refusal(400, f"there is no parameter {unknown[0][:80]!r}; there are {sorted(known)}")


def _flag(query: Mapping[str, str], name: str, usual: bool) -> bool:
    text = query.get(name)
    if text not in (None, "0", "1"):
        raise Refusal(400, f"{name} must be 0 or 1")
    return usual if text is None else text == "1"


def _parsed(reference: str) -> Reference:
    try:
        return parse(reference)
    except BadReferenceError as error:
        raise Refusal(400, str(error)) from None


def _proc(reader: ClusterReader, text: str) -> tuple[Reference, Session, NodePayload]:
    """A proc that exists, and its session."""
    try:
        reference = parse_proc(text)
    except BadReferenceError as error:
        raise Refusal(400, str(error)) from None
    session = session_named(reader.sessions(), reference.session)
    found = reader.cluster().nodes.get(str(reference))
    if session is None and found is not None:
        raise Refusal(
            400, f"{reference} is on another machine, of which an observer only knows the state"
        )
    if session is None or found is None:
        raise Refusal(404, f"there is no node {reference}")
    return reference, session, found


# --- one proc -------------------------------------------------------------------------------------


def stacks(reader: ClusterReader, proc: str, query: Mapping[str, str]) -> openapi.StacksAnswer:
    """The stacks of a proc, as the agent of its host reads them with py-spy."""
    _check_names(query, {"full", "idle"})
    full, idle = _flag(query, "full", False), _flag(query, "idle", False)
    reference, session, _ = _rank(reader, proc)
    return _stacks(reference, session, full=full, idle=idle)


def _stacks(
    reference: Reference, session: Session, *, full: bool, idle: bool
) -> openapi.StacksAnswer:
    question = ReadStacks(1, [(reference.mesh, [reference.rank])], full, idle, STACKS_S)
    answer = _answer_of(session, question, StacksRead, STACKS_S + ANSWER_S)
    if answer.problem:
        raise Refusal(503, answer.problem)
    for mesh in answer.meshes:
        for group in mesh.groups:
            if reference.rank in group.ranks:
                return openapi.StacksAnswer(str(reference), group.what, openapi.threads_of(group))
    raise Refusal(404, f"there is no node {reference}")


def dump(reader: ClusterReader, dumps: StackDumps, proc: str) -> openapi.DumpAnswer:
    """Read the stacks of a proc with all its threads, and store them for queries."""
    reference, session, found = _rank(reader, proc)
    threads = _stacks(reference, session, full=True, idle=True).threads
    if not threads:
        raise Refusal(503, f"the stacks of {reference} could not be read")
    properties = found.properties.Proc
    parent = reader.cluster().nodes.get(found.parent or "")
    host = None if parent is None else parent.properties.Host
    assert properties is not None
    dump_id, now_us = uuid.uuid4().hex, time.time_ns() // 1000
    counts = Counter[str]()
    dumps.add([
        {
            "session": session.name, "host": "" if host is None else host.host, "dump_id": dump_id,
            "timestamp_us": now_us, "pid": properties.pid, "mesh_id": reference.mesh,
            "mesh": properties.mesh, "rank": reference.rank, "thread": name,
            "depth": depth, "function": frame.name, "file": frame.filename or None,
            "line": frame.line or None, "waits": thread.waits,
        }
        for thread in threads
        for name in [_numbered(thread.name, counts)]
        for depth, frame in enumerate(thread.frames)
    ])  # fmt: skip
    return openapi.DumpAnswer(dump_id)


def _numbered(name: str, counts: Counter[str]) -> str:
    """The name of a thread; a second one of that name in a dump gets a number."""
    counts[name] += 1
    return name if counts[name] == 1 else f"{name} ({counts[name]})"


def flame_graph(reader: ClusterReader, proc: str, wanted: openapi.FlameRequest) -> bytes:
    """A flame graph of a proc as SVG, as the agent of its host samples it with py-spy."""
    reference, session, _ = _rank(reader, proc)
    question = SampleStacks(
        1, [(reference.mesh, [reference.rank])], wanted.duration_s, wanted.rate_hz, wanted.threads,
        wanted.native, wanted.nonblocking,
    )  # fmt: skip
    answer = _answer_of(session, question, StacksSampled, wanted.duration_s + SAMPLES_S)
    graph = FlameGraph(answer.meshes, wanted.duration_s, wanted.rate_hz)
    if answer.problem or not graph.samples:
        raise Refusal(503, answer.problem or "; ".join(graph.unread) or "no sample succeeded")
    return graph.svg().encode()


def _rank(reader: ClusterReader, proc: str) -> tuple[Reference, Session, NodePayload]:
    """A proc whose stacks can be read, its session and its node."""
    reference, session, found = _proc(reader, proc)
    assert found.properties.Proc is not None
    if found.properties.Proc.is_client:
        raise Refusal(400, f"{reference} is the client; only stacks of ranks can be read")
    return reference, session, found


def _answer_of(session: Session, question: Question, kind: type[A], timeout_s: float) -> A:
    """The answer of the host agent of a session."""
    (answer,) = ask_agents([session.directory], timeout_s, [question])
    if isinstance(answer, Refused):
        raise Refusal(
            503,
            f"session {session.name} runs another version of monarch; start its `monarch admin`",
        )
    if not isinstance(answer, kind):
        raise Refusal(504, f"the host agent of session {session.name} does not answer")
    return answer


def config(reader: ClusterReader, proc: str) -> openapi.ConfigAnswer:
    """The settings of a proc, as its own process has them."""
    reference, session, _ = _proc(reader, proc)
    needs = {
        table: Need(
            need.columns,
            (
                Condition("mesh_id", "=", [reference.mesh]),
                Condition("rank", "=", [reference.rank]),
                Condition("session", "=", [session.name]),
            ),
        )
        for table, need in whole(["settings"]).items()
    }
    collected = reader.collect(needs)
    rows = rows_of(collected, "settings")
    if not rows:
        why = "; ".join(str(one) for one in collected.missing) or "the proc has not answered"
        raise Refusal(504, f"{reference}: {why}")
    entries = [
        openapi.ConfigEntry(str(row["name"]), str(row["value"]), str(row["source"])) for row in rows
    ]
    return openapi.ConfigAnswer(str(reference), entries)


# --- all of it ------------------------------------------------------------------------------------


def metrics(reader: ClusterReader) -> str:
    """The text of `/metrics`."""
    collected = reader.collect(whole(METRIC_TABLES))
    tables = {name: rows_of(collected, name) for name in METRIC_TABLES}
    missing = len(collected.missing)
    for one in reader.remote():
        tables["hosts"] += one.hosts
        tables["procs"] += one.procs
        missing += len(one.missing)
    return exposition(tables, missing)


def explained(reader: ClusterReader, query: Mapping[str, str]) -> CaseFile:
    """The case file."""
    _check_names(query, {"stacks"})
    return case_from(
        lambda needs, seconds: reader.collect(dict(needs), seconds), None,
        _flag(query, "stacks", True), None if reader.span is None else reader.now_us,
    )  # fmt: skip


def _collected(
    reader: ClusterReader, dumps: StackDumps, needs: Mapping[str, Need], timeout_s: float | None
) -> Collected:
    """The rows of the sessions, and those of stored stacks."""
    collected = reader.collect(dict(needs), timeout_s)
    stored = needs.get(STORED_FRAMES.name)
    if stored is not None:
        rows = dumps.columns(stored.columns, stored.conditions)
        collected.tables[STORED_FRAMES.name] = rows
    return collected


_querying = threading.Lock()


def query(
    reader: ClusterReader, asked: openapi.QueryRequest, dumps: StackDumps
) -> openapi.QueryAnswer:
    """The rows of a query. The engine runs one at a time, for a bounded time."""
    timeout = asked.timeout_s
    if timeout is not None and not 0 <= timeout <= openapi.LONGEST_TIMEOUT_S:
        raise Refusal(400, f"timeout_s must be from 0 to {openapi.LONGEST_TIMEOUT_S:g}")

    def collect(needs: Mapping[str, Need], seconds: float | None) -> Collected:
        return _collected(reader, dumps, needs, seconds)

    with _querying:
        try:
            found = run_query(asked.sql, timeout, collect, MOST_ROWS, QUERY_S)
        except QueryTimeoutError as error:
            raise Refusal(504, str(error)) from None
        except QueryError as error:
            status = 503 if "not installed" in str(error) else 400
            raise Refusal(status, str(error)) from None
    missing = tuple(Missing(one.table, one.where, one.reason) for one in found.missing)
    dropped = tuple(openapi.Dropped(**asdict(one)) for one in found.dropped)
    return openapi.QueryAnswer(
        found.dicts(), list(found.columns), list(found.types), missing, dropped, found.not_kept
    )


# --- actions --------------------------------------------------------------------------------------


def stop(reader: ClusterReader, host: str) -> openapi.ActionAnswer:
    """End the session of a host."""
    reference = _parsed(host)
    if reference.kind != "host":
        raise Refusal(400, f"{reference} is a {reference.kind}; give a host: host:SESSION")
    session = session_named(reader.sessions(), reference.session)
    if session is None:
        raise Refusal(404, f"there is no node {reference}")
    try:
        return openapi.ActionAnswer(list(stop_session(session, STOP_S)))
    except ActionRefusedError as refused:
        raise Refusal(409, str(refused)) from None


def kill(reader: ClusterReader, proc: str) -> openapi.ActionAnswer:
    """Kill the process of a rank."""
    reference, session, found = _proc(reader, proc)
    properties = found.properties.Proc
    assert properties is not None
    if properties.is_client:
        raise Refusal(400, f"{reference} is the client, which this server does not end")
    if properties.pid is None:
        raise Refusal(409, f"{reference} has no process")
    try:
        kill_proc(session, properties.pid)
    except ActionRefusedError as refused:
        raise Refusal(409, str(refused)) from None
    return openapi.ActionAnswer([f"killed process {properties.pid} of {properties.proc_name}"])


__all__ = [
    "Refusal", "config", "explained", "kill", "metrics", "node", "nodes", "query", "stacks", "stop",
]  # fmt: skip


class ActionRefusedError(Exception):
    """The server cannot carry out the action; the text has the reason."""


def stop_session(session: Session, timeout_s: float) -> Sequence[str]:
    """End a session as `monarch kill` does; returns a report of lines.

    Raises:
        ActionRefusedError: the session could not be ended.
    """
    outcome = reap.end([session], timeout_s)
    if outcome.complaints:
        raise ActionRefusedError("; ".join(outcome.complaints))
    return outcome.done


def kill_proc(session: Session, pid: int) -> None:
    """Kill a process of a session with SIGKILL.

    Raises:
        ActionRefusedError: it has ended, or does not belong to the session.
    """
    agent = session.agent
    if agent is None:
        raise ActionRefusedError(f"the host agent of session {session.name} is gone")
    descriptor = _open(pid)
    try:
        below = {one.pid for one in process_table.descendants(agent.pid)}
        if pid not in below:
            raise ActionRefusedError(f"process {pid} does not belong to session {session.name}")
        if descriptor is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        raise ActionRefusedError(f"process {pid} has ended") from None
    except PermissionError:
        raise ActionRefusedError(f"process {pid} belongs to another user") from None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(pid: int) -> int | None:
    """A descriptor of the process; None where the system has none (macOS)."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise ActionRefusedError(f"process {pid} has ended") from None
