"""What ranks are in at this moment: their stacks, grouped, the odd ones named.

Runs in: the client, any thread. Looked at from outside by py-spy, which the host agent runs, so
also while a rank holds the GIL, computes in C or is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monarch._src.errors import StacksError
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.client import current_session
from monarch._src.mesh.proc_mesh import ProcMesh, owned_meshes
from monarch._src.mesh.selected_procs import procs_of
from monarch._src.observe.stacks.state import grouping as pure
from monarch._src.shape import Extent
from monarch._src.wire.messages import MeshStacks as MeshStacksMessage
from monarch._src.wire.messages import StackFrame as FrameMessage

ANSWER_S = 2.0  # beyond the time for the look itself


@dataclass(frozen=True)
class StackFrame:
    """One line of Python. `name` is the function, qualified where the interpreter knows."""

    name: str
    filename: str
    line: int


@dataclass(frozen=True)
class ThreadStack:
    """One thread, outermost frame first. `name` is empty for the main thread.

    `waits`: its innermost frame waits for an answer of another actor.
    """

    name: str
    waits: bool
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True)
class StackGroup:
    """Ranks that were found in the same. `what` says it: `in all_reduce`, `idle`."""

    what: str
    ranks: tuple[int, ...]
    points: tuple[dict[str, int], ...]
    threads: tuple[ThreadStack, ...]


@dataclass(frozen=True)
class MeshStacks:
    """The ranks of one mesh that were looked into, those that are in the same together.

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
    """What `stacks()` found, one entry a mesh. `str()` shows it as tracebacks."""

    meshes: tuple[MeshStacks, ...]

    def __str__(self) -> str:
        return "\n\n".join(str(mesh) for mesh in self.meshes) or "no ranks"


def stacks(
    mesh: ProcMesh | ActorMesh | None = None,
    *,
    full: bool = False,
    idle: bool = False,
    timeout: float = 30.0,
) -> Stacks:
    """Where every rank is in the user's program at this moment.

    A rank stands still while it is read, for some milliseconds. One that says that it is idle is
    believed, and named so.

    Args:
        mesh: whose ranks, a slice of a mesh too; None: all meshes that this client owns.
        full: with all threads and the frames of the runtime.
        idle: look into ranks that say that they are idle too, for what user threads do in them.
        timeout: seconds for the whole look; ranks that it did not come to say so.

    Raises:
        StacksError: py-spy is not installed, or this system lets nobody look; says what to do.
        TimeoutError: the host agent did not answer.
        RuntimeError: the host agent is gone.
    """
    running = current_session()
    asked = _asked(mesh)
    if running is None or not asked:
        return Stacks(())
    found = running.runtime.agent.read_stacks(asked, full=full, idle=idle, timeout_s=timeout)
    answer = found.get(timeout + ANSWER_S)
    if answer.problem:
        raise StacksError(answer.problem)
    return of_answer(answer.meshes)


def of_answer(meshes: Sequence[MeshStacksMessage]) -> Stacks:
    """What a host agent has answered."""
    return Stacks(tuple(_mesh(found) for found in meshes))


def _asked(mesh: ProcMesh | ActorMesh | None) -> list[tuple[int, list[int]]]:
    if mesh is None:
        return [(int(found.uid, 16), list[int]()) for found in owned_meshes()]
    return [procs_of(mesh)]


def _mesh(found: MeshStacksMessage) -> MeshStacks:
    extent = Extent(found.labels, found.sizes)
    groups = tuple(
        StackGroup(
            group.what,
            tuple(group.ranks),
            tuple(dict(extent.point_of_rank(rank)) for rank in group.ranks),
            tuple(
                ThreadStack(t.name, t.waits, tuple(_frame(frame) for frame in t.frames))
                for t in group.threads
            ),
        )
        for group in found.groups
    )
    sizes = dict(zip(found.labels, found.sizes, strict=True))
    return MeshStacks(
        f"{found.mesh:x}", found.name, sizes, pure.headline(found), groups, pure.text(found)
    )


def _frame(frame: FrameMessage) -> StackFrame:
    return StackFrame(frame.name, frame.filename, frame.line)
