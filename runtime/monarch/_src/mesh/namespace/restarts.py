"""The names in the `__main__` of ranks that were restarted by request.

Runs in: the owner of the mesh, on the loop of the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch._src.errors import ActorError, SupervisionError
from monarch._src.failures.report import points_text
from monarch._src.mesh.procs import Procs
from monarch._src.shape import NDSlice, Region

_GONE = "the names are bound"


async def bind_again(mesh: Any, procs: Procs, ranks: Sequence[int]) -> list[str]:
    """Bind the values of `push` and `scatter` on these ranks again.

    Returns a line for each group of names that the ranks have lost.
    """
    there: dict[int, set[str]] = {}
    not_kept: dict[str, str] = {}
    for rank in ranks:
        names = procs.names.on(rank)
        not_kept |= procs.names.why_not(rank)
        packed = {
            name: (bytes(payload.body), [_copied(buffer) for buffer in payload.buffers])
            for name, payload in names.items()
            if payload is not None
        }
        there[rank] = await _bound_on(mesh, rank, packed) | set(names)
    where = points_text(
        [(dict(procs.ref.extent.point_of_rank(rank)), procs.ref.name) for rank in ranks]
    )
    lines = [
        f"names lost on {where}: {', '.join(n for n in not_kept if not_kept[n] == why)} ({why})"
        for why in dict.fromkeys(not_kept.values())
    ]
    peer = await _names_of_peer(mesh, procs, ranks)
    lost = sorted(name for name in peer if not all(name in names for names in there.values()))
    if lost:
        lines.append(f"names lost on {where}: {', '.join(lost)} (bound by a cell)")
    return lines


def _copied(buffer: Any) -> bytes | bytearray:
    view = memoryview(buffer)
    return bytes(view) if view.readonly else bytearray(view)


async def _bound_on(mesh: Any, rank: int, packed: dict[str, Any]) -> set[str]:
    """Bind these values on a rank; returns all names there."""
    from monarch._src.mesh.namespace.actor import Push

    one = mesh._new_with_region(Region((), NDSlice(offset=rank, sizes=(), strides=())))
    namespace: Any = one.spawn("push", Push)
    try:
        await namespace.receive_packed.call_one(packed)
        await namespace.bind.call_one()
        return set(await namespace.names.call_one())
    finally:
        await namespace.stop(_GONE)


async def _names_of_peer(mesh: Any, procs: Procs, ranks: Sequence[int]) -> set[str]:
    """The names on a rank that was not restarted and is idle; none if there is no such rank.

    A rank that is busy would answer only after its call.
    """
    from monarch._src.mesh.namespace.actor import Pull

    (state,) = await mesh._runtime.agent.snapshot([procs.ref.uid]) or (None,)
    idle = [row.rank for row in state.ranks if row.state == "idle"] if state is not None else []
    peer = next((rank for rank in idle if rank not in ranks), None)
    if peer is None:
        return set()
    one = mesh._new_with_region(Region((), NDSlice(offset=peer, sizes=(), strides=())))
    try:
        namespace: Any = one.spawn("pull", Pull)
        try:
            return set(await namespace.names.call_one())
        finally:
            await namespace.stop(_GONE)
    except (ActorError, SupervisionError):
        return set()  # it has died meanwhile, which its owner is told of
