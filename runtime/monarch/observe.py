"""What a front end needs to show: meshes, ranks, what they write, what this machine has."""

from monarch._src.events import MeshSpawned, MeshStopped, OutputLine, ProcReady, RankFailed
from monarch._src.mesh.doctor import Finding, doctor
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
    "Finding",
    "MeshSnapshot",
    "MeshSpawned",
    "MeshStopped",
    "OutputLine",
    "ProcReady",
    "RankFailed",
    "RankRow",
    "State",
    "doctor",
    "flush_output",
    "meshes",
    "on_change",
    "on_output",
    "snapshot",
]
