"""Observe the meshes of a program: snapshots, calls, stacks, metrics, SQL, traces, events."""

from monarch._src.actor.call.unread import UnreadError, on_unread_error
from monarch._src.actor.deliver.payloads import PayloadCounts
from monarch._src.admin.explain import explain
from monarch._src.admin.side_process import AdminServer, admin, dashboard
from monarch._src.admin.state.case_file import (
    Blocker,
    CaseFile,
    Cycle,
    EndpointErrors,
    Evidence,
    Failure,
    LastLines,
    Wait,
)
from monarch._src.errors import QueryError, QueryTimeoutError, StacksError
from monarch._src.events import (
    MeshSpawned,
    MeshStopped,
    OutputLine,
    ProcReady,
    RankFailed,
    RankPaused,
    RankRestarting,
)
from monarch._src.mesh.map.open_maps import OpenMap, open_maps
from monarch._src.observe.doctor import Finding, doctor
from monarch._src.observe.flame_graph.query import FlameGraph, flame_graph
from monarch._src.observe.live_actors import LiveActor, live_actors
from monarch._src.observe.meshes import (
    MeshSnapshot,
    RankRow,
    State,
    flush_output,
    meshes,
    on_change,
    on_output,
    payload_counts,
    snapshot,
)
from monarch._src.observe.open_calls import (
    OpenCall,
    OpenPull,
    call_of,
    cancel_calls,
    cancel_on,
    interrupt_procs,
    kill_procs,
    open_calls,
    open_pulls,
)
from monarch._src.observe.stacks.query import (
    MeshStacks,
    StackFrame,
    StackGroup,
    Stacks,
    ThreadStack,
    stacks,
)
from monarch._src.observe.timeline.query import CallRecord, Timeline, timeline
from monarch._src.telemetry.history.record import record
from monarch._src.telemetry.metrics import (
    EndpointMetrics,
    InstrumentMetrics,
    Metrics,
    MissingProcess,
    Process,
    SpanMetrics,
    metrics,
)
from monarch._src.telemetry.perfetto.profile import Profile, profile, profile_at
from monarch._src.telemetry.perfetto.state.summary import ProfileLine, ProfileTable
from monarch._src.telemetry.replay.file import query_file
from monarch._src.telemetry.replay.record import Recording, record_to
from monarch._src.telemetry.sql.missing_rows import DroppedRows, MissingRows
from monarch._src.telemetry.sql.query import (
    QueryEngine,
    QueryEngineClient,
    QueryResult,
    query,
    query_tables,
)
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = [
    "AdminServer",
    "Blocker",
    "CallRecord",
    "CaseFile",
    "Cycle",
    "DroppedRows",
    "EndpointErrors",
    "EndpointMetrics",
    "Evidence",
    "Failure",
    "Finding",
    "FlameGraph",
    "InstrumentMetrics",
    "LastLines",
    "LiveActor",
    "MeshSnapshot",
    "MeshSpawned",
    "MeshStacks",
    "MeshStopped",
    "Metrics",
    "MissingProcess",
    "MissingRows",
    "OpenCall",
    "OpenMap",
    "OpenPull",
    "OutputLine",
    "PayloadCounts",
    "ProcReady",
    "Process",
    "Profile",
    "ProfileLine",
    "ProfileTable",
    "QueryEngine",
    "QueryEngineClient",
    "QueryError",
    "QueryResult",
    "QueryTimeoutError",
    "RankFailed",
    "RankPaused",
    "RankRestarting",
    "RankRow",
    "Recording",
    "SpanMetrics",
    "StackFrame",
    "StackGroup",
    "Stacks",
    "StacksError",
    "State",
    "ThreadStack",
    "Timeline",
    "UnreadError",
    "Wait",
    "admin",
    "call_of",
    "cancel_calls",
    "cancel_on",
    "dashboard",
    "doctor",
    "explain",
    "flame_graph",
    "flush_output",
    "interrupt_procs",
    "kill_procs",
    "live_actors",
    "meshes",
    "metrics",
    "on_change",
    "on_output",
    "on_unread_error",
    "open_calls",
    "open_maps",
    "open_pulls",
    "payload_counts",
    "profile",
    "profile_at",
    "query",
    "query_file",
    "query_tables",
    "record",
    "record_to",
    "snapshot",
    "stacks",
    "timeline",
]
