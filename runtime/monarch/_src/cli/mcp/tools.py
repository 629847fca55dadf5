"""The tools: each answers one question about sessions of this machine, or acts on them.

Runs in: the server, on worker threads. No function here knows the protocol. The same functions
answer the commands `monarch ps`, `explain`, `stacks`, `logs`, `query`, `flame` and `kill`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from monarch._src.admin.cluster_reader import ClusterReader, NoSessionError, find_live
from monarch._src.admin.explain import case_from
from monarch._src.admin.handlers import (
    MOST_ROWS,
    QUERY_S,
    STOP_S,
    ActionRefusedError,
    kill_proc,
    stop_session,
)
from monarch._src.admin.state.case_file import CaseFile
from monarch._src.admin.state.nodes import Missing
from monarch._src.admin.state.openapi import Dropped, threads_of
from monarch._src.cli import flame, logs, ps, stacks
from monarch._src.cli.mcp import tool_schemas as schema
from monarch._src.cli.selection import ANSWER_S, BadSelectionError, select
from monarch._src.errors import QueryError, QueryTimeoutError
from monarch._src.failures.report import at_text
from monarch._src.net.observer import ask_agents
from monarch._src.session.directories import Session, named
from monarch._src.session.listing import SeenSession, snapshot_sessions
from monarch._src.shape import Extent
from monarch._src.telemetry.sql.query import run_query, table_lines
from monarch._src.wire.messages import MeshState, Snapshotted

STACKS_S = 30.0
MOST_FAILED = 20
MOST_FOLDED = 200
NOTHING = "you have no sessions on this machine"


class ToolError(Exception):
    """The tool cannot answer; the text has the reason, and the remedy if there is one."""


@dataclass(frozen=True)
class Answer:
    """An answer twice: as text, and as data of the tool's schema."""

    text: str
    data: msgspec.Struct


@dataclass(frozen=True)
class Scope:
    """The sessions that the tools see: of this user, in `bases`, and of these `names` if any."""

    bases: Sequence[str] | None = None
    names: Sequence[str] = field(default=())

    def live(self, session: str = "") -> list[Session]:
        """The live sessions, or the one that `session` names.

        Raises:
            ToolError: there is no such session.
        """
        try:
            found = find_live(self.bases, self.names)
        except NoSessionError as error:
            raise ToolError(str(error)) from None
        if not session:
            return found
        chosen = named(session, found)
        if len(chosen) != 1:
            known = ", ".join(one.name for one in chosen or found) or "none"
            problem = "several sessions match" if chosen else "there is no session"
            raise ToolError(f"{problem} {session!r}; sessions: {known}")
        return chosen

    def seen(self) -> list[SeenSession]:
        """All sessions, also those without a host agent, with the answers of the agents."""
        seen = snapshot_sessions(self.bases, ANSWER_S)
        if not self.names:
            return seen
        every = [one.session for one in seen]
        chosen = {one.directory for name in self.names for one in named(name, every)}
        return [one for one in seen if one.session.directory in chosen]


@dataclass(frozen=True)
class Tool:
    """A tool. `arguments.__doc__` is its description; `acts`: it changes something."""

    name: str
    title: str
    run: Callable[[Scope, Any], Answer]
    arguments: type[schema.Arguments]
    answer: type[msgspec.Struct]
    acts: bool = False

    @property
    def description(self) -> str:
        """What an AI agent reads about the tool."""
        return " ".join((self.arguments.__doc__ or "").split())


# --- tools that read ------------------------------------------------------------------------------


def list_sessions(scope: Scope, _wanted: schema.ListSessions) -> Answer:
    """The sessions, with the states of their ranks."""
    seen = scope.seen()
    data = schema.Sessions([_session_summary(one) for one in seen])
    parts = [
        "\n".join([*ps.head_lines(one), *(mesh_text(mesh) for mesh in summary.meshes)])
        for one, summary in zip(seen, data.sessions, strict=True)
    ]
    return Answer("\n\n".join(parts) or NOTHING, data)


def _session_summary(seen: SeenSession) -> schema.SessionSummary:
    session, client, kept = seen.session, seen.session.client, seen.session.kept
    return schema.SessionSummary(
        session.name, seen.state, seen.problem, round(session.age_s, 3),
        None if kept is None else kept.name, None if client is None else client.pid,
        None if client is None else client.program or client.node,
        [mesh_summary(mesh) for mesh in seen.meshes],
    )  # fmt: skip


def mesh_summary(mesh: MeshState) -> schema.MeshSummary:
    """How many ranks of a mesh are in each state, and the first failures."""
    extent = Extent(mesh.labels, mesh.sizes)
    failed = [
        schema.FailedRank(mesh.name + at_text(dict(extent.point_of_rank(one.rank))), one.failure)
        for one in mesh.ranks
        if one.failure
    ]
    states = Counter(one.state for one in mesh.ranks)
    return schema.MeshSummary(
        mesh.name, dict(zip(mesh.labels, mesh.sizes, strict=True)), round(mesh.age_s, 3),
        dict(states), failed[:MOST_FAILED],
    )  # fmt: skip


def mesh_text(mesh: schema.MeshSummary) -> str:
    """The same, for people and models."""
    sizes = ", ".join(f"{dim}={size}" for dim, size in mesh.sizes.items())
    states = ", ".join(f"{count} {state}" for state, count in mesh.states.items())
    lines = [f"  {mesh.name} ({sizes}): {states}"]
    lines += [f"    {one.where}: {one.failure}" for one in mesh.failed]
    more = mesh.states.get("failed", 0) - len(mesh.failed)
    return "\n".join([*lines, *([f"    and {more} more"] if more > 0 else [])])


def explain(scope: Scope, wanted: schema.Explain) -> Answer:
    """The case file."""
    live = scope.live(wanted.session)
    reader = ClusterReader(lambda: live)
    case = case_from(
        lambda needs, seconds: reader.collect(dict(needs), seconds), None, wanted.stacks
    )
    return Answer(str(case) if live else NOTHING, case)


def read_stacks(scope: Scope, wanted: schema.ReadStacks) -> Answer:
    """The stacks of ranks, grouped."""
    try:
        reading = stacks.read(
            scope.live(), STACKS_S, wanted.where, full=wanted.full, idle=wanted.idle
        )
    except BadSelectionError as error:
        raise ToolError(str(error)) from None
    groups = [
        schema.EqualStacks(session.name, mesh.name, group.ranks, group.what, threads_of(group))
        for session, meshes in reading.found
        for mesh in meshes
        for group in mesh.groups
    ]
    text = "\n\n".join(filter(None, [str(reading), *reading.complaints])) or NOTHING
    return Answer(text, schema.Stacks(groups, reading.complaints))


def read_logs(scope: Scope, wanted: schema.ReadLogs) -> Answer:
    """The last lines of ranks."""
    try:
        pattern = re.compile(wanted.grep)
        reader = logs.open_reader(scope.live(), wanted.where, pattern, ANSWER_S)
    except re.error as error:
        raise ToolError(f"{wanted.grep!r} is not a regular expression: {error}") from None
    except BadSelectionError as error:
        raise ToolError(str(error)) from None
    several = len(reader.sources) > 1
    found, complaints = reader.read_new(wanted.tail)
    text = [one.text(several=several) for one in found]
    data = [
        schema.LogLine(
            line.session, where, line.rank, line.stream, line.timestamp_us, line.text
        )
        for line, _, where in found
    ]  # fmt: skip
    return Answer("\n".join([*text, *complaints]) or "no lines", schema.LogLines(data, complaints))


def query(scope: Scope, wanted: schema.Query) -> Answer:
    """The rows of a query."""
    live = scope.live(wanted.session)
    reader = ClusterReader(lambda: live)
    try:
        found = run_query(
            wanted.sql, None, lambda needs, seconds: reader.collect(dict(needs), seconds),
            MOST_ROWS, QUERY_S,
        )  # fmt: skip
    except (QueryError, QueryTimeoutError) as error:
        raise ToolError(str(error)) from None
    lines = [*table_lines(found, wanted.limit), *found.missing_lines, *found.dropped_lines]
    data = schema.Rows(
        list(found.columns), list(found.types),
        [list(row) for row in found.rows[: wanted.limit]], len(found.rows),
        [Missing(one.table, one.where, one.reason) for one in found.missing],
        [Dropped(**asdict(one)) for one in found.dropped], list(found.not_kept),
    )  # fmt: skip
    return Answer("\n".join(lines), data)


def sample_stacks(scope: Scope, wanted: schema.SampleStacks) -> Answer:
    """The functions with the most samples."""
    asked = flame.Wanted(
        wanted.where, wanted.seconds, wanted.rate, "", threads=False, native=wanted.native,
        nonblocking=False,
    )  # fmt: skip
    try:
        graph, complaints = flame.sample(scope.live(), asked)
    except (ValueError, BadSelectionError) as error:
        raise ToolError(str(error)) from None
    if graph is None:
        raise ToolError("\n".join(complaints) or "there are no ranks to sample")
    folded = sorted(graph.folded().splitlines(), key=_count, reverse=True)[:MOST_FOLDED]
    missing = [*graph.unread, *complaints]
    data = schema.Samples(wanted.seconds, graph.samples, folded, missing)
    return Answer("\n".join([str(graph), *missing]), data)


def _count(folded: str) -> int:
    return int(folded.rpartition(" ")[2])


# --- tools that act -------------------------------------------------------------------------------


def kill_rank(scope: Scope, wanted: schema.KillRank) -> Answer:
    """Kill the process of one rank."""
    try:
        selected = select(scope.live(), wanted.where) if wanted.where else []
    except BadSelectionError as error:
        raise ToolError(str(error)) from None
    found = [
        (session, mesh, rank) for session, meshes in selected for mesh, ranks in meshes
        for rank in ranks
    ]  # fmt: skip
    if len(found) != 1:
        raise ToolError(
            f"{wanted.where!r} is not one rank; name it by the coordinates of all dims, as in "
            "workers[gpus=3], in a mesh whose name no other session has"
        )
    session, mesh, rank = found[0]
    (answer,) = ask_agents([session.directory], ANSWER_S)
    ranks = [
        one
        for state in (answer.meshes if isinstance(answer, Snapshotted) else [])
        if state.mesh == mesh
        for one in state.ranks
        if one.rank == rank
    ]
    if not ranks or not ranks[0].pid:
        raise ToolError(f"{wanted.where} has no process")
    if ranks[0].failure:
        raise ToolError(f"{wanted.where} has failed already: {ranks[0].failure}")
    try:
        kill_proc(session, ranks[0].pid)
    except ActionRefusedError as refused:
        raise ToolError(str(refused)) from None
    return _outcome([f"killed process {ranks[0].pid} of {wanted.where}"])


def kill_session(scope: Scope, wanted: schema.KillSession) -> Answer:
    """End a session in order."""
    (session,) = scope.live(wanted.session)
    try:
        done = stop_session(session, STOP_S)
    except ActionRefusedError as refused:
        raise ToolError(str(refused)) from None
    return _outcome(done)


def _outcome(done: Sequence[str]) -> Answer:
    return Answer("\n".join(done), schema.Outcome(list(done)))


TOOLS = (
    Tool("list_sessions", "List sessions", list_sessions, schema.ListSessions, schema.Sessions),
    Tool("explain", "Explain a hang or failure", explain, schema.Explain, CaseFile),
    Tool("read_stacks", "Read stacks", read_stacks, schema.ReadStacks, schema.Stacks),
    Tool("read_logs", "Read lines of ranks", read_logs, schema.ReadLogs, schema.LogLines),
    Tool("query", "Query the live state", query, schema.Query, schema.Rows),
    Tool(
        "sample_stacks", "Sample stacks", sample_stacks, schema.SampleStacks, schema.Samples
    ),
    Tool("kill_rank", "Kill a rank", kill_rank, schema.KillRank, schema.Outcome, acts=True),
    Tool(
        "kill_session", "End a session", kill_session, schema.KillSession, schema.Outcome,
        acts=True,
    ),
)  # fmt: skip
