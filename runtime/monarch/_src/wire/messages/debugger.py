"""Breakpoints: what a paused thread tells, and what people at a console ask of it.

Consoles talk to host agents only, and so do procs: the agent knows who may.
"""

import msgspec

from monarch._src.wire.messages.base import Message

# States of a session, in Debugged and DebuggerAnswered.
STOPPED, STEPPING, RUNNING, ENDED = 0, 1, 2, 3
# What a console asks for. KEEP and DROP: the frames of endpoints that fail.
ATTACH, RELEASE, COMMAND, COMPLETE, SOURCE, BREAK, KEEP, DROP = range(8)
IN_EDITOR = "debugger"  # `PausedAt.why` of a thread that stands in the debugger of a bridge


class PausedAt(msgspec.Struct, array_like=True, frozen=True):
    """Where a thread of a proc stands, and for whom.

    `labels`, `sizes` and `rank` are those of the mesh that the actor was spawned in; without an
    actor there are none. `thread` is empty for the one that runs endpoints. `why`: `breakpoint`,
    `step`, `break`, `debugger` (see IN_EDITOR), or what was raised.
    """

    actor: str
    actor_class: str
    endpoint: str
    labels: list[str]
    sizes: list[int]
    rank: int
    function: str
    filename: str
    line: int
    code: str
    thread: str
    why: str


class Debugged(Message, tag=140):
    """A thread has stopped, answers a command, or runs on; `session` is new with its first stop.

    STOPPED: it stands at `at` (None: where it did). STEPPING: it runs, and the command is answered
    when it stops again. RUNNING: it runs, and may stop again. ENDED: it runs, and this was all.
    `text` is what was written since the last one of these, `prompt` what is asked for next.
    """

    session: int
    state: int
    text: str
    prompt: str
    at: PausedAt | None


class DebugCommand(Message, tag=141):
    """Do that in a session that is stopped: COMMAND, COMPLETE or SOURCE."""

    session: int
    what: int
    text: str


class KeepFailures(Message, tag=142):
    """Pause where an endpoint has failed, before it is answered; or no more."""

    on: bool


class BreakIn(Message, tag=143):
    """Pause what runs. Answered by BrokeIn, and if that is possible by Debugged."""

    request: int


class BrokeIn(Message, tag=144):
    """What came of BreakIn: how many threads will pause, and why others will not."""

    request: int
    threads: int
    problem: str


class ListPaused(Message, tag=145):
    """Say what is paused, of these ranks (none: all) of these meshes (none: all)."""

    request: int
    meshes: list[tuple[int, list[int]]]


class PausedRank(msgspec.Struct, array_like=True):
    """One session. `holder`: the console that has attached to it; `state`: as in Debugged."""

    rank: int
    session: int
    state: int
    since_s: float
    holder: str
    commanded: bool
    at: PausedAt


class PausedMesh(msgspec.Struct, array_like=True):
    """The sessions on one mesh of procs."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    ranks: list[PausedRank]


class PausedListed(Message, tag=146):
    """The answer to ListPaused. `keeps`: failing endpoints are paused."""

    request: int
    meshes: list[PausedMesh]
    keeps: bool


class AskDebugger(Message, tag=147):
    """Of each of these sessions (mesh, rank, session): that. Answered by one DebuggerAnswered each.

    BREAK is for ranks, session 0; KEEP and DROP for all, without targets, answered once. `take`:
    also from a console that has attached.
    """

    request: int
    what: int
    targets: list[tuple[int, int, int]]
    text: str
    take: bool


class DebuggerAnswered(Message, tag=148):
    """What came of an AskDebugger at one target; `problem`: why nothing was done."""

    request: int
    mesh: int
    rank: int
    session: int
    state: int
    text: str
    prompt: str
    at: PausedAt | None
    problem: str


class RankPaused(Message, tag=149):
    """A rank is paused, or no more, for those that watch it: deadlines stand still meanwhile."""

    mesh: int
    rank: int
    session: int
    paused: bool
    at: PausedAt | None
