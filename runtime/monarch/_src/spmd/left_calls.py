"""The calls of this process that other ranks have left: by their death, or by an exception.

Such a call may still run here, or wait in a mailbox. A process group that it makes lacks the ranks
that have left it.

Runs in: a rank, on any thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from monarch._src.actor.context import current
from monarch._src.actor.run.mailbox import caller_of
from monarch._src.actor.runtime import Runtime, runtime
from monarch._src.spmd.state.group_watch import ON_ITS_WAY_S, Absence, CallKey, CallState
from monarch._src.wire.messages import Call

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell


class _LostCall(NamedTuple):
    """A call that had not ended here when ranks of its mesh died."""

    key: CallKey
    call: Call
    dead: set[int]


class _RaisedCall(NamedTuple):
    """A call that ranks have left by an exception. It may still be on its way to this rank."""

    ranks: set[int]
    heard: float


_lost: dict[int, _LostCall] = {}  # by `id` of the call
_raised: dict[CallKey, _RaisedCall] = {}
_sizes_of_meshes: set[int] = set()  # of the meshes in which ranks have died


def note_death(mesh_size: int, rank: int) -> None:
    """Keep the calls that have not ended here, as that rank of a mesh of that size has died."""
    _sizes_of_meshes.add(mesh_size)
    _forget_ended()
    for uid, item, _ in _calls():
        call: Call = item[1]
        key = CallKey(caller_of(item), call.call, uid, call.endpoint)
        _lost.setdefault(id(call), _LostCall(key, call, set())).dead.add(rank)


def note_absence(absence: Absence) -> None:
    """Keep the call that a rank has left by an exception."""
    _forget_ended()
    if absence.call.number:  # else later calls of that endpoint look like this one
        left = _raised.setdefault(absence.call, _RaisedCall(set(), time.monotonic()))
        left.ranks.add(absence.rank)


def calls_of_dead_ranks() -> list[CallKey]:
    """The calls to all ranks of their mesh that a rank has left by its death; they run or wait."""
    _forget_ended()
    lost = list(_lost.values())
    return [one.key for one in lost if math.prod(one.call.sizes) in _sizes_of_meshes]


def ranks_left() -> int | None:
    """How many ranks are left in the call that this thread runs; None: no rank is known to be gone.

    A call to a part of a mesh counts the ranks that have died in all of it. On a thread of no
    actor, the least of the calls of all actors is the answer.
    """
    context = current.get()
    found: list[int] = []
    for uid, item, state in _calls():
        call: Call = item[1]
        if state is not CallState.RUNNING or not (
            context is None
            or (context.actor_instance.actor_id.uid, context.endpoint) == (uid, call.endpoint)
        ):
            continue
        lost = _lost.get(id(call))
        gone = 0 if lost is None else len(lost.dead)
        gone += sum(
            len(one.ranks) for key, one in list(_raised.items()) if _is_call(key, uid, item)
        )
        if gone:
            found.append(math.prod(call.sizes) - gone)
    return min(found, default=None)


def _forget_ended() -> None:
    for number, one in list(_lost.items()):
        if call_state(one.key) is CallState.ABSENT:
            _lost.pop(number, None)
    now = time.monotonic()
    for key, left in list(_raised.items()):
        if now - left.heard > ON_ITS_WAY_S and call_state(key) is CallState.ABSENT:
            _raised.pop(key, None)


def call_state(key: CallKey) -> CallState:
    """Where that call is in this process."""
    found = CallState.ABSENT
    for uid, item, state in _calls():
        if _is_call(key, uid, item):
            if state is CallState.RUNNING:
                return state
            found = state
    return found


def _calls() -> Iterator[tuple[int, Any, CallState]]:
    """The calls of each actor of the program in this process, with the number of the actor."""
    run: Runtime = runtime()
    for uid, cell in cast("list[tuple[int, ActorCell]]", list(run.cells.items())):
        if getattr(cell.instance_object, "__monarch_watches__", False):
            continue
        # The mailbox first: a call that leaves it meanwhile is found among those that run.
        queued = [item for item in cell.mailbox.items() if isinstance(item, tuple)]
        for item in list(cell.running_calls.calls.values()):
            yield uid, item, CallState.RUNNING
        for item in queued:
            yield uid, item, CallState.QUEUED


def _is_call(key: CallKey, uid: int, item: Any) -> bool:
    call: Call = item[1]
    if key.number:
        return call.call == key.number and caller_of(item) == key.caller
    return uid == key.actor and call.endpoint == key.endpoint
