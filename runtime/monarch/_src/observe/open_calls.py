"""The calls of this process that are not answered yet, and how to end them.

Runs in: the client, any thread. A front end shows them as progress, and cancels those of a cell.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime_or_none
from monarch._src.actor.state.calls import PendingCall
from monarch._src.mesh.proc_mesh import ProcMesh


@dataclass(frozen=True)
class OpenCall:
    """One call, of all its ranks or one. `number` grows from call to call.

    `owing` are the points, in the mesh of procs, that have not answered; `ranks` how many it has;
    `awaited` says whether anybody waits for it at this moment, by blocking or in a task.
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


def open_calls(since: int = 0) -> list[OpenCall]:
    """Calls of endpoints that some rank has not answered, oldest first.

    `since`: those begun after `newest_call` was that number.
    """
    running = runtime_or_none()
    if running is None:
        return []
    found = [call for call in running.calls.calls() if call.endpoint and call.number > since]
    return [_described(call) for call in found]


def call_of(future: Future[Any]) -> OpenCall | None:
    """The call that a future is of, whether it is answered or not; None for one of something else.

    `owing` is who has not answered yet.
    """
    pending = future.pending
    return _described(pending) if isinstance(pending, PendingCall) and pending.endpoint else None


def newest_call() -> int:
    """The number that calls from now on are above of."""
    running = runtime_or_none()
    return 0 if running is None else running.calls.new_number()


def cancel_calls(calls: Iterable[OpenCall]) -> None:
    """Ask the ranks that have not answered to end these calls. Returns at once.

    What is queued does not begin. In an async endpoint `CancelledError` is raised, in a sync one
    `CallCancelled`; what an endpoint waits for is cancelled with it. The actor lives, and whoever
    waits for the call gets the `ActorError` that comes of it. Code that can't be interrupted (C
    code that holds the interpreter's lock, or waits without looking at signals; anything but Python
    and `time.sleep` in an actor that is not on the main thread of its process) goes on: the call
    stays among `open_calls`.
    """
    running = runtime_or_none()
    if running is None:
        return
    # The newest first: what is queued must not begin because the call before it has been ended.
    for call in sorted(calls, key=lambda call: -call.number):
        pending = running.calls.get(call.number)
        if pending is not None:
            running.cancel(pending)


def cancel_on(mesh: ProcMesh, ranks: Collection[int]) -> list[OpenCall]:
    """End, as `cancel_calls` does, what this process has called on these ranks and no others.

    Returns the calls, oldest first, each with those points owing that were asked. Other ranks go on
    with theirs, so a call of all ranks ends as a whole only when they have answered or it raises.
    """
    running = runtime_or_none()
    if running is None:
        return []
    uid = int(mesh.uid, 16)
    asked: list[tuple[PendingCall, OpenCall]] = []
    for pending in running.calls.calls():
        target: Any = pending.actor_mesh
        if not pending.endpoint or target.procs.uid != uid:
            continue
        owing = [rank for rank in map(pending.region.global_rank, pending.owing()) if rank in ranks]
        if owing:
            points = tuple(dict(target.procs.extent.point_of_rank(rank)) for rank in owing)
            asked.append((pending, replace(_described(pending), owing=points)))
    for pending, _ in reversed(asked):  # the newest first, as above
        running.cancel(pending, only=ranks)
    return [call for _, call in asked]


def kill_procs(mesh: ProcMesh, ranks: Iterable[int], timeout: float = 5.0) -> list[int]:
    """End the processes of these ranks at once, by SIGKILL; returns those that lived till then.

    The ranks fail, with all that follows from it, and where they are to be restarted they are.

    Raises:
        TimeoutError: the host agent did not answer. ValueError: it does not do it; says why.
    """
    running = runtime_or_none()
    if running is None:
        return []
    answer = running.agent.signal(int(mesh.uid, 16), list(ranks), signal.SIGKILL).get(timeout)
    if answer.problem:
        raise ValueError(f"{mesh.name}: {answer.problem}")
    return answer.ranks


def interrupt_procs(mesh: ProcMesh, ranks: Iterable[int] = ()) -> None:
    """Send SIGINT to these ranks of a proc mesh, or to all of this mesh or slice. Returns at once.

    It raises KeyboardInterrupt in what their main threads run for users, `CallCancelled` where that
    is a cancelled call; an idle rank does not notice.
    """
    running = runtime_or_none()
    if running is not None:
        wanted = list(ranks) or list(mesh._region.ranks())  # pyright: ignore[reportPrivateUsage]
        running.agent.signal(int(mesh.uid, 16), wanted, signal.SIGINT)


def _described(call: PendingCall) -> OpenCall:
    target: Any = call.actor_mesh
    extent = target.procs.extent
    owing = [call.region.global_rank(position) for position in call.owing()]
    return OpenCall(
        number=call.number,
        mesh=cast(str, target.procs.name),
        mesh_uid=f"{target.procs.uid:x}",
        actor=cast(str, target.name),
        actor_class=cast(str, target.class_name),
        endpoint=call.endpoint,
        ranks=len(call.region),
        owing=tuple(dict(extent.point_of_rank(rank)) for rank in owing),
        awaited=any(future.awaited for future in call.futures_of()),
    )
