"""The calls and weight pulls of this process that are under way, and how to cancel calls.

Runs in: the client, any thread. A front end shows them as progress, with the paused ranks that the
program waits for, and cancels the calls of a cell.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monarch._src import events
from monarch._src.actor.call.target import target_of
from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime, runtime, runtime_or_none
from monarch._src.actor.state.calls import PendingCall
from monarch._src.events import RankPaused
from monarch._src.mesh.map.open_maps import open_maps
from monarch._src.mesh.meshes import ProcMesh


@dataclass(frozen=True)
class OpenCall:
    """One call, to all ranks or one. `number` grows from call to call.

    `owing` has the points, in the proc mesh, that have not answered; `ranks` is the number of ranks
    called. `awaited`: a thread blocks on the call, or a task awaits it, at this moment.
    `hands_on`: its caller hands an interrupt of this process on to the ranks, so a front end does
    not cancel it.
    """

    number: int
    mesh: str
    mesh_uid: str
    actor: str
    actor_class: str
    endpoint: str
    ranks: int
    owing: tuple[dict[str, int], ...]
    awaited: bool = False
    hands_on: bool = False


def open_calls(since: int = 0) -> list[OpenCall]:
    """Calls of endpoints that some rank has not answered, oldest first.

    `since`: only calls made after `newest_call` returned that number.
    """
    running = runtime_or_none()
    if running is None:
        return []
    found = [call for call in running.calls.calls() if call.endpoint and call.number > since]
    return [_described(call, running) for call in found]


def call_of(future: Future[Any]) -> OpenCall | None:
    """The call behind a future, answered or not; None for a future of another kind.

    `owing` has the ranks that have not answered yet.
    """
    pending = future.pending
    if pending is None or not pending.endpoint:
        return None
    return _described(pending, runtime())


def newest_call() -> int:
    """A number below those of all later calls."""
    running = runtime_or_none()
    return 0 if running is None else running.calls.new_number()


def cancel_calls(calls: Iterable[OpenCall]) -> None:
    """Ask the ranks that have not answered to end these calls. Returns at once.

    A queued call does not begin. An async endpoint raises `CancelledError`, a sync one
    `CallCancelled`; the calls that the endpoint waits for are cancelled too. The actor lives on,
    and the caller gets the resulting `ActorError`. Code that cannot be interrupted goes on, and
    the call stays among `open_calls`: C code that holds the interpreter's lock or ignores signals,
    and, in an actor that is not on the main thread of its process, anything but Python code and
    `time.sleep`.
    """
    running = runtime_or_none()
    if running is None:
        return
    # The newest first, so that no queued call begins when the one before it ends.
    for call in sorted(calls, key=lambda call: -call.number):
        pending = running.calls.get(call.number)
        if pending is not None:
            running.cancel(pending)


def cancel_on(mesh: ProcMesh, ranks: Collection[int]) -> list[OpenCall]:
    """Cancel, like `cancel_calls`, the calls of this process on these ranks only.

    Returns the calls, oldest first, with the affected points as `owing`. Other ranks go on, so a
    call to all ranks ends as a whole when those have answered, or it raises.
    """
    running = runtime_or_none()
    if running is None:
        return []
    uid = int(mesh.uid, 16)
    cancelled: list[tuple[PendingCall, OpenCall]] = []
    for pending in running.calls.calls():
        target = target_of(pending)
        if not pending.endpoint or target.procs.uid != uid:
            continue
        owing = [rank for rank in map(pending.region.global_rank, pending.owing()) if rank in ranks]
        if owing:
            points = tuple(dict(target.procs.extent.point_of_rank(rank)) for rank in owing)
            cancelled.append((pending, replace(_described(pending, running), owing=points)))
    for pending, _ in reversed(cancelled):  # the newest first, as above
        running.cancel(pending, only=ranks)
    return [call for _, call in cancelled]


def kill_procs(mesh: ProcMesh, ranks: Iterable[int], timeout: float = 5.0) -> list[int]:
    """Kill the processes of these ranks with SIGKILL; returns the ranks that were alive.

    The ranks fail, with all consequences, and are restarted if their mesh has restarts.

    Raises:
        TimeoutError: the host agent did not answer. ValueError: it refuses; the text says why.
    """
    running = runtime_or_none()
    if running is None:
        return []
    answer = running.agent.signal(int(mesh.uid, 16), list(ranks), signal.SIGKILL).get(timeout)
    if answer.problem:
        raise ValueError(f"{mesh.name}: {answer.problem}")
    return answer.ranks


def interrupt_procs(mesh: ProcMesh, ranks: Iterable[int] = ()) -> None:
    """Send SIGINT to these ranks, or to all ranks of this mesh or slice. Returns at once.

    The main thread raises KeyboardInterrupt in user code, or `CallCancelled` in a cancelled call;
    an idle rank is not affected.
    """
    running = runtime_or_none()
    if running is not None:
        wanted = list(ranks) or list(mesh._region.ranks())  # pyright: ignore[reportPrivateUsage]
        running.agent.signal(int(mesh.uid, 16), wanted, signal.SIGINT)


def _described(call: PendingCall, running: Runtime) -> OpenCall:
    target = target_of(call)
    extent = target.procs.extent
    owing = [call.region.global_rank(position) for position in call.owing()]
    return OpenCall(
        number=call.number,
        mesh=target.procs.name,
        mesh_uid=f"{target.procs.uid:x}",
        actor=target.name,
        actor_class=target.class_name,
        endpoint=call.endpoint,
        ranks=len(call.region),
        owing=tuple(dict(extent.point_of_rank(rank)) for rank in owing),
        awaited=any(future.awaited for future in call.futures_of()),
        hands_on=call.number in running.calls.handed_on,
    )


@dataclass(frozen=True)
class OpenPull:
    """One pull. `number` identifies it; `source` names the publisher.

    `bytes_done` of `size` have arrived; a `size` of 0: the pull waits for a version.
    """

    number: int
    source: str
    bytes_done: int
    size: int


def open_pulls() -> list[OpenPull]:
    """The running pulls of this process, oldest first."""
    from monarch._src.rdma.weights.progress import pulls_under_way

    return [
        OpenPull(number, source, told.bytes_done, told.size)
        for number, source, told in pulls_under_way()
    ]


_RUNTIME = str(Path(events.__file__).parent) + "/"


def owing_answers(paused: Collection[RankPaused]) -> list[RankPaused]:
    """Those of these paused ranks that owe an answer to a call, or to a map, that is awaited now.

    A rank that owes nothing may hold up a call all the same; see `is_waiting`.
    """
    owing = {
        (call.mesh_uid, tuple(point.items())) for call in _awaited_calls() for point in call.owing
    }
    return [one for one in paused if (one.uid, tuple(one.point.items())) in owing]


def is_waiting(thread: int) -> bool:
    """Whether that thread is inside this package, or a call or a map is awaited.

    Such a wait may depend on any rank: a call on a peer that its endpoint calls, a collective on
    each rank of its group, a port on its senders.
    """
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_filename.startswith(_RUNTIME):
            return True
        frame = frame.f_back
    return bool(_awaited_calls())


def _awaited_calls() -> list[OpenCall]:
    of_maps = {number for one in open_maps() if one.awaited for number in one.calls}
    return [call for call in open_calls() if call.awaited or call.number in of_maps]
