"""The stacks of ranks at this moment, grouped, with the odd ranks named.

Runs in: the client, any thread. The host agent runs py-spy, which reads ranks from outside, so it
works while a rank holds the GIL, computes in C or is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monarch._src.actor.endpoint import Actor
from monarch._src.errors import StacksError
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.client import current_session
from monarch._src.mesh.meshes import ProcMesh, owned_meshes
from monarch._src.mesh.selected_procs import procs_of
from monarch._src.observe.stacks.state import grouping as pure
from monarch._src.shape import Extent
from monarch._src.wire.messages import MeshStacks as MeshStacksMessage
from monarch._src.wire.messages import StackFrame as FrameMessage

ANSWER_S = 2.0  # added to the time for reading


@dataclass(frozen=True)
class StackFrame:
    """One line of Python. `name` is the function, qualified where the interpreter knows."""

    name: str
    filename: str
    line: int


@dataclass(frozen=True)
class ThreadStack:
    """One thread, outermost frame first. `name` is empty for the main thread.

    `waits`: its innermost frame waits for an answer of another actor. `awaits`: the object of its
    wait in words, such as that answer, a lock or a sleep, if it is known. An endpoint that awaits
    is on no thread: it `is_task`, with the frames of its coroutines and the name of the endpoint.
    """

    name: str
    waits: bool
    frames: tuple[StackFrame, ...]
    awaits: str = ""
    is_task: bool = False


@dataclass(frozen=True)
class StackGroup:
    """Ranks with equal stacks. `what`: their state in words: `in all_reduce`, `idle`.

    `for_s`: for each rank, how many seconds its endpoint has run or awaited; empty if they are
    idle. `notes`: sentences about calls that are queued behind a wait, which may be a deadlock.
    `waited_s`: for each of the `threads`, the seconds since the waits of the ranks began, as far as
    they are known.
    """

    what: str
    ranks: tuple[int, ...]
    points: tuple[dict[str, int], ...]
    threads: tuple[ThreadStack, ...]
    for_s: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    waited_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class MeshStacks:
    """The ranks of one mesh that were read, grouped by their stacks.

    `headline`: `62 in all_reduce, 2 in DataLoader.__next__: gpus=3, gpus=17`.
    """

    uid: str
    name: str
    sizes: dict[str, int]
    headline: str
    groups: tuple[StackGroup, ...]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Stacks:
    """The result of `stacks()`, one entry for each mesh. `str()` shows it as tracebacks."""

    meshes: tuple[MeshStacks, ...]

    def __str__(self) -> str:
        return "\n\n".join(str(mesh) for mesh in self.meshes) or "no ranks"


def stacks(
    mesh: ProcMesh | ActorMesh | Actor | None = None,
    *,
    full: bool = False,
    idle: bool = False,
    timeout: float = 30.0,
) -> Stacks:
    """The position of every rank in the user's program at this moment.

    py-spy stops a rank for some milliseconds while it reads it. A rank whose status board says idle
    is reported as idle without being read.

    Args:
        mesh: the mesh, or slice of a mesh, to read; None: all meshes that this client owns.
        full: include all threads and the frames of the runtime.
        idle: read idle ranks too, for user threads in them.
        timeout: seconds for the whole request; ranks that were not read by then say so.

    Raises:
        StacksError: py-spy is not installed, or this system forbids reading; has the remedy.
        TimeoutError: the host agent did not answer.
        RuntimeError: the host agent has ended.
    """
    running = current_session()
    wanted = _ranks_of(mesh)
    if running is None or not wanted:
        return Stacks(())
    found = running.runtime.agent.read_stacks(wanted, full=full, idle=idle, timeout_s=timeout)
    answer = found.get(timeout + ANSWER_S)
    if answer.problem:
        raise StacksError(answer.problem)
    return of_answer(answer.meshes)


def stacks_text(mesh: ProcMesh | ActorMesh | Actor, timeout_s: float) -> str:
    """The stacks of a mesh as text; where they cannot be read, the reason."""
    try:
        return str(stacks(mesh, timeout=timeout_s))
    except (StacksError, TimeoutError, RuntimeError) as error:
        return f"the stacks were not read: {str(error) or type(error).__name__}"


def of_answer(meshes: Sequence[MeshStacksMessage]) -> Stacks:
    """The answer of a host agent as `Stacks`."""
    return Stacks(tuple(_mesh(found) for found in meshes))


def _ranks_of(mesh: ProcMesh | ActorMesh | Actor | None) -> list[tuple[int, list[int]]]:
    return owned_procs() if mesh is None else [procs_of(mesh)]


def owned_procs() -> list[tuple[int, list[int]]]:
    """All meshes that this client owns, as a request names them."""
    return [(int(found.uid, 16), list[int]()) for found in owned_meshes()]


def _mesh(found: MeshStacksMessage) -> MeshStacks:
    extent = Extent(found.labels, found.sizes)
    groups = tuple(
        StackGroup(
            group.what,
            tuple(group.ranks),
            tuple(dict(extent.point_of_rank(rank)) for rank in group.ranks),
            tuple(
                ThreadStack(
                    t.name, t.waits, tuple(_frame(f) for f in t.frames), t.awaits, t.is_task
                )
                for t in group.threads
            ),
            tuple(group.for_s),
            group.notes,
            tuple(map(tuple, group.waited_s)),
        )
        for group in found.groups
    )
    sizes = dict(zip(found.labels, found.sizes, strict=True))
    return MeshStacks(
        f"{found.mesh:x}", found.name, sizes, pure.headline(found), groups, pure.text(found)
    )


def _frame(frame: FrameMessage) -> StackFrame:
    return StackFrame(frame.name, frame.filename, frame.line)
