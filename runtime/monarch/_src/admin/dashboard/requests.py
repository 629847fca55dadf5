"""Requests of the dashboard's views, answered from tables of the sessions or of a recording.

The views are those of the notebook, whose requests a kernel answers (`monarch_jupyter.page`). This
server only observes, so it answers fewer of them; `OFFERED` tells the page which.

Runs in: the admin server, on worker threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec

from monarch._src.admin import handlers
from monarch._src.admin.cluster_reader import ClusterReader, rows_of, session_named, whole
from monarch._src.admin.dashboard.consoles import DashboardConsoles, resume
from monarch._src.admin.dashboard.state.lines import LinesMessage, lines_of
from monarch._src.admin.dashboard.state.meshes import CLIENT, MeshMessage, meshes_of
from monarch._src.admin.dashboard.state.meshes import TABLES as MESH_TABLES
from monarch._src.admin.dashboard.state.timeline import TimelineMessage, timeline_of
from monarch._src.admin.dashboard.state.usage import UsageHistory, UsageMessage
from monarch._src.admin.handlers import Refusal
from monarch._src.admin.state.nodes import Missing
from monarch._src.errors import DebugError
from monarch._src.session.directories import Session
from monarch._src.telemetry.replay.file import RecordedSpan
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.wire.messages import Condition

OFFERED = ("lines", "stacks", "actors", "usage", "timeline")
OFFERED_TO_OWNERS = ("kill", "resume", "console", "say", "complete", "standing", "let_go")
NO_HISTORY = (
    "no calls are recorded; call monarch.observe.record() in the program, or give its job "
    "enable_telemetry()"
)


class Lines(msgspec.Struct, tag_field="do", tag="lines"):
    """A page of lines, see `lines_of`."""

    mesh: str | None = None
    ranks: list[int] | None = None
    grep: str = ""
    page: int | None = None


class Stacks(msgspec.Struct, tag_field="do", tag="stacks"):
    """The stack of the first of these ranks. `mesh`: the uid of a proc mesh."""

    mesh: str
    ranks: list[int]


class Actors(msgspec.Struct, tag_field="do", tag="actors"):
    """The actors of the first of these ranks."""

    mesh: str
    ranks: list[int]


class Usage(msgspec.Struct, tag_field="do", tag="usage"):
    """The samples of a mesh after that one."""

    mesh: str
    after: int = 0


class Timeline(msgspec.Struct, tag_field="do", tag="timeline"):
    """The calls of a mesh that have not ended before `after_s`, in seconds since 1970."""

    mesh: str
    after_s: float = 0.0


class Kill(msgspec.Struct, tag_field="do", tag="kill"):
    """Kill these ranks; None: all of the mesh."""

    mesh: str
    ranks: list[int] | None = None


class Resume(msgspec.Struct, tag_field="do", tag="resume"):
    """Let these paused ranks go on."""

    mesh: str
    ranks: list[int]


class OpenConsole(msgspec.Struct, tag_field="do", tag="console"):
    """Open a console of the first of these ranks, which is paused for it if it runs."""

    mesh: str
    ranks: list[int]


class SendCommand(msgspec.Struct, tag_field="do", tag="say"):
    """Run a command in a console."""

    console: int
    text: str


class Complete(msgspec.Struct, tag_field="do", tag="complete"):
    """Complete the last word of a text in a console."""

    console: int
    text: str


class Standing(msgspec.Struct, tag_field="do", tag="standing"):
    """The state of a console."""

    console: int


class CloseConsole(msgspec.Struct, tag_field="do", tag="let_go"):
    """Close a console; its rank stays paused."""

    console: int


Question: TypeAlias = Lines | Stacks | Actors | Usage | Timeline
DebugRequest: TypeAlias = Resume | OpenConsole | SendCommand | Complete | Standing | CloseConsole
Request: TypeAlias = Question | Kill | DebugRequest
_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


class ActorMessage(msgspec.Struct):
    """One actor: its running endpoints, and how many calls wait."""

    name: str
    class_name: str
    running: list[str]
    queued: int
    attributes: list[tuple[str, str]]
    more: int
    ended: bool


class ActorsMessage(msgspec.Struct):
    """The actors of one rank."""

    actors: list[ActorMessage]


class StateMessage(msgspec.Struct):
    """The state that the page shows. `span`: the times of a recording; None: it is live."""

    type: str
    seq: int
    meshes: list[MeshMessage]
    missing: list[Missing]
    now_us: int
    offered: list[str]
    span: RecordedSpan | None


def parse(data: bytes) -> Request:
    """The request in a body.

    Raises:
        Refusal: it is none that the dashboard answers.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        known = ", ".join((*OFFERED, *OFFERED_TO_OWNERS))
        raise Refusal(400, f"the dashboard answers {known}: {error}") from None


class DashboardRequests:
    """Answers for all pages of one server. Owns: the samples of usage, the open consoles."""

    def __init__(self, reader: ClusterReader) -> None:
        self.reader = reader
        self._consoles = DashboardConsoles()
        self._usage = UsageHistory()
        self._lock = threading.Lock()

    def state(self, at_s: float | None, *, is_owner: bool) -> StateMessage:
        """The meshes, at that time of a recording.

        Raises:
            Refusal: a time of live sessions.
        """
        reader = self.reader_at(at_s)
        collected = reader.collect(whole(MESH_TABLES))
        tables = {name: rows_of(collected, name) for name in MESH_TABLES}
        missing = [Missing(one.table, one.where, one.reason) for one in collected.missing]
        for one in reader.remote():
            tables["procs"] += one.procs
            missing += one.missing
        if reader.span is None:
            with self._lock:
                self._usage.add(tables["procs"], reader.now_us / 1e6)
        acts = OFFERED_TO_OWNERS if is_owner and reader.span is None else ()
        offered = [name for name in (*OFFERED, *acts) if name not in _lacking(reader)]
        meshes = meshes_of(tables, reader.now_us)
        return StateMessage("snapshot", -1, meshes, missing, reader.now_us, offered, reader.span)

    def answer(self, request: Question, at_s: float | None) -> object:
        """The answer to a question.

        Raises:
            Refusal: it cannot be answered.
        """
        reader = self.reader_at(at_s)
        match request:
            case Lines():
                return self._lines(reader, request)
            case Stacks(mesh, ranks):
                return self._stacks(reader, mesh, _first(ranks))
            case Actors(mesh, ranks):
                return self._actors(reader, mesh, _first(ranks))
            case Usage(mesh, after):
                return self._usage_of(reader, mesh, after)
            case Timeline(mesh, after_s):
                return self._timeline(reader, mesh, after_s)

    def targets(self, request: Kill) -> list[str]:
        """The references of the procs that a request would kill.

        Raises:
            Refusal: there are none.
        """
        uid = _uid(request.mesh)
        rows = [row for row in self._procs(self.reader) if row["mesh_id"] == uid]
        wanted = {row["rank"] for row in rows} if request.ranks is None else set(request.ranks)
        found = [_reference(row) for row in rows if row["rank"] in wanted and row["pid"]]
        if not found:
            raise Refusal(404, "these ranks have no process any more")
        return found

    def debug(self, request: DebugRequest) -> object:
        """Carry out a request of the debugger, of live sessions.

        Raises:
            Refusal: there is no such rank or console, or the debugger refuses.
        """
        try:
            match request:
                case Resume(mesh, ranks):
                    row = self._row_to_debug(mesh, _first(ranks))
                    threads = resume(self._session_of(row), _uid(mesh), ranks)
                    return f"{threads} {'thread goes' if threads == 1 else 'threads go'} on"
                case OpenConsole(mesh, ranks):
                    row = self._row_to_debug(mesh, _first(ranks))
                    return self._consoles.open(self._session_of(row), _uid(mesh), row["rank"])
                case SendCommand(console, text):
                    return self._consoles.send(console, text)
                case Complete(console, text):
                    return {"matches": self._consoles.complete(console, text)}
                case Standing(console):
                    return self._consoles.standing(console)
                case CloseConsole(console):
                    return self._consoles.close_console(console)
        except DebugError as error:
            raise Refusal(409, str(error)) from None
        except TimeoutError as error:
            raise Refusal(504, str(error)) from None

    # --- answers ------------------------------------------------------------------------------

    def reader_at(self, at_s: float | None) -> ClusterReader:
        """A reader of that time of a recording. Raises Refusal for live sessions."""
        try:
            return self.reader.at(at_s)
        except ValueError as error:
            raise Refusal(400, str(error)) from None

    def _procs(self, reader: ClusterReader) -> list[dict[str, Any]]:
        return rows_of(reader.collect(whole(["procs"])), "procs")

    def _row_to_debug(self, mesh: str, rank: int) -> Mapping[str, Any]:
        if self.reader.span is not None:
            raise Refusal(409, "a recording has no ranks to debug")
        return _of_rank(self._procs(self.reader), mesh, rank)

    def _session_of(self, row: Mapping[str, Any]) -> Session:
        found = session_named(self.reader.sessions(), row["session"])
        if found is None:
            raise Refusal(409, "the session of this rank is on another machine: debug it there")
        return found

    def _lines(self, reader: ClusterReader, request: Lines) -> LinesMessage:
        collected = reader.collect(whole(["log_lines", "procs", "hosts"]))
        procs = rows_of(collected, "procs")
        points = {
            (row["mesh_id"], row["rank"]): msgspec.json.decode(
                row["point_json"] or "{}", type=dict[str, int]
            )
            for row in procs
            if row["mesh"] != CLIENT
        }
        dropped = sum(row["log_lines_dropped"] or 0 for row in rows_of(collected, "hosts"))
        try:
            return lines_of(
                rows_of(collected, "log_lines"), points, mesh=request.mesh, ranks=request.ranks,
                grep=request.grep, page=request.page, given_up=dropped,
            )  # fmt: skip
        except ValueError as error:
            raise Refusal(400, str(error)) from None

    def _stacks(self, reader: ClusterReader, mesh: str, rank: int) -> str:
        if reader.span is not None:
            raise Refusal(409, "a recording has no stacks")
        row = _of_rank(self._procs(reader), mesh, rank)
        found = handlers.stacks(reader, _reference(row), {"idle": "1"})
        lines = [found.activity]
        for thread in found.threads:
            lines.append(thread.name)
            lines += [f"  {f.filename}:{f.line}, in {f.name}" for f in thread.frames]
        return "\n".join(lines)

    def _actors(self, reader: ClusterReader, mesh: str, rank: int) -> ActorsMessage:
        uid = _uid(mesh)
        needs = {
            name: _of_one_rank(whole([name])[name], *place, uid, rank)
            for name, place in RANK_COLUMNS.items()
            if name == "actors" or reader.span is None
        }
        collected = reader.collect(needs)
        attributes: dict[str, list[tuple[str, str]]] = {}
        for row in rows_of(collected, "attributes"):
            attributes.setdefault(row["actor"], []).append((row["name"], row["text"]))
        # A reader of a recording has all rows.
        here = [
            row
            for row in rows_of(collected, "actors")
            if (row["proc_mesh_id"], row["proc_rank"]) == (uid, rank)
            and row.get("ended_us") is None
        ]
        return ActorsMessage([_actor(row, attributes.get(row["name"], [])) for row in here])

    def _usage_of(self, reader: ClusterReader, mesh: str, after: int) -> UsageMessage:
        with self._lock:
            return self._usage.message(mesh, after, reader.now_us / 1e6)

    def _timeline(self, reader: ClusterReader, mesh: str, after_s: float) -> TimelineMessage:
        # A live answer has no rows of a rank that has died, since its process sends them.
        procs = [] if reader.span is None else ["procs"]
        collected = reader.collect(whole(["messages", "recordings", *procs]))
        messages = rows_of(collected, "messages")
        if not messages and not rows_of(collected, "recordings"):
            raise Refusal(409, NO_HISTORY)
        uid, now_s = _uid(mesh), reader.now_us / 1e6
        failed_s = {
            row["rank"]: now_s - (row["since_s"] or 0.0)
            for row in rows_of(collected, "procs")
            if row["mesh_id"] == uid and row["state"] == "failed"
        }
        return timeline_of(messages, uid, after_s, now_s, failed_s)


RANK_COLUMNS = {"actors": ("proc_mesh_id", "proc_rank"), "attributes": ("mesh_id", "rank")}
"""The columns of a table that name a rank."""


def _of_one_rank(need: Need, mesh: str, rank: str, uid: int, number: int) -> Need:
    conditions = (Condition(mesh, "=", [uid]), Condition(rank, "=", [number]))
    return replace(need, conditions=conditions)


def _actor(row: Mapping[str, Any], attributes: list[tuple[str, str]]) -> ActorMessage:
    status: str = row["status"]
    running: list[str] = row["running"].split(", ") if row["running"] else []
    is_over = status in ("failed", "stopped")
    return ActorMessage(
        row["name"],
        row["class"],
        running,
        row["queued"] or 0,
        attributes or [("status", status)],
        0,
        is_over,
    )


def _lacking(reader: ClusterReader) -> tuple[str, ...]:
    return () if reader.span is None else ("stacks", "usage")


def _first(ranks: Sequence[int]) -> int:
    if not ranks:
        raise Refusal(400, "the request names no rank")
    return ranks[0]


def _uid(mesh: str) -> int:
    try:
        return int(mesh, 16)
    except ValueError:
        raise Refusal(400, f"{mesh[:80]!r} is no uid of a mesh") from None


def _of_rank(rows: Sequence[Mapping[str, Any]], mesh: str, rank: int) -> Mapping[str, Any]:
    uid = _uid(mesh)
    found = next((row for row in rows if (row["mesh_id"], row["rank"]) == (uid, rank)), None)
    if found is None:
        raise Refusal(404, "this mesh has ended")
    return found


def _reference(row: Mapping[str, Any]) -> str:
    return f"proc:{row['session']}:{row['mesh_id']:x}:{row['rank']}"
