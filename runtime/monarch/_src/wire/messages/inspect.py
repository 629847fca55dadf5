"""Requests about the state of processes: metrics of endpoints, actors, stacks, tables of rows."""

import msgspec

from monarch._src.wire.messages.base import Message


class ReadMetrics(Message, tag=50):
    """Asks for metrics; answered by Reply, with `wire.process_codec` as its payload."""

    call: int
    rank: int


class ReadActors(Message, tag=195):
    """Asks for the live actors; answered by Reply, with `wire.process_codec`."""

    call: int
    rank: int


class ReadCalls(Message, tag=205):
    """Asks for the newest calls that ended after a time, and starts to record them.

    Answered by Reply, with `wire.process_codec`. `after_ns`: nanoseconds since 1970; `most`: calls
    in the answer, beside running ones.
    """

    call: int
    rank: int
    after_ns: int
    most: int


class SetLogLevel(Message, tag=175):
    """Set the lowest level that is logged, as in `logging`; answered by Reply."""

    call: int
    rank: int
    level: int


class StackFrame(msgspec.Struct, array_like=True, frozen=True):
    """One line of Python in a stack. `name` is qualified if the interpreter knows it."""

    name: str
    filename: str
    line: int


class ThreadStack(msgspec.Struct, array_like=True, frozen=True):
    """The stack of one thread, outermost frame first. `name` is empty for the main thread.

    `waits`: its innermost frame waits for an answer of another actor. `awaits`: what it waits for,
    in words, if it is known. The stack of an endpoint that awaits is on no thread: it `is_task`,
    and `name` is that of the endpoint.
    """

    name: str
    waits: bool
    frames: tuple[StackFrame, ...]
    awaits: str = ""
    is_task: bool = False


class StackGroup(msgspec.Struct, array_like=True):
    """Ranks of one mesh with the same stacks; `what` describes them ("in all_reduce").

    `for_s`: for each rank, how many seconds it has been busy or has awaited; empty if they are
    idle. `notes`: sentences about calls that are queued behind a wait. `waited_s`: for each thread,
    the seconds since the waits of the ranks began, as far as they are known.
    """

    what: str
    threads: tuple[ThreadStack, ...]
    ranks: list[int]
    for_s: list[float] = []
    notes: tuple[str, ...] = ()
    waited_s: list[list[float]] = []


class MeshStacks(msgspec.Struct, array_like=True):
    """The ranks of one mesh, or the requested ones, grouped by stacks; largest group first."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    groups: list[StackGroup]


class ReadStacks(Message, tag=80):
    """Read the stacks of these ranks (none: all), of these meshes (none: all).

    Answered by StacksRead. `full`: with frames of the runtime; `idle`: also of ranks that are idle.
    """

    request: int
    meshes: list[tuple[int, list[int]]]
    full: bool
    idle: bool
    timeout_s: float


class EndpointWait(msgspec.Struct, array_like=True):
    """A running endpoint that waits, as its own process sees it.

    `actor`: the class. `what`: what it waits for, in words; empty if it is not known to wait.
    `frames`: those of the user's coroutines; none if it blocks a `thread`, whose name this is (of
    the main thread: empty). `for_s`: the seconds since the endpoint began; `waited_s`: since the
    wait began, None if that is not known. `behind`: endpoints with queued calls, which begin only
    after this one; `queued`: the number of these calls. `is_local`: a message or another call of
    the same actor may have to end the wait.
    """

    actor: str
    endpoint: str
    for_s: float
    what: str
    frames: tuple[StackFrame, ...] = ()
    behind: list[str] = []
    is_local: bool = False
    queued: int = 0
    waited_s: float | None = None
    thread: str = ""


class ReadWaits(Message, tag=196):
    """An agent asks a proc which of its endpoints wait, and for what; answered by WaitsRead."""

    request: int


class WaitsRead(Message, tag=197):
    """The answer to ReadWaits."""

    request: int
    waits: list[EndpointWait]


class StacksRead(Message, tag=81):
    """The answer to ReadStacks; `problem`: why no stack could be read."""

    request: int
    meshes: list[MeshStacks]
    problem: str = ""


class SampledStack(msgspec.Struct, array_like=True):
    """A stack that was seen in samples. `frames`: indexes, outermost first; `counts`: by rank."""

    frames: list[int]
    counts: list[tuple[int, int]]


class MeshSamples(msgspec.Struct, array_like=True):
    """The samples of the ranks of one mesh that are on one host.

    `frames`: each frame once. `ranks`: those that were sampled. `unread`: ranks that were not, with
    the reason.
    """

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    frames: list[StackFrame]
    stacks: list[SampledStack]
    ranks: list[int]
    unread: list[tuple[int, str]]


class SampleStacks(Message, tag=206):
    """Read the stacks of these ranks (none: all) `rate` times a second, for some seconds.

    Answered by StacksSampled. `meshes`: none are all. `threads`: threads of the user's code too,
    beside those of actors. `native`: with frames of C and C++. `nonblocking`: without pausing the
    rank, so some samples may be torn.
    """

    request: int
    meshes: list[tuple[int, list[int]]]
    seconds: int
    rate: int
    threads: bool = False
    native: bool = False
    nonblocking: bool = False


class StacksSampled(Message, tag=207):
    """The answer to SampleStacks; `problem`: why no rank could be sampled."""

    request: int
    meshes: list[MeshSamples]
    problem: str = ""


class Condition(msgspec.Struct, array_like=True, frozen=True):
    """A column compared with a constant; with `in`, with several. NULL never matches."""

    column: str
    operator: str  # = != < <= > >= in
    values: list[int | float | str]


class ReadTable(Message, tag=85):
    """Send these columns of the rows of a table that meet all conditions; answered by TableRead.

    `limit`: the maximal number of rows; -1: no limit. `timeout_s`: how long an agent waits for
    ranks. With `patience_s` it waits so long for idle ranks, which a busy host delays, and
    `timeout_s` after the last answer for others; meanwhile it sends a TableRead each second that
    has `waiting` only. A process ignores all three.
    """

    request: int
    table: str
    columns: list[str]
    conditions: list[Condition]
    limit: int
    timeout_s: float
    patience_s: float = 0.0


class TableRead(Message, tag=86):
    """The answer to ReadTable: `count` rows, with `columns` in the form of `wire.table_codec`.

    `site`: that of the agent. `missing`: processes that are left out, each with the reason.
    `dropped`: rows that did not fit into the message. `problem`: why there are no rows. `waiting`:
    so many processes owe their rows to an agent, which will answer. `lost`: rows of the history
    that made room for newer ones: the process (empty: the sender), their number, and the time from
    which on no row is lost, in microseconds since 1970 (0: not known).
    """

    request: int
    site: str = ""
    count: int = 0
    columns: bytes = b""
    missing: list[tuple[str, str]] = []
    dropped: int = 0
    problem: str = ""
    waiting: int = 0
    lost: list[tuple[str, int, int]] = []


class SetHistory(Message, tag=87):
    """Keep history of calls, messages, spans and log records, at most `rows` of each kind.

    `retention_s` 0: keep none. To a host agent, which tells its processes and answers with an empty
    TableRead. `for_s`: only for that many seconds; negative: an earlier order for a time ends now.
    `torch`: also let torch's profiler run, where torch is imported. The order that ends it keeps
    its events.
    """

    request: int
    retention_s: float
    rows: int
    for_s: float = 0.0
    torch: bool = False
