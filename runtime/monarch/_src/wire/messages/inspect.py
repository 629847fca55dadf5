"""Questions about what runs: figures of endpoints, actors, stacks."""

import msgspec

from monarch._src.wire.messages.base import Message


class ReadMetrics(Message, tag=50):
    """Say what you have counted; answered by Reply, with `wire.metrics_codec` as its payload."""

    call: int
    rank: int


class ReadActors(Message, tag=195):
    """Asks for the live actors; the Reply's payload is of `wire.actor_snapshot_codec`."""

    call: int
    rank: int


class SetLogLevel(Message, tag=175):
    """Log what is at least of that level, as `logging` counts; answered by Reply."""

    call: int
    rank: int
    level: int


class StackFrame(msgspec.Struct, array_like=True, frozen=True):
    """One line of Python that a thread was in. `name` is qualified where the interpreter knows."""

    name: str
    filename: str
    line: int


class ThreadStack(msgspec.Struct, array_like=True, frozen=True):
    """What one thread was in, outermost first. `name` is empty for the main thread.

    `waits`: its innermost frame waits for an answer of another actor.
    """

    name: str
    waits: bool
    frames: tuple[StackFrame, ...]


class StackGroup(msgspec.Struct, array_like=True):
    """Ranks of one mesh that were found in the same; `what` says it in words ("in all_reduce")."""

    what: str
    threads: tuple[ThreadStack, ...]
    ranks: list[int]


class MeshStacks(msgspec.Struct, array_like=True):
    """The ranks of one mesh, or those asked for, by what they were found in; most ranks first."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    groups: list[StackGroup]


class ReadStacks(Message, tag=80):
    """Look into these ranks (none: all), of these meshes (none: all); answered by StacksRead.

    `full`: with the frames of the runtime; `idle`: also into ranks that say that they are idle.
    """

    request: int
    meshes: list[tuple[int, list[int]]]
    full: bool
    idle: bool
    timeout_s: float


class StacksRead(Message, tag=81):
    """The answer to ReadStacks; `problem`: why none could be read."""

    request: int
    meshes: list[MeshStacks]
    problem: str = ""
