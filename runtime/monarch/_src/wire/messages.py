"""Every message that travels between processes, as one typed table. No I/O.

A message is a MessagePack array: its tag, then its fields in the order written here. Nothing in a
header is ever unpickled; what users pass (arguments, results, exceptions) travels beside it as a
payload (`wire.frames`). Adding a field at the end with a default keeps the protocol version;
anything else raises `PROTOCOL`.

Ids: a *node* is one process that takes part, named by a short text that is also its ZeroMQ routing
id (`agent`, `client-1f0c...`, `<mesh>.<rank>`). A *mesh* or an *actor* mesh is a 63-bit number that
its creator chose: 31 random bits of the creator's incarnation, then a counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import msgspec

from monarch._src.errors import Death, RankFailure

PROTOCOL = 1


class Message(msgspec.Struct, array_like=True, gc=False, tag=0):
    """Base of all messages."""

    # Whether a payload (pickled user data) travels with it.
    carries_payload: ClassVar[bool] = False


class Hello(Message, tag=1):
    """The first message on every link: who speaks, and in which versions."""

    protocol: int
    node: str
    kind: str  # "client", "agent", "proc" or "observer"
    pid: int
    address: str
    versions: dict[str, str]
    mesh: int = 0
    rank: int = -1


class Refused(Message, tag=2):
    """The answer to a Hello that can't be worked with; `why` is a table of both sides."""

    why: str


# --- a client or an owner to a host agent -------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """What is executed in place of a fork; in the end it has to run `monarch._src.proc.executed`.

    `program` is a path. A None in `env` removes the variable; without `inherit_env` the environment
    begins empty.
    """

    program: str
    arg0: str | None
    args: list[str]
    env: dict[str, str | None]
    inherit_env: bool


class SpawnProcs(Message, tag=10):
    """Start `count` procs for a new mesh. They say hello to the agent and to `owner`.

    `env`, `commands` and `affinity` have one entry for all ranks, or one a rank, or none.
    """

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    owner: str
    owner_address: str
    env: list[dict[str, str]]
    cwd: str
    path: list[str]
    preload: list[str]
    startup_s: float
    cleanup_s: float
    commands: list[Command | None] = []  # None: fork from the zygote
    affinity: list[list[int]] = []  # numbers of cpus; empty: any
    bootstrap: bool = False  # each proc is sent a Bootstrap, and makes no actor before it has run


class StopMesh(Message, tag=11):
    """End all procs of a mesh; answered by MeshStopped when every pid is gone."""

    mesh: int
    reason: str
    grace_s: float


class Watch(Message, tag=12):
    """Tell me when that node's process ends; answered at once if it already has."""

    node: str
    owner: str = ""  # whose mesh it is of, as far as the sender knows


class Snapshot(Message, tag=13):
    """Report on these meshes (none: all); answered by Snapshotted."""

    request: int
    meshes: list[int]


class WantOutput(Message, tag=14):
    """Send me what the ranks of the meshes I own write, from now on (or stop)."""

    wanted: bool


class FlushOutput(Message, tag=15):
    """Read every pipe empty, send what was there, then answer OutputFlushed."""

    request: int


class Shutdown(Message, tag=16):
    """End everything this agent owns, then the agent."""

    reason: str


# --- a host agent to a client or an owner -------------------------------------------------------


class ProcEnded(Message, tag=20):
    """A process is gone. `expected` when somebody had asked for it."""

    node: str
    mesh: int
    rank: int
    pid: int
    expected: bool
    kind: str
    death: Death


class MeshStopped(Message, tag=21):
    """All processes of a mesh are gone."""

    mesh: int


class RankState(Message, tag=22):
    """One proc in a snapshot."""

    rank: int
    pid: int
    state: str
    actor: str
    endpoint: str
    since_s: float
    messages: int
    rss_bytes: int
    failure: str
    errors: int = 0
    busy_s: float = 0.0


class MeshState(Message, tag=23):
    """One mesh in a snapshot."""

    mesh: int
    state: str
    age_s: float
    ranks: list[RankState]
    name: str = ""
    labels: list[str] = []
    sizes: list[int] = []
    owner: str = ""


class Snapshotted(Message, tag=24):
    """The answer to Snapshot."""

    request: int
    meshes: list[MeshState]
    ending: bool = False  # the agent ends, and all of these with it


class OutputLines(Message, tag=25):
    """Lines of one rank: pairs of stream (1 stdout, 2 stderr) and text."""

    mesh: int
    rank: int
    lines: list[tuple[int, str]]


class OutputFlushed(Message, tag=26):
    """The answer to FlushOutput."""

    request: int


# --- between actors -----------------------------------------------------------------------------

# `after`: the cast of the same sender that must have come before; see `core.order`.
# `relayed`: it came as a cast, whose answers are gathered. Its receiver says so to itself.


class Creator(msgspec.Struct, array_like=True, frozen=True):
    """An actor that asks for another one, or had asked for the one that does."""

    node: str
    actor: int
    name: str
    class_name: str
    rank: int
    labels: list[str]
    sizes: list[int]
    mesh: int  # the procs it lives on
    mesh_name: str
    mesh_labels: list[str]
    mesh_sizes: list[int]
    mesh_owner: str


class SpawnActor(Message, tag=30):
    """Make an actor in this proc. Payload: (class, args, kwargs)."""

    carries_payload: ClassVar[bool] = True
    actor: int
    name: str
    class_name: str
    mesh: int
    mesh_name: str
    rank: int
    labels: list[str]
    sizes: list[int]
    creator: str  # is told of its failure; "" for a controller, which belongs to nobody
    if_absent: bool = False  # ignore this if there is a living actor of that uid
    after: int = 0
    made_by: list[Creator] = []  # the actors above it, the next first; none: the client, or nobody


class StopActor(Message, tag=31):
    """Stop an actor after the messages it has, clean up, then answer `call` with OK."""

    actor: int
    call: int
    rank: int
    reason: str
    after: int = 0
    relayed: bool = False


class StopProc(Message, tag=32):
    """Stop every actor of this proc, clean up, end the process with status 0."""

    reason: str
    grace_s: float
    rank: int = 0
    after: int = 0


class Call(Message, tag=33):
    """Run an endpoint. `call` 0: nobody waits. Payload: (args, kwargs).

    The answer goes to the sender, or to `reply_to`, which listens at `reply_address`. `by_port`:
    the endpoint is given a port to answer through, and its return value is dropped.
    """

    carries_payload: ClassVar[bool] = True
    actor: int
    call: int
    endpoint: str
    rank: int  # place in the slice that was called
    labels: list[str]
    sizes: list[int]
    by_port: bool = False
    reply_to: str = ""
    reply_address: str = ""
    after: int = 0
    relayed: bool = False


class Reply(Message, tag=34):
    """The answer of one rank to a call, or a message to the port of that number.

    Payload: the value (OK), a failure (RAISED, DIED), or a pickled exception (THROWN).
    """

    carries_payload: ClassVar[bool] = True
    call: int
    rank: int
    status: int


class ActorFailed(Message, tag=35):
    """An actor died with nobody to answer to; goes to the node that spawned it."""

    actor: int
    rank: int
    failure: RankFailure


class Probe(Message, tag=36):
    """Passed along from actor to actor that each wait for the next; see `core.waiting`."""

    actor: int  # to which it is addressed
    node: str
    initiator: int
    call: int
    path: list[str]  # who waits for the next, in words


class Bootstrap(Message, tag=37):
    """Run this function before any actor; answered by Bootstrapped. Payload: the function."""

    carries_payload: ClassVar[bool] = True


class Bootstrapped(Message, tag=38):
    """The bootstrap function of a proc has ended; `failure` if it raised."""

    mesh: int
    rank: int
    failure: RankFailure | None = None


# --- casts: one message to many ranks, relayed by their host agent ------------------------------


class Cast(Message, tag=40):
    """A message for every rank of a region; the agent passes it on, each receiver fills in `rank`.

    `number` counts the casts of the sender to that mesh; `fences` names the ranks for which so many
    direct messages come before it (see `core.order`). If `call` is not 0 the agent gathers the
    answers, merged; with `each`, as they come.
    """

    carries_payload: ClassVar[bool] = True
    sender: str
    address: str
    owner: str  # whose mesh it is
    mesh: int
    number: int
    region: tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, sizes, strides
    fences: list[tuple[int, int]]
    call: int
    each: bool
    message: Call | SpawnActor | StopActor | StopProc


class Answer(Message, tag=41):
    """The answer of one rank to a cast, to who gathers them. Payload as of a Reply.

    `to` made the call; `position` is the rank's place in the region. Status ELSEWHERE: the rank has
    answered the caller itself.
    """

    carries_payload: ClassVar[bool] = True
    to: str
    call: int
    position: int
    status: int


AnswerRun: TypeAlias = tuple[int, int, int, int]  # first position, count, status, bytes


class Answers(Message, tag=42):
    """Answers to a cast, those of neighbours that are equal once. Payload: theirs, end to end."""

    carries_payload: ClassVar[bool] = True
    call: int
    runs: list[AnswerRun]


# --- questions ----------------------------------------------------------------------------------


class ReadMetrics(Message, tag=50):
    """Say what you have counted; answered by Reply, with `wire.figures` as its payload."""

    call: int
    rank: int


OK, RAISED, DIED, THROWN, ELSEWHERE = 0, 1, 2, 3, 4

# All and only the messages that may arrive as the head of a frame.
AnyMessage = (
    Hello | Refused | SpawnProcs | StopMesh | Watch | Snapshot | WantOutput | FlushOutput | Shutdown
    | ProcEnded | MeshStopped | Snapshotted | OutputLines | OutputFlushed | SpawnActor | StopActor
    | StopProc | Call | Reply | ActorFailed | Probe | Bootstrap | Bootstrapped | Cast | Answer
    | Answers | ReadMetrics
)  # fmt: skip
