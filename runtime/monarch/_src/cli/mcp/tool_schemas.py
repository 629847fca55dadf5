"""The arguments and answers of the tools, and their JSON Schemas. No I/O.

The docstring of a class of arguments is what an AI agent reads about the tool.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from monarch._src.admin.state.nodes import Missing
from monarch._src.admin.state.openapi import Dropped, Thread
from monarch._src.observe.flame_graph.state.samples import MOST_RATE

Schema: TypeAlias = "dict[str, Any]"
MOST_LINES = 2000
MOST_ROWS = 10_000
MOST_SECONDS = 60
_TEMPLATE = "#/$defs/{name}"

Session: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="one session: its name in list_sessions, or its first letters; empty: all"
    ),
]
Where: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="a session, a mesh or a slice of a mesh, such as `workers`, `workers[gpus=3]` "
        "or `workers[hosts=0, gpus=0:4]`; empty: all ranks of all sessions"
    ),
]


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of a tool."""

    @property
    def target(self) -> str:
        """The session or ranks of a tool that acts."""
        return ""


class ListSessions(Arguments):
    """List sessions: programs that run actors, with their meshes and how many ranks are in which
    state. Failed ranks are named with the reason. Begin here."""


class Explain(Arguments):
    """Say why a program hangs, or what failed first. Read `verdict` first. Also tells which process
    waits for which, whose stack differs from the others, the last lines of the processes
    concerned, and SQL that shows more."""

    session: Session = ""
    stacks: Annotated[
        bool, msgspec.Meta(description="read stacks too, with py-spy: a rank pauses for some 30 ms")
    ] = True


class ReadStacks(Arguments):
    """Read where ranks are in the program now, equal stacks together. Of a hang, read twice, some
    seconds apart: a rank at the same line both times is stuck there."""

    where: Where = ""
    full: Annotated[
        bool, msgspec.Meta(description="all threads, with the frames of the runtime")
    ] = False
    idle: Annotated[bool, msgspec.Meta(description="ranks that run nothing, too")] = False


class ReadLogs(Arguments):
    """Read the last lines that ranks have written to stdout and stderr, also of ended meshes."""

    where: Where = ""
    tail: Annotated[int, msgspec.Meta(ge=1, le=MOST_LINES, description="how many lines")] = 100
    grep: Annotated[
        str, msgspec.Meta(description="a regular expression of Python that lines match")
    ] = ""


class Query(Arguments):
    """Run SQL over the live state: tables `procs`, `calls`, `endpoints`, `log_lines`, `frames`,
    `attributes`, `spans` and more. `SHOW TABLES` lists them, `DESCRIBE procs` the columns of one.
    The dialect is DuckDB's; SELECT, SHOW, DESCRIBE and SUMMARIZE run."""

    sql: str
    session: Session = ""
    limit: Annotated[
        int, msgspec.Meta(ge=1, le=MOST_ROWS, description="how many rows to return")
    ] = 200


class SampleStacks(Arguments):
    """Sample the stacks of ranks for some seconds: the functions in which they spend their time,
    and the ranks that differ from the others in them."""

    where: Where = ""
    seconds: Annotated[
        int, msgspec.Meta(ge=1, le=MOST_SECONDS, description="how long, in seconds")
    ] = 5
    rate: Annotated[
        int, msgspec.Meta(ge=1, le=MOST_RATE, description="samples of each rank in a second")
    ] = 100
    native: Annotated[
        bool, msgspec.Meta(description="include functions of C and C++ libraries")
    ] = False


class KillRank(Arguments):
    """Kill the process of one rank with SIGKILL. Its program is told of the death, and may restart
    the rank. Ask the user before."""

    where: Annotated[str, msgspec.Meta(description="one rank, such as `workers[gpus=3]`")]

    @property
    def target(self) -> str:
        return self.where


class KillSession(Arguments):
    """End a session: its actors clean up, then its processes end. The client lives on. Ask the user
    before."""

    session: Annotated[
        str, msgspec.Meta(min_length=1, description="its name in list_sessions, or first letters")
    ]

    @property
    def target(self) -> str:
        return self.session


# --- answers --------------------------------------------------------------------------------------


class FailedRank(msgspec.Struct):
    """A rank that has failed, and why."""

    where: str
    failure: str


class MeshSummary(msgspec.Struct):
    """A mesh of processes. `states`: how many ranks are in each state.

    `failed` has the first 20 of the ranks that have failed.
    """

    name: str
    sizes: dict[str, int]
    age_s: float
    states: dict[str, int]
    failed: list[FailedRank]


class SessionSummary(msgspec.Struct):
    """A session. `problem`: what is wrong with it, and the remedy. Unknown values are null."""

    session: str
    state: str
    problem: str | None
    age_s: float
    kept_as: str | None
    client_pid: int | None
    program: str | None
    meshes: list[MeshSummary]


class Sessions(msgspec.Struct):
    """The sessions of this user on this machine, oldest first."""

    sessions: list[SessionSummary]


class EqualStacks(msgspec.Struct):
    """Ranks of one mesh whose stacks are equal; `activity` says in words what they do."""

    session: str
    mesh: str
    ranks: list[int]
    activity: str
    threads: list[Thread]


class Stacks(msgspec.Struct):
    """Stacks of ranks, those of most ranks first. `missing`: why others could not be read."""

    groups: list[EqualStacks]
    missing: list[str]


class LogLine(msgspec.Struct):
    """A line that a rank has written. `timestamp_us`: microseconds since 1970."""

    session: str
    where: str
    rank: int
    stream: str
    timestamp_us: int
    text: str


class LogLines(msgspec.Struct):
    """Lines, oldest first. `missing`: why those of some sessions are not there."""

    lines: list[LogLine]
    missing: list[str]


class Rows(msgspec.Struct):
    """The rows of a query, at most `limit` of the `count` that there are.

    Partial if `missing` has entries. `dropped`: rows of the past that made room for newer ones.
    `not_kept`: tables of the past without rows, because no process keeps history.
    """

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    count: int
    missing: list[Missing]
    dropped: list[Dropped]
    not_kept: list[str]


class Samples(msgspec.Struct):
    """Sampled stacks. `folded`: lines `outermost;...;innermost count`, those with most first.

    `missing`: why some ranks were not sampled.
    """

    seconds: int
    samples: int
    folded: list[str]
    missing: list[str]


class Outcome(msgspec.Struct):
    """What was done, a line each."""

    done: list[str]


def schema_of(struct: type[msgspec.Struct]) -> Schema:
    """The JSON Schema of a struct, an object at its root, as the protocol wants it."""
    (_,), components = msgspec.json.schema_components([struct], ref_template=_TEMPLATE)
    found: Schema = components.pop(struct.__name__)
    return {**found, "$defs": components} if components else found
