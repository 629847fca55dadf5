"""Requests about the state of processes: metrics of endpoints, actors, stacks."""

import msgspec

from monarch._src.wire.messages.base import Message


class ReadMetrics(Message, tag=50):
    """Asks for metrics; answered by Reply, with `wire.metrics_codec` as its payload."""

    call: int
    rank: int


class ReadActors(Message, tag=195):
    """Asks for the live actors; answered by Reply, with `wire.actor_snapshot_codec`."""

    call: int
    rank: int


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

    `waits`: its innermost frame waits for an answer of another actor.
    """

    name: str
    waits: bool
    frames: tuple[StackFrame, ...]


class StackGroup(msgspec.Struct, array_like=True):
    """Ranks of one mesh with the same stacks; `what` describes them ("in all_reduce")."""

    what: str
    threads: tuple[ThreadStack, ...]
    ranks: list[int]


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


class StacksRead(Message, tag=81):
    """The answer to ReadStacks; `problem`: why no stack could be read."""

    request: int
    meshes: list[MeshStacks]
    problem: str = ""
