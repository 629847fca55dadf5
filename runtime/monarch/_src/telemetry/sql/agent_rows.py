"""Rows that a host agent has: its host, its ranks, its meshes, the lines that ranks have written.

Runs in: the host agent, on its one thread. The functions read its state and change nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator

from monarch._src.host.parts import AgentView
from monarch._src.logs.line_origin import without_marks
from monarch._src.logs.state.line_ring import FINISHED
from monarch._src.shape import Extent
from monarch._src.telemetry.sql.place import shape_json
from monarch._src.telemetry.sql.state.rows import Row
from monarch._src.wire.messages import MeshState, Snapshot


def _hosts(agent: AgentView) -> Iterator[Row]:
    meshes = agent.host.meshes.values()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield (
        os.getpid(), time.time_ns() // 1000, usable, len(meshes),
        sum(len(mesh.procs) for mesh in meshes), len(agent.lines), agent.lines.dropped,
    )  # fmt: skip


def _procs(agent: AgentView) -> Iterator[Row]:
    for mesh in agent.snapshot(Snapshot(0, [])).meshes:
        extent = Extent(mesh.labels, mesh.sizes)
        for rank in mesh.ranks:
            yield (
                mesh.mesh, mesh.name, rank.rank, _point_json(extent, rank.rank), rank.pid or None,
                rank.state, rank.since_s, rank.actor or None, rank.endpoint or None,
                rank.messages, rank.errors, rank.busy_s, rank.rss_bytes or None,
                _or_null(rank.cpu_s), _or_null(rank.gpu_bytes), _or_null(rank.gpu_percent),
                rank.restarts,
                rank.failure or None, rank.function or None, rank.filename or None,
                rank.line or None,
            )  # fmt: skip


def _or_null(figure: float) -> float | None:
    """The figure, which is negative in a report if it is not known."""
    return None if figure < 0 else figure


def _meshes(agent: AgentView) -> Iterator[Row]:
    """The proc meshes whose first rank is on this host, so that each mesh is one row."""
    for mesh in agent.snapshot(Snapshot(0, [])).meshes:
        if mesh.ranks and mesh.ranks[0].rank == 0:
            yield mesh_row(mesh)


def mesh_row(mesh: MeshState) -> Row:
    """The row of a proc mesh in `meshes`."""
    return (
        mesh.mesh, time.time_ns() // 1000 - int(mesh.age_s * 1e6), "Proc", mesh.name,
        f"{mesh.name}-{mesh.mesh:x}", shape_json(mesh.labels, mesh.sizes), None, None,
    )  # fmt: skip


def _log_lines(agent: AgentView) -> Iterator[Row]:
    # A client of a worker reads no lines of the clients before it, unless it took over the mesh.
    for written in agent.lines.of_client(agent.owner.client, agent.host.meshes):
        for number, (stream, text) in enumerate(written.lines, written.first):
            yield (
                number, written.time_us, written.mesh, written.mesh_name, written.rank,
                FINISHED[stream - 1], without_marks(text),
            )  # fmt: skip


AGENT_ROWS: dict[str, Callable[[AgentView], Iterator[Row]]] = {
    "hosts": _hosts,
    "procs": _procs,
    "meshes": _meshes,
    "log_lines": _log_lines,
}
"""From the name of a table to the rows that an agent has of it."""


def _point_json(extent: Extent, rank: int) -> str:
    return json.dumps(dict(extent.point_of_rank(rank)), separators=(",", ":"))
