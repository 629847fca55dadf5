"""Data for front ends: meshes, the state of each rank, the output of ranks.

Runs in: the client, any thread. The host agent answers, so it works while every rank computes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from monarch._src.actor.context import set_origin_source
from monarch._src.actor.deliver.output_barrier import FRONT_ENDS
from monarch._src.actor.deliver.payloads import NO_COUNTS, PayloadCounts
from monarch._src.actor.inspect.agent_client import AgentGoneError
from monarch._src.actor.runtime import runtime_or_none
from monarch._src.events import (
    MeshSpawned,
    MeshStopped,
    Output,
    OutputLine,
    ProcReady,
    RankFailed,
    RankPaused,
    RankRestarting,
    bus,
)
from monarch._src.mesh.client import current_session
from monarch._src.mesh.meshes import ProcMesh, owned_meshes, shared_procs
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.local.waitable import RuntimeEnded
from monarch._src.shape import Extent
from monarch._src.wire.messages import MeshState, RankState

State = Literal["starting", "idle", "busy", "paused", "suspended", "failed", "stopped"]
MeshStateName = Literal["starting", "ready", "failed", "stopped"]


@dataclass(frozen=True)
class CodePlace:
    """A line of a program."""

    function: str
    filename: str
    line: int


@dataclass(frozen=True)
class RankRow:
    """One proc. `since_s`: seconds in this state; `rss_mib`: resident memory in MiB.

    `errors` of its `messages` failed; endpoints ran in it for `busy_s` seconds altogether.
    `restarts` is the number of restarts; the other figures belong to the current incarnation.
    A `suspended` process was sent SIGSTOP; its row has the endpoint that ran, if any. `place` is
    the line at which a paused rank stands. `cpu_s`: seconds of processor time in all its
    threads. `gpu_mib`, `gpu_percent`: its memory on NVIDIA devices, and how busy it keeps them (200
    for two devices); None where it uses none, or the driver does not tell.
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
    restarts: int = 0
    place: CodePlace | None = None
    cpu_s: float | None = None
    gpu_mib: float | None = None
    gpu_percent: int | None = None


@dataclass(frozen=True)
class FailedActors:
    """The ranks of an actor mesh where the actor has died or its constructor has raised.

    Their procs, and other actors on them, go on. `ranks` and `points` are of the proc mesh; `why`
    says in one line how the lowest rank failed.
    """

    name: str
    ranks: tuple[int, ...]
    points: tuple[dict[str, int], ...]
    why: str


@dataclass(frozen=True)
class MeshSnapshot:
    """One proc mesh at one moment. `age_s`: seconds since it was asked for.

    `failed` are all and only the meshes among `actors` that have failed on some rank.
    """

    uid: str
    name: str
    host: str
    state: MeshStateName
    sizes: dict[str, int]
    actors: tuple[str, ...]
    rows: tuple[RankRow, ...]
    age_s: float
    failed: tuple[FailedActors, ...] = ()


def meshes() -> list[ProcMesh]:
    """The proc meshes that this client owns and has not stopped, oldest first."""
    return owned_meshes()


@dataclass(frozen=True)
class StartingMesh:
    """A proc mesh that is not ready; `ready` of its `procs` are, with bootstrap functions run.

    `imports` are the libraries that its processes are forked with.
    """

    uid: str
    name: str
    ready: int
    procs: int
    imports: tuple[str, ...] = ()


def starting() -> list[StartingMesh]:
    """The meshes of this client that are not ready yet, oldest first. Sends no message."""
    found: list[StartingMesh] = []
    for mesh in owned_meshes():
        procs = shared_procs(mesh)
        if procs.initialized is None or procs.initialized.done:
            continue
        ready = len(procs.ready if procs.bootstrapped is None else procs.bootstrapped)
        found.append(StartingMesh(mesh.uid, mesh.name, ready, len(procs.region), procs.imports))
    return found


def snapshot(timeout: float = 5.0) -> list[MeshSnapshot]:
    """The state of every rank of every mesh of this client now.

    Any thread may call it, even while another ends the session or detaches from it; the result is
    empty then.

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
    try:
        states = {s.mesh: s for s in running.runtime.agent.snapshot(uids).get(timeout)}
    except (AgentGoneError, RuntimeEnded):
        return [] if running.is_ending else [_lost(mesh) for mesh in found]
    return [_snapshot(m, states[int(m.uid, 16)]) for m in found if int(m.uid, 16) in states]


def _snapshot(mesh: ProcMesh, state: MeshState) -> MeshSnapshot:
    points = list(mesh.extent.points())
    return MeshSnapshot(
        uid=mesh.uid,
        name=mesh.name,
        host=mesh.host,
        state=cast(MeshStateName, state.state),
        sizes=mesh.sizes,
        actors=mesh.actor_names,
        rows=tuple(_row(rank, dict(points[rank.rank])) for rank in state.ranks),
        age_s=state.age_s,
        failed=failed_actors(mesh),
    )


def failed_actors(mesh: ProcMesh) -> tuple[FailedActors, ...]:
    """The actor meshes on a proc mesh of this client that have failed on some rank.

    Stopped ones are left out. Sends no message.
    """
    found: list[FailedActors] = []
    for actors in list(shared_procs(mesh).actors.values()):
        failures = dict(actors.failures)
        if actors.stopped is None and failures:
            ranks = tuple(sorted(failures))
            extent = actors.procs.extent
            points = tuple(dict(extent.point_of_rank(rank)) for rank in ranks)
            found.append(FailedActors(actors.name, ranks, points, failures[ranks[0]].what))
    return tuple(found)


def snapshot_of(state: MeshState) -> MeshSnapshot:
    """A mesh of any session of this host, from the answer of that session's agent."""
    points = Extent(state.labels, state.sizes)
    return MeshSnapshot(
        uid=f"{state.mesh:x}",
        name=state.name,
        host=os.uname().nodename,
        state=cast(MeshStateName, state.state),
        sizes=dict(zip(state.labels, state.sizes, strict=True)),
        actors=(),
        rows=tuple(_row(r, dict(points.point_of_rank(r.rank))) for r in state.ranks),
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
        restarts=rank.restarts,
        place=CodePlace(rank.function, rank.filename, rank.line) if rank.filename else None,
        cpu_s=rank.cpu_s if rank.cpu_s >= 0 else None,
        gpu_mib=rank.gpu_bytes / 2**20 if rank.gpu_bytes >= 0 else None,
        gpu_percent=rank.gpu_percent if rank.gpu_percent >= 0 else None,
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
_listening_lock = GuardedLock()


def on_output(
    listener: Callable[[Sequence[OutputLine]], None],
    show: Callable[[Callable[[], None]], None] | None = None,
) -> Callable[[], None]:
    """Call `listener` with the lines that ranks write, on the receiving thread.

    A listener that hands lines to a thread of its own also gives `show`. It is called with a
    function, and has to call that function, on any thread, when all lines so far are shown. The
    answers of the ranks that wrote them wait for that, for a limited time.

    While there is a listener, lines are not copied to this program's own streams. Returns the
    function that removes the listener.
    """
    global _listening
    end = bus.subscribe(Output, lambda output: listener(output.lines))
    if show is not None:
        FRONT_ENDS.append(show)
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
            if show is not None:
                FRONT_ENDS.remove(show)
        end()

    return unsubscribe


def anybody_listens() -> bool:
    """Whether a front end shows the output of ranks."""
    return _listening > 0


def number_calls(source: Callable[[], int] | None) -> None:
    """Give every call of this program an origin; None: no origin from now on.

    `source` runs on the calling thread as part of each call: be quick. Output that a rank writes
    because of the call, even much later, carries the number as `OutputLine.origin`, and so do calls
    that the rank makes in turn.
    """
    set_origin_source(source)


def flush_output(timeout: float = 5.0) -> None:
    """Return when listeners have got every line that ranks wrote before their answers arrived.

    Raises:
        TimeoutError: the host agent did not answer in `timeout` seconds.
    """
    running = current_session()
    if running is None or running.lost is not None:
        return
    # An agent that has ended has no more lines.
    with contextlib.suppress(AgentGoneError, RuntimeEnded):
        running.runtime.agent.flush_output().get(timeout)


def payload_counts() -> PayloadCounts:
    """Statistics of the large payloads that this process, a client or a rank, has sent."""
    run = runtime_or_none()
    return NO_COUNTS if run is None else run.payloads.counts()


Change = MeshSpawned | ProcReady | RankFailed | RankRestarting | RankPaused | MeshStopped
_CHANGES = (MeshSpawned, ProcReady, RankFailed, RankRestarting, RankPaused, MeshStopped)


def on_change(listener: Callable[[Change], None]) -> Callable[[], None]:
    """Call `listener` with every change of a mesh or a rank.

    A mesh is spawned or ends; a proc is ready; a rank fails, is restarted, or is paused at a
    breakpoint. The listener runs on the thread that notices, often the receiving one, so it
    must be quick and must not block. Returns the function that removes the listener.
    """
    ends = [bus.subscribe(kind, listener) for kind in _CHANGES]

    def unsubscribe() -> None:
        for end in ends:
            end()

    return unsubscribe
