"""Breakpoints: reports of paused threads, and commands of consoles.

Consoles and procs talk to host agents only: the agent knows the permissions of a console.

A bridge connects a debugger in a rank with a client of the Debug Adapter Protocol outside. The
bytes go from the rank to the host agent and on to the console that requested the bridge, and back
the same way. No process listens on a port for it.
"""

import msgspec

from monarch._src.wire.messages.base import Message

# States of a session, in Debugged and DebuggerAnswered.
STOPPED, STEPPING, RUNNING, ENDED = 0, 1, 2, 3
# Requests of a console. KEEP and DROP: the frames of endpoints that fail; KEEP_ALL: those of
# bystanders, too.
ATTACH, RELEASE, COMMAND, COMPLETE, SOURCE, BREAK, KEEP, DROP, KEEP_ALL = range(9)
IN_EDITOR = "debugger"  # `PausedAt.why` of a thread that stands in the debugger of a bridge


class PausedAt(msgspec.Struct, array_like=True, frozen=True):
    """The position of a paused thread, and its actor.

    `labels`, `sizes` and `rank` are those of the mesh that the actor was spawned in; without an
    actor they are empty. `thread` is empty for the thread that runs endpoints. `why`: `breakpoint`,
    `step`, `break`, `debugger` (see IN_EDITOR), or the exception.
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
    """A thread has paused, answers a command, or resumes; its first pause begins a `session`.

    STOPPED: it is paused at `at` (None: as before). STEPPING: it runs, and answers the command when
    it pauses again. RUNNING: it runs, and may pause again. ENDED: the session is over. `text` is
    the debugger's output since the last such message, `prompt` the next prompt.
    """

    session: int
    state: int
    text: str
    prompt: str
    at: PausedAt | None


class DebugCommand(Message, tag=141):
    """A request to a paused session: COMMAND, COMPLETE or SOURCE."""

    session: int
    what: int
    text: str


class KeepFailures(Message, tag=142):
    """Pause endpoints that fail, before they answer; or stop doing so.

    `bystanders`: also those whose collective has failed because another rank has left it.
    """

    on: bool
    bystanders: bool = False


class BreakIn(Message, tag=143):
    """Pause the running endpoints. Answered by BrokeIn, and by Debugged for each that pauses."""

    request: int


class BrokeIn(Message, tag=144):
    """The answer to BreakIn: how many threads will pause, and why others will not."""

    request: int
    threads: int
    problem: str


class ListPaused(Message, tag=145):
    """List the paused threads of these ranks (none: all) of these meshes (none: all)."""

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
    """A request to these sessions (mesh, rank, session); one DebuggerAnswered for each.

    BREAK is for ranks, session 0; KEEP, KEEP_ALL and DROP are for all, without targets, and
    answered once.
    `take`: take a session from the console that holds it.
    """

    request: int
    what: int
    targets: list[tuple[int, int, int]]
    text: str
    take: bool


class DebuggerAnswered(Message, tag=148):
    """The answer of one target to AskDebugger; `problem`: why the request failed."""

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
    """A rank is paused or has resumed; its watchers suspend their deadlines meanwhile."""

    mesh: int
    rank: int
    session: int
    paused: bool
    at: PausedAt | None


PIECE = 1 << 18  # bytes of the stream in one message, at most


class AskBridge(Message, tag=160):
    """Open a bridge to each of these (mesh, rank), or close it; one BridgeAnswered for each."""

    request: int
    targets: list[tuple[int, int]]
    opens: bool


class BridgeAnswered(Message, tag=161):
    """The result of an AskBridge at one rank: open, or closed; `problem`: why it failed."""

    request: int
    mesh: int
    rank: int
    bridge: int
    problem: str


class BridgeBytes(Message, tag=162):
    """A piece of the stream of a bridge, in either direction.

    `mesh` and `rank` are 0 if a rank sends it: the agent knows them.
    """

    mesh: int
    rank: int
    bridge: int
    data: bytes


class SetBridge(Message, tag=163):
    """Load the debugger and connect it, or disconnect it. Answered by BridgeSet."""

    bridge: int
    open: bool


class BridgeSet(Message, tag=164):
    """The debugger is connected, or no longer; `problem`: why it cannot be."""

    bridge: int
    open: bool
    problem: str


class BridgeClosed(Message, tag=165):
    """A bridge has ended, not by its console, for that reason."""

    mesh: int
    rank: int
    bridge: int
    why: str
