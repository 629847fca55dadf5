"""Work of a front end that waits for a call, on a thread beside its caller.

Runs in: the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime
from monarch._src.actor.work import WorkFuture, begin
from monarch._src.mesh.meshes import ProcMesh

R = TypeVar("R")


def work_beside(
    mesh: ProcMesh, what: str, call: Future[Any], work: Callable[[], R]
) -> WorkFuture[R]:
    """Run `work`, which waits for that call on the mesh, on a thread of its own.

    The future is cancelled by cancelling the call. `work` tells of its errors itself, so that none
    is reported when the future is dropped unread.

    Args:
        what: names the work in texts, such as `cell on workers`.
        call: the future of a call of an endpoint that nothing else waits for.

    Raises:
        MeshStoppedError: the mesh was stopped.
    """
    pending = call.pending
    assert pending is not None, "a future of another kind"
    future: WorkFuture[R] = mesh._new_work(what, told=True)  # pyright: ignore[reportPrivateUsage]
    call.reader = future
    ranks = len(pending.region)

    def progress() -> str:
        return f"{ranks - len(pending.owing())} of {ranks} ranks have ended"

    run = runtime()
    future.set_under_way(lambda: run.cancel(pending), lambda: (pending.number,), progress)
    begin(future, work)
    return future
