"""Snapshots and events for front ends: meshes, ranks, calls, stacks, output and metrics."""

from monarch._src.actor.call.unread import UnreadError, on_unread_error
from monarch._src.actor.deliver.payloads import PayloadCounts
from monarch._src.actor.ports import unheeded
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
from monarch._src.failures.endpoint_text import endpoint_text, is_label
from monarch._src.failures.report import by_place as failures_by_place
from monarch._src.failures.report import fold as fold_failures
from monarch._src.failures.report import others_text as other_failures_text
from monarch._src.logs.carriage_returns import shown as as_shown
from monarch._src.logs.state.folding import Fold, OutputFolder, timed_folds
from monarch._src.mesh.actor_mesh import CallTarget, call_target_of
from monarch._src.mesh.constructor_payload import accompany_actors
from monarch._src.mesh.live_update import (
    actor_class_of,
    actor_meshes,
    failed_ranks,
    update_actors,
)
from monarch._src.mesh.map.open_maps import OpenMap, open_maps
from monarch._src.mesh.selected_procs import as_viewed, coordinates
from monarch._src.observe.doctor import Finding, doctor
from monarch._src.observe.flame_graph.query import FlameGraph, flame_graph
from monarch._src.observe.live_actors import LiveActor, live_actors
from monarch._src.observe.meshes import (
    CodePlace,
    FailedActors,
    MeshSnapshot,
    RankRow,
    StartingMesh,
    State,
    flush_output,
    meshes,
    number_calls,
    on_change,
    on_output,
    payload_counts,
    snapshot,
    starting,
)
from monarch._src.observe.open_calls import (
    OpenCall,
    call_of,
    cancel_calls,
    cancel_on,
    interrupt_procs,
    kill_procs,
    newest_call,
    open_calls,
)
from monarch._src.observe.open_pulls import OpenPull, open_pulls
from monarch._src.observe.paused_waits import is_waiting, owing_answers
from monarch._src.observe.stacks.query import (
    MeshStacks,
    StackFrame,
    StackGroup,
    Stacks,
    ThreadStack,
    stacks,
)
from monarch._src.observe.timeline.query import CallRecord, Timeline, timeline
from monarch._src.shape.coordinates import Coordinates
from monarch._src.shape.rank_names import name_indices, name_point, name_ranks
from monarch._src.telemetry.endpoint_rows import EndpointMetrics, Metrics, MissingProcess, metrics
from monarch._src.telemetry.history.record import record
from monarch._src.telemetry.perfetto.profile import Profile, profile, profile_at
from monarch._src.telemetry.perfetto.state.summary import ProfileLine
from monarch._src.telemetry.perfetto.state.summary_table import ProfileTable
from monarch._src.telemetry.program_rows import InstrumentMetrics, Process, SpanMetrics
from monarch._src.telemetry.replay.file import query_file
from monarch._src.telemetry.replay.record import Recording, record_to
from monarch._src.telemetry.sql.missing_rows import MissingRows
from monarch._src.telemetry.sql.query import QueryEngineClient, QueryResult, query, query_tables

__all__ = [
    "AdminServer",
    "Blocker",
    "CallRecord",
    "CallTarget",
    "CaseFile",
    "CodePlace",
    "Coordinates",
    "Cycle",
    "EndpointErrors",
    "EndpointMetrics",
    "Evidence",
    "FailedActors",
    "Failure",
    "Finding",
    "FlameGraph",
    "Fold",
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
    "OutputFolder",
    "OutputLine",
    "PayloadCounts",
    "ProcReady",
    "Process",
    "Profile",
    "ProfileLine",
    "ProfileTable",
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
    "StartingMesh",
    "State",
    "ThreadStack",
    "Timeline",
    "UnreadError",
    "Wait",
    "accompany_actors",
    "actor_class_of",
    "actor_meshes",
    "admin",
    "as_shown",
    "as_viewed",
    "call_of",
    "call_target_of",
    "cancel_calls",
    "cancel_on",
    "coordinates",
    "dashboard",
    "doctor",
    "endpoint_text",
    "explain",
    "failed_ranks",
    "failures_by_place",
    "flame_graph",
    "flush_output",
    "fold_failures",
    "interrupt_procs",
    "is_label",
    "is_waiting",
    "kill_procs",
    "live_actors",
    "meshes",
    "metrics",
    "name_indices",
    "name_point",
    "name_ranks",
    "newest_call",
    "number_calls",
    "on_change",
    "on_output",
    "on_unread_error",
    "open_calls",
    "open_maps",
    "open_pulls",
    "other_failures_text",
    "owing_answers",
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
    "starting",
    "timed_folds",
    "timeline",
    "unheeded",
    "update_actors",
]
