"""What a front end needs to show: meshes, ranks, what they do and write, what this machine has."""

from monarch._src.events import MeshSpawned, MeshStopped, OutputLine, ProcReady, RankFailed
from monarch._src.mesh.doctor import Finding, doctor
from monarch._src.mesh.metrics import EndpointMetrics, Metrics, MissingProcess, Process, metrics
from monarch._src.mesh.observe import (
    MeshSnapshot,
    RankRow,
    State,
    flush_output,
    meshes,
    on_change,
    on_output,
    snapshot,
)

__all__ = [
    "EndpointMetrics",
    "Finding",
    "MeshSnapshot",
    "MeshSpawned",
    "MeshStopped",
    "Metrics",
    "MissingProcess",
    "OutputLine",
    "ProcReady",
    "Process",
    "RankFailed",
    "RankRow",
    "State",
    "doctor",
    "flush_output",
    "meshes",
    "metrics",
    "on_change",
    "on_output",
    "snapshot",
]
