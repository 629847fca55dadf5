"""What a front end needs to show: meshes, what each rank does, what ranks write.

Runs in: the client, any thread. Answered by the host agent, so also while every rank computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from monarch._src.events import (
    MeshSpawned,
    MeshStopped,
    Output,
    OutputLine,
    ProcReady,
    RankFailed,
    bus,
)
from monarch._src.mesh.proc_mesh import ProcMesh, owned_meshes
from monarch._src.mesh.session import current_session
from monarch._src.wire.messages import MeshState, RankState

State = Literal["starting", "idle", "busy", "failed", "stopped"]
MeshStateName = Literal["starting", "ready", "failed", "stopped"]


@dataclass(frozen=True)
class RankRow:
    """One proc. `since_s`: seconds in this state; `rss_mib`: resident memory in MiB.

    Of its `messages` so many were `errors`; anything ran in it for `busy_s` seconds altogether.
    """

    rank: int
    point: dict[str, int]
    pid: int | None
    state: State
    actor: str | None
    endpoint: str | None
    since_s: float
    messages: int
    rss_mib: float | None
    failure: str | None
    errors: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True)
class MeshSnapshot:
    """One proc mesh at one moment. `age_s`: seconds since it was asked for."""

    uid: str
    name: str
    host: str
    state: MeshStateName
    sizes: dict[str, int]
    actors: tuple[str, ...]
    rows: tuple[RankRow, ...]
    age_s: float


def meshes() -> list[ProcMesh]:
    """The proc meshes that this client owns and has not stopped, oldest first."""
    return owned_meshes()


def snapshot(timeout: float = 5.0) -> list[MeshSnapshot]:
    """What every rank of every such mesh does now.

    Raises:
        TimeoutError: the host agent did not answer in `timeout` seconds.
    """
    found = owned_meshes()
    running = current_session()
    if not found or running is None:
        return []
    if running.lost is not None:
        return [_lost(mesh) for mesh in found]
    uids = [int(mesh.uid, 16) for mesh in found]
    states = {s.mesh: s for s in running.runtime.agent.snapshot(uids).get(timeout)}
    return [_snapshot(m, states[int(m.uid, 16)]) for m in found if int(m.uid, 16) in states]


def _snapshot(mesh: ProcMesh, state: MeshState) -> MeshSnapshot:
    points = list(mesh.extent.points())
    run = current_session()
    return MeshSnapshot(
        uid=mesh.uid,
        name=mesh.name,
        host=run.runtime.host if run is not None else "",
        state=cast(MeshStateName, state.state),
        sizes=mesh.sizes,
        actors=mesh.actor_names,
        rows=tuple(_row(rank, dict(points[rank.rank])) for rank in state.ranks),
        age_s=state.age_s,
    )


def _row(rank: RankState, point: dict[str, int]) -> RankRow:
    return RankRow(
        rank=rank.rank,
        point=point,
        pid=rank.pid or None,
        state=cast(State, rank.state),
        actor=rank.actor or None,
        endpoint=rank.endpoint or None,
        since_s=rank.since_s,
        messages=rank.messages,
        rss_mib=rank.rss_bytes / 2**20 if rank.rss_bytes else None,
        failure=rank.failure or None,
        errors=rank.errors,
        busy_s=rank.busy_s,
    )


def _lost(mesh: ProcMesh) -> MeshSnapshot:
    points = list(mesh.extent.points())
    rows = [
        RankRow(i, dict(p), None, "failed", None, None, 0.0, 0, None, "the host agent is gone")
        for i, p in enumerate(points)
    ]
    return MeshSnapshot(
        mesh.uid, mesh.name, "", "failed", mesh.sizes, mesh.actor_names, tuple(rows), 0.0
    )


_listening = 0
_listening_lock = threading.Lock()


def on_output(listener: Callable[[Sequence[OutputLine]], None]) -> Callable[[], None]:
    """Call `listener` with the lines that ranks write, on the thread that receives.

    While anybody listens, lines are not copied to this program's own streams. Returns the function
    that ends it.
    """
    global _listening
    end = bus.subscribe(Output, lambda output: listener(output.lines))
    with _listening_lock:
        _listening += 1
    ended = False

    def unsubscribe() -> None:
        nonlocal ended
        global _listening
        with _listening_lock:
            if ended:
                return
            ended = True
            _listening -= 1
        end()

    return unsubscribe


def anybody_listens() -> bool:
    """Whether a front end shows what ranks write."""
    return _listening > 0


def flush_output(timeout: float = 5.0) -> None:
    """Return when every line that ranks wrote before their answers came has reached the listeners.

    Raises:
        TimeoutError: the host agent did not answer in `timeout` seconds.
    """
    running = current_session()
    if running is not None and running.lost is None:
        running.runtime.agent.flush_output().get(timeout)


Change = MeshSpawned | ProcReady | RankFailed | MeshStopped


def on_change(listener: Callable[[Change], None]) -> Callable[[], None]:
    """Call `listener` when a mesh is spawned, a proc is up, a rank fails, a mesh has ended.

    On the thread that notices, often the one that receives: be quick, do not block. Returns the
    function that ends it.
    """
    ends = [
        bus.subscribe(kind, listener) for kind in (MeshSpawned, ProcReady, RankFailed, MeshStopped)
    ]

    def unsubscribe() -> None:
        for end in ends:
            end()

    return unsubscribe


def wait_ready(mesh: ProcMesh, timeout: float | None = None) -> float:
    """Wait until every proc of a mesh is up; the seconds that it took."""
    started = time.monotonic()
    mesh.initialized.get(timeout)
    return time.monotonic() - started
