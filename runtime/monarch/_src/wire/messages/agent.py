"""Messages between an owner of meshes, such as a client, and a host agent about procs."""

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
    """When a proc that dies is restarted; see `host.state.restarts`. Times are in seconds.

    `most` is 0 until SetRestarts: no proc is restarted before it.
    """

    most: int
    within_s: float
    first_s: float
    factor: float
    longest_s: float
    jitter: float
    seed: int


class Imports(msgspec.Struct, frozen=True):
    """The modules that a client has imported of the libraries that procs are forked with.

    `modules` are in the order in which the client imported them. Its program names those in
    `needed`, a part of `modules`: a mesh waits until they are imported. `env` has the client's
    changes to the agent's environment (None: removed), `path` its import path.
    """

    modules: list[str]
    needed: list[str]
    path: list[str]
    env: dict[str, str | None]


class HostsPlace(msgspec.Struct, frozen=True):
    """The hosts of a proc mesh: a host mesh, and the ranks of it that the proc mesh is on.

    `uid` is the same for all handles of the same hosts. `name` is empty without a name. `count` is
    the number of hosts of the host mesh; the other fields are the region of the ranks.
    """

    uid: int
    name: str
    count: int
    labels: list[str]
    offset: int
    sizes: list[int]
    strides: list[int]


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
    env: list[dict[str, str | None]]  # None removes a variable
    cwd: str
    path: list[str]
    preload: list[str]
    startup_s: float
    cleanup_s: float
    commands: list[Command | None] = []  # None: fork from the zygote
    affinity: list[list[int]] = []  # numbers of cpus; empty: any
    bootstrap: bool = False  # each proc gets a Bootstrap, and starts no actor before it has run
    restart: RestartRule | None = None  # for procs that die
    while_restarting: str = ""  # "wait" or "raise", with a rule
    keep: bool = False  # it outlives its owner, a client that keeps its session
    # For a mesh on several hosts: all hosts, in the order of ranks; the first rank of the receiver,
    # and how many ranks it has. `env`, `commands` and `affinity` are those of these ranks.
    sites: list[str] = []
    first: int = 0
    count: int = 0  # 0: all ranks
    devices: bool = False  # give each rank a CUDA device of its own, if there are enough
    imports: Imports | None = None  # fork from a zygote with these modules, if it suits the mesh
    hosts: HostsPlace | None = None  # None: the host of `owner`, as `this_host()` stands for it

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
    """Notify the sender when that node's process ends; answered at once if it has ended.

    `place`: the node stands for the present process of that rank; answered by ProcLife.
    """

    node: str
    owner: str = ""  # of the node's mesh, if the sender knows it
    place: bool = False


class Snapshot(Message, tag=13):
    """Report on these meshes (none: all); answered by Snapshotted."""

    request: int
    meshes: list[int]


class WantOutput(Message, tag=14):
    """Start or stop sending the output of the ranks of the sender's meshes."""

    wanted: bool


class FlushOutput(Message, tag=15):
    """Read every pipe empty, send the output, then answer OutputFlushed."""

    request: int


class Shutdown(Message, tag=16):
    """End all processes of this agent, then the agent."""

    reason: str


class GaveUp(Message, tag=17):
    """A proc of a mesh with a RestartRule ends, because an actor of it has failed."""

    failure: RankFailure


class KeepSockets(Message, tag=18):
    """Connect to the Unix socket at `path`, where the sending proc passes sockets to keep."""

    path: str


class SetRestarts(Message, tag=88):
    """The rule of a mesh that was spawned with one is this from now on; answered by RestartsSet."""

    request: int
    mesh: int
    rule: RestartRule


class RestartRanks(Message, tag=90):
    """Start these ranks of a mesh again, after the end of those that live; see RanksRestarting.

    `grace_s`: how many seconds a living process has for clean-up before it is killed.
    """

    request: int
    mesh: int
    ranks: list[int]
    grace_s: float


# --- a host agent to a client or an owner -------------------------------------------------------


class ProcEnded(Message, tag=20):
    """A process has ended. `expected`: it was asked to.

    `next_life`: the incarnation in which it is restarted; 0: it is not. `failure`: of the actor
    that ended it. `earlier`: the earlier deaths that count towards the restart limit that it has
    reached.
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
    """The present process of that rank, and whether it is up. Also sent after a restart."""

    mesh: int
    rank: int
    life: int
    up: bool


class RestartsSet(Message, tag=89):
    """The answer to SetRestarts; `problem`: why the rule stays as it was."""

    request: int
    problem: str = ""


class RanksRestarting(Message, tag=91):
    """The answer to RestartRanks: pairs of a rank and its next incarnation.

    A rank that was being started already has its present incarnation there. `problem`: why the
    agent has restarted none.
    """

    request: int
    lives: list[tuple[int, int]]
    problem: str = ""


class MeshStopped(Message, tag=21):
    """All processes of a mesh are gone."""

    mesh: int


class RankState(Message, tag=22):
    """One proc in a snapshot; for a paused one also its function, file and line.

    `cpu_s`: processor time of all its threads; below 0: unknown. `gpu_bytes`, `gpu_percent`: memory
    on NVIDIA devices, and how busy it keeps them; below 0: it uses none, or that is not known.
    """

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
    cpu_s: float = -1.0
    gpu_bytes: int = -1
    gpu_percent: int = -1


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
    ending: bool = False  # the agent is ending, with all these procs
    importing: str = ""  # the module that a zygote imports now, for procs to come
    given_up: dict[str, str] = {}  # modules that no zygote of this host imports any more, and why


class OutputLines(Message, tag=25):
    """Lines of one rank: pairs of stream (1 stdout, 2 stderr) and text, which may contain marks.

    Streams 3 and 4: the present text of a line of stdout or stderr that the rank writes over; 7 and
    8: the same, and the rank has answered since; 5 and 6: the beginning of a line that has not
    ended yet.
    """

    mesh: int
    rank: int
    lines: list[tuple[int, str]]


class OutputFlushed(Message, tag=26):
    """The answer to FlushOutput."""

    request: int


class ImportAhead(Message, tag=208):
    """Import these modules in a zygote, for meshes to come."""

    imports: Imports
