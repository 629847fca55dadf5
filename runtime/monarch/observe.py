"""Snapshots and events for front ends: meshes, ranks, calls, stacks, output and metrics."""

from monarch._src.actor.call.unread import UnreadError, on_unread_error
from monarch._src.actor.deliver.payloads import PayloadCounts
from monarch._src.actor.ports import unheeded
from monarch._src.errors import QueryError, StacksError
from monarch._src.events import (
    MeshSpawned,
    MeshStopped,
    OutputLine,
    ProcReady,
    RankFailed,
    RankPaused,
    RankRestarting,
)
from monarch._src.failures.report import by_place as failures_by_place
from monarch._src.failures.report import fold as fold_failures
from monarch._src.failures.report import others_text as other_failures_text
from monarch._src.logs.carriage_returns import shown as as_shown
from monarch._src.mesh.actor_mesh import CallTarget, call_target_of
from monarch._src.mesh.live_update import (
    actor_class_of,
    actor_meshes,
    failed_ranks,
    update_actors,
)
from monarch._src.mesh.map.open_maps import OpenMap, open_maps
from monarch._src.mesh.proc_mesh import accompany_actors
from monarch._src.mesh.selected_procs import as_viewed, coordinates
from monarch._src.observe.doctor import Finding, doctor
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
from monarch._src.observe.stacks.query import (
    MeshStacks,
    StackFrame,
    StackGroup,
    Stacks,
    ThreadStack,
    stacks,
)
from monarch._src.shape.coordinates import Coordinates
from monarch._src.telemetry.endpoint_rows import EndpointMetrics, Metrics, MissingProcess, metrics
from monarch._src.telemetry.program_rows import InstrumentMetrics, Process, SpanMetrics
from monarch._src.telemetry.sql.collect import MissingRows
from monarch._src.telemetry.sql.query import QueryEngineClient, QueryResult, query, query_tables

__all__ = [
    "CallTarget",
    "CodePlace",
    "Coordinates",
    "EndpointMetrics",
    "FailedActors",
    "Finding",
    "InstrumentMetrics",
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
    "QueryEngineClient",
    "QueryError",
    "QueryResult",
    "RankFailed",
    "RankPaused",
    "RankRestarting",
    "RankRow",
    "SpanMetrics",
    "StackFrame",
    "StackGroup",
    "Stacks",
    "StacksError",
    "StartingMesh",
    "State",
    "ThreadStack",
    "UnreadError",
    "accompany_actors",
    "actor_class_of",
    "actor_meshes",
    "as_shown",
    "as_viewed",
    "call_of",
    "call_target_of",
    "cancel_calls",
    "cancel_on",
    "coordinates",
    "doctor",
    "failed_ranks",
    "failures_by_place",
    "flush_output",
    "fold_failures",
    "interrupt_procs",
    "kill_procs",
    "live_actors",
    "meshes",
    "metrics",
    "newest_call",
    "number_calls",
    "on_change",
    "on_output",
    "on_unread_error",
    "open_calls",
    "open_maps",
    "open_pulls",
    "other_failures_text",
    "payload_counts",
    "query",
    "query_tables",
    "snapshot",
    "stacks",
    "starting",
    "unheeded",
    "update_actors",
]
