"""Between an owner of meshes, as a client is, and a host agent: procs and what becomes of them."""

import math

import msgspec

from monarch._src.failures.report import Death, RankFailure
from monarch._src.wire.messages.base import Message


class Command(msgspec.Struct, frozen=True):
    """A command in place of a fork; it ends in `python -m monarch._src.programs.executed_proc`.

    `program` is a path. A None in `env` removes the variable; without `inherit_env` the environment
    begins empty.
    """

    program: str
    arg0: str | None
    args: list[str]
    env: dict[str, str | None]
    inherit_env: bool


class RestartRule(msgspec.Struct, frozen=True):
    """When a proc that dies is started again; see `host.state.restarts`. Seconds."""

    most: int
    within_s: float
    first_s: float
    factor: float
    longest_s: float
    jitter: float
    seed: int


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
    env: list[dict[str, str | None]]  # a None removes
    cwd: str
    path: list[str]
    preload: list[str]
    startup_s: float
    cleanup_s: float
    commands: list[Command | None] = []  # None: fork from the zygote
    affinity: list[list[int]] = []  # numbers of cpus; empty: any
    bootstrap: bool = False  # each proc is sent a Bootstrap, and makes no actor before it has run
    restart: RestartRule | None = None  # procs that die are started again
    while_restarting: str = ""  # "wait" or "raise", if so
    keep: bool = False  # it outlives its owner, a client that keeps its session
    # Of a mesh on several hosts: all of them, in the order of ranks; the first rank that is for the
    # receiver, and how many. `env`, `commands` and `affinity` are those of these ranks.
    sites: list[str] = []
    first: int = 0
    count: int = 0  # 0: all ranks
    devices: bool = False  # each rank is to have a CUDA device of its own, if there are so many

    @property
    def ranks(self) -> int:
        """How many procs the whole mesh has."""
        return math.prod(self.sizes)


class StopMesh(Message, tag=11):
    """End all procs of a mesh; answered by MeshStopped when every pid is gone."""

    mesh: int
    reason: str
    grace_s: float


class Watch(Message, tag=12):
    """Tell me when that node's process ends; answered at once if it already has.

    `place`: the node stands for whatever process has that rank now; answered by ProcLife.
    """

    node: str
    owner: str = ""  # whose mesh it is of, as far as the sender knows
    place: bool = False


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


class GaveUp(Message, tag=17):
    """A proc of a mesh with a RestartRule ends, because an actor of it has failed."""

    failure: RankFailure


# --- a host agent to a client or an owner -------------------------------------------------------


class ProcEnded(Message, tag=20):
    """A process is gone. `expected` when somebody had asked for it.

    `next_life`: it is started again as that one; 0: it is not. `failure`: of the actor that it
    ended with. `earlier`: the ends that count for the limit of restarts which has been reached.
    """

    node: str
    mesh: int
    rank: int
    pid: int
    expected: bool
    kind: str
    death: Death
    next_life: int = 0
    failure: RankFailure | None = None
    earlier: list[Death] = []


class ProcLife(Message, tag=27):
    """Which process has that rank now; whether it is up. Also when one is up again."""

    mesh: int
    rank: int
    life: int
    up: bool


class MeshStopped(Message, tag=21):
    """All processes of a mesh are gone."""

    mesh: int


class RankState(Message, tag=22):
    """One proc in a snapshot; of a paused one also the function, file and line it stands in."""

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
    restarts: int = 0
    function: str = ""
    filename: str = ""
    line: int = 0


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
    """Lines of one rank: pairs of stream (1 stdout, 2 stderr) and text, which may hold marks.

    Streams 3 and 4: what a line of stdout or stderr shows that is still written over; 5 and 6: that
    is begun, and not ended yet.
    """

    mesh: int
    rank: int
    lines: list[tuple[int, str]]


class OutputFlushed(Message, tag=26):
    """The answer to FlushOutput."""

    request: int
