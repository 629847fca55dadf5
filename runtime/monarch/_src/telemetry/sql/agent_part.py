"""The part of the host agent that answers requests for rows of tables.

Runs in: the host agent, on its one thread, from the first request on.
Owns: the requests whose rows have not all arrived.
Invariants: a request gets one answer. Rows of ranks and of the client are asked of those processes,
which answer without running user code; an answer names the processes that did not, and those that
have not started. Remote clients are asked by the agent of their own host, so each process is asked
once.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from monarch._src.failures.report import at_text
from monarch._src.host.parts import AgentView, Handlers, Part
from monarch._src.host.report import rank_state
from monarch._src.host.state.procs import Mesh, Proc, ProcState
from monarch._src.logs.line_origin import without_marks
from monarch._src.logs.state.line_ring import FINISHED
from monarch._src.observe.stacks.agent_part import job_of
from monarch._src.observe.stacks.py_spy import Looks
from monarch._src.shape import Extent, NDSlice, Region
from monarch._src.telemetry.sql.place import host_number, shape_json, view_json
from monarch._src.telemetry.sql.state.rows import Row, answer, place_meets, problem_of, wants_before
from monarch._src.telemetry.sql.state.schema import TABLES, Source, Table, column_names
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import (
    MeshStacks,
    ReadTable,
    Snapshot,
    SpawnProcs,
    StacksRead,
    TableRead,
)
from monarch._src.wire.table_codec import unpacked

CLIENT = "client"
NOTE_S = 1.0
"""How often an agent that waits says so."""


@dataclass
class _Open:
    """A request that waits for `waiting`: the nodes that owe rows, with their names for people."""

    peer: str
    request: ReadTable
    table: Table
    deadline: float
    rows: list[Row]
    asked: list[str]  # the columns that processes send; the others of `rows` are None
    until: float  # how long idle ranks are waited for; the deadline is for all others
    note_at: float  # when the next word that the answer is not complete is due
    waiting: dict[str, str] = field(default_factory=dict[str, str])
    missing: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    lost: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])


class TableService(Part):
    """Answers ReadTable."""

    def __init__(self, agent: AgentView) -> None:
        self._agent = agent
        self._looks = Looks(agent.selector, self._on_stacks)
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self.handlers: Handlers = {ReadTable: self._on_request, TableRead: self._on_rows}

    # --- requests -----------------------------------------------------------------------------

    def _on_request(self, peer: str, message: ReadTable, _payload: Payload) -> None:
        table = TABLES.get(message.table)
        problem = problem_of(table, message)
        if table is None or problem:
            self._send(peer, TableRead(message.request, self._agent.node.site, problem=problem))
            return
        number, now = next(self._numbers), time.monotonic()
        opened = self._open[number] = _Open(
            peer, message, table, now + message.timeout_s, [], _asked(table, message),
            now + max(message.timeout_s, message.patience_s),
            now + NOTE_S if message.patience_s else inf,
        )  # fmt: skip
        if Source.AGENT in table.source:
            opened.rows += AGENT_ROWS[table.name](self._agent)
            if table.name == LOG_LINES:
                opened.lost += _lost_lines(self._agent, message)
        if Source.STACKS in table.source:
            self._read_stacks(number, opened)
            return  # answered by `_on_stacks`, at the latest when the time is up
        if Source.PROCESSES in table.source:
            self._ask_processes(number, opened)
        self._finish_if_complete(number)

    def _ask_processes(self, number: int, opened: _Open) -> None:
        for node, name, proc in self._processes(opened.table, opened.request):
            if proc is None or _has_connected(proc):
                self._ask(number, opened, node, name)
            elif proc.state is ProcState.STOPPING:
                continue
            elif proc.state is ProcState.RESTARTING:
                opened.missing.append((name, "its process is being started again"))
            elif self._is_up(proc):
                opened.waiting[node] = name  # asked when its hello arrives
            else:
                opened.missing.append((name, "its process has not started yet"))

    def _ask(self, number: int, opened: _Open, node: str, name: str) -> None:
        request = opened.request
        question = ReadTable(
            number, request.table, opened.asked, request.conditions,
            request.limit, request.timeout_s,
        )  # fmt: skip
        if self._agent.node.send(node, question):
            opened.waiting[node] = name
        else:
            opened.missing.append((name, "its process has ended"))

    def _processes(
        self, table: Table, request: ReadTable
    ) -> Iterator[tuple[str, str, Proc | None]]:
        """The processes that may have rows: their nodes, and their names for people."""
        agent, conditions = self._agent, request.conditions
        for mesh in agent.host.meshes.values():
            for proc in mesh.procs:
                if proc.state is ProcState.ENDED:
                    continue  # it has nothing any more
                if place_meets(table, conditions, mesh.uid, mesh.spec.name, proc.rank):
                    yield proc.node, _name(mesh, proc), proc
        client = agent.owner.client_now
        if client and not agent.node.site and agent.node.knows(client):
            yield client, CLIENT, None

    def _state(self, proc: Proc) -> str:
        return rank_state(proc, self._agent.boards[proc.mesh], time.monotonic()).state

    def _is_up(self, proc: Proc) -> bool:
        """Whether the process runs, and only its hello has not been read."""
        return self._state(proc) in ("idle", "busy")

    def _on_rows(self, peer: str, message: TableRead, _payload: Payload) -> None:
        opened = self._open.get(message.request)
        name = None if opened is None else opened.waiting.pop(peer, None)
        if opened is None or name is None:
            return  # it came too late
        if opened.request.patience_s:
            opened.deadline = max(
                opened.deadline, min(opened.until, time.monotonic() + opened.request.timeout_s)
            )
        if message.dropped:
            opened.missing.append((name, f"{message.dropped} rows did not fit into its answer"))
        opened.lost += [(name, count, since_us) for _, count, since_us in message.lost]
        if message.problem:
            opened.missing.append((name, message.problem))
        else:
            try:
                columns = unpacked(message.columns, len(opened.asked), message.count)
            except ValueError as error:
                opened.missing.append((name, f"its answer could not be read: {error}"))
            else:
                found = dict(zip(opened.asked, columns, strict=True))
                rest = [None] * message.count
                opened.rows += zip(
                    *(found.get(column.name, rest) for column in opened.table.sent), strict=True
                )
        self._finish_if_complete(message.request)

    # --- stacks -------------------------------------------------------------------------------

    def _read_stacks(self, number: int, opened: _Open) -> None:
        now, request = time.monotonic(), opened.request
        jobs = [
            job_of(mesh, self._agent.boards[mesh.uid], ranks, False, now)
            for mesh in self._agent.host.meshes.values()
            if (
                ranks := [
                    rank
                    for rank in mesh.ranks
                    if place_meets(opened.table, request.conditions, mesh.uid, mesh.spec.name, rank)
                ]
            )
        ]
        if not jobs:
            self._finish_if_complete(number)
            return
        self._looks.ask(str(number), number, jobs, full=False, timeout_s=request.timeout_s)

    def _on_stacks(self, _peer: str, found: StacksRead) -> None:
        opened = self._open.get(found.request)
        if opened is None:
            return
        for mesh in found.meshes:
            opened.rows += _frames(mesh)
        if found.problem:
            self._send(
                opened.peer,
                TableRead(
                    opened.request.request, self._agent.node.site, problem=found.problem
                ),
            )  # fmt: skip
            del self._open[found.request]
        else:
            self._finish_if_complete(found.request)

    # --- answers ------------------------------------------------------------------------------

    def on_proc_connected(self, proc: str) -> None:
        """See `Part`."""
        for number, opened in list(self._open.items()):
            name = opened.waiting.pop(proc, None)
            if name is not None:
                self._ask(number, opened, proc, name)
                self._finish_if_complete(number)

    def on_proc_ended(self, proc: str) -> None:
        """See `Part`."""
        for number, opened in list(self._open.items()):
            name = opened.waiting.pop(proc, None)
            if name is not None:
                opened.missing.append((name, "its process has ended"))
                self._finish_if_complete(number)

    def on_client_gone(self, client: str) -> None:
        """See `Part`."""
        self.on_proc_ended(client)

    def next_deadline(self) -> float | None:
        """See `Part`."""
        return min(
            (min(opened.deadline, opened.note_at) for opened in self._open.values()
             if opened.waiting),
            default=None,
        )  # fmt: skip

    def after_poll(self) -> None:
        """See `Part`."""
        if not self._open:
            return
        now = time.monotonic()
        for number, opened in list(self._open.items()):
            if opened.waiting and now >= opened.deadline:
                self._end_waiting(opened, now)
                self._finish_if_complete(number)
            elif opened.waiting and now >= opened.note_at:
                self._note(opened, now)

    def _end_waiting(self, opened: _Open, now: float) -> None:
        """Name the processes that have not answered; with patience, but for those that are idle."""
        waited_s = (
            opened.request.timeout_s
            if now < opened.until
            else (opened.request.patience_s or opened.request.timeout_s)
        )
        for node, name in list(opened.waiting.items()):
            proc = self._agent.host.proc(node)
            state = "" if proc is None else self._state(proc)
            may_answer = state == "idle" or node == opened.peer
            if opened.request.patience_s and now < opened.until and may_answer:
                continue
            why = f"no answer within {round(waited_s, 2):g} s"
            if state == "suspended":
                why += "; its process is suspended"
            opened.missing.append((name, why))
            del opened.waiting[node]
        # Whether they are still idle is looked at again then.
        opened.deadline = min(opened.until, now + opened.request.timeout_s)

    def _note(self, opened: _Open, now: float) -> None:
        """Tell that the answer is not complete yet."""
        opened.note_at = now + NOTE_S
        waiting = len(opened.waiting)
        self._agent.node.send(
            opened.peer,
            TableRead(opened.request.request, self._agent.node.site, waiting=waiting),
        )  # fmt: skip

    def _finish_if_complete(self, number: int) -> None:
        opened = self._open[number]
        if opened.waiting:
            return
        del self._open[number]
        rows = _in_order(opened.table, opened.rows)
        site = self._agent.node.site
        found = answer(opened.table, opened.request, rows, site, opened.missing)
        found.lost = opened.lost
        self._send(opened.peer, found)

    def _send(self, peer: str, message: TableRead) -> None:
        self._agent.node.send(peer, message)
        if peer.startswith(OBSERVER):
            self._agent.node.drop(peer)  # an observer connects for one question


def _asked(table: Table, request: ReadTable) -> list[str]:
    """The columns that a process sends: those of the request, and those that are used here.

    Conditions are checked again on rows of all sources, and rows are sorted by their place.
    """
    needed = {*request.columns, *(condition.column for condition in request.conditions)}
    if table.place is not None:
        needed |= {table.place.mesh_id, table.place.rank}
    return [name for name in column_names(table.sent) if name in needed]


def _has_connected(proc: Proc) -> bool:
    return proc.said_hello and proc.state not in (ProcState.ENDED, ProcState.RESTARTING)


def _name(mesh: Mesh, proc: Proc) -> str:
    extent = Extent(mesh.spec.labels, mesh.spec.sizes)
    return mesh.spec.name + at_text(dict(extent.point_of_rank(proc.rank)))


def _in_order(table: Table, rows: list[Row]) -> list[Row]:
    """Rows of several processes by mesh and rank, since answers arrive in any order."""
    place = table.place
    if place is None or Source.PROCESSES not in table.source:
        return rows
    mesh, rank = table.index(place.mesh_id), table.index(place.rank)
    return sorted(rows, key=lambda row: (row[mesh] or 0, row[rank] or 0))


def _frames(mesh: MeshStacks) -> Iterable[Row]:
    by_rank = {rank: group for group in mesh.groups for rank in group.ranks}
    for rank, group in sorted(by_rank.items()):
        place = (mesh.mesh, mesh.name, rank, group.what)
        if not group.threads:
            yield (*place, None, None, None, None, None, None)
        for thread in group.threads:
            for depth, frame in enumerate(thread.frames):
                yield (
                    *place, thread.name or "MainThread", depth, frame.name, frame.filename or None,
                    frame.line or None, thread.waits,
                )  # fmt: skip


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
    """The host meshes of procs here, and the proc meshes whose first rank is on this host.

    Each proc mesh is one row; other agents may have rows of the same host meshes.
    """
    own = host_number(agent.node.address)
    known = {mesh.uid: mesh.spec for mesh in agent.host.meshes.values()}
    if not agent.node.site:
        yield _host_mesh_row(own, LOCAL, [], [])
    for uid, hosts in {
        spec.hosts.uid: spec.hosts for spec in known.values() if spec.hosts is not None
    }.items():
        yield _host_mesh_row(uid, hosts.name or HOSTS, [HOSTS], [hosts.count])
    for mesh in agent.snapshot(Snapshot(0, [])).meshes:
        if mesh.ranks and mesh.ranks[0].rank == 0:
            spec = known.get(mesh.mesh)
            hosts = None if spec is None else spec.hosts
            if hosts is not None:
                region = Region(
                    tuple(hosts.labels),
                    NDSlice(
                        offset=hosts.offset, sizes=tuple(hosts.sizes), strides=tuple(hosts.strides)
                    ),
                )
                parent, view = hosts.uid, view_json(region)
            else:
                parent, view = _hosts_of_owner(agent, spec, own), None
            yield (
                mesh.mesh, time.time_ns() // 1000 - int(mesh.age_s * 1e6), "Proc", mesh.name,
                f"{mesh.name}-{mesh.mesh:x}", shape_json(mesh.labels, mesh.sizes), parent, view,
            )  # fmt: skip


HOSTS = "hosts"
LOCAL = "local"
"""The name of the host mesh of one that the client's host is, as in Monarch."""


def _host_mesh_row(uid: int, name: str, labels: list[str], sizes: list[int]) -> Row:
    return (
        uid, None, "Host", name, f"{name}-{uid:x}", shape_json(labels, sizes), None, None,
    )  # fmt: skip


def _hosts_of_owner(agent: AgentView, spec: SpawnProcs | None, own: int) -> int | None:
    """The host mesh of procs that were spawned on the host of their owner.

    On a worker the owner is a rank, and `this_host()` there is a part of the hosts of its mesh.
    """
    while agent.node.site:
        owner = None if spec is None else agent.host.proc(spec.owner)
        mesh = None if owner is None else agent.host.meshes.get(owner.mesh)
        if mesh is None:
            return None  # the owner has ended
        if mesh.spec.hosts is not None:
            return mesh.spec.hosts.uid
        spec = mesh.spec
    return own


def _log_lines(agent: AgentView) -> Iterator[Row]:
    # A client of a worker reads no lines of the clients before it, unless it took over the mesh.
    for written in agent.lines.of_client(agent.owner.client, agent.host.meshes):
        for number, (stream, text) in enumerate(written.lines, written.first):
            yield (
                number, written.time_us, written.mesh, written.mesh_name, written.rank,
                FINISHED[stream - 1], without_marks(text),
            )  # fmt: skip


def _lost_lines(agent: AgentView, request: ReadTable) -> list[tuple[str, int, int]]:
    """The lines that made room for newer ones, if the request may want them."""
    lines, since_us = agent.lines, agent.lines.oldest_us + 1  # others of that time may be gone
    if not lines.dropped or not wants_before(request, since_us):
        return []
    return [("", lines.dropped, since_us)]


LOG_LINES = "log_lines"
AGENT_ROWS: dict[str, Callable[[AgentView], Iterator[Row]]] = {
    "hosts": _hosts,
    "procs": _procs,
    "meshes": _meshes,
    LOG_LINES: _log_lines,
}
"""From the name of a table to the rows that an agent has of it."""


def _point_json(extent: Extent, rank: int) -> str:
    return json.dumps(dict(extent.point_of_rank(rank)), separators=(",", ":"))
