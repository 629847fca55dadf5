"""Sends the probes that find actors waiting for each other; `deadlock.state.waits` decides.

Runs in: any process: `probe` on a waiting thread, `on_probe` on the receiving thread.

The threads that a waiting thread blocks are found by the frames of all threads. A thread in
`Thread.join`, or in `Future.result` of an executor's job, without a time-out, goes on only when the
other thread has finished. Other waits (for a lock, a queue, an event) do not show which thread
ends them, so they count as independent: a cycle may be missed, but none is reported wrongly.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Mapping, Sequence
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monarch._src.actor.call.target import target_of
from monarch._src.actor.context import ActorInstance
from monarch._src.actor.deadlock.state.waits import Wait
from monarch._src.actor.deliver.routes import Routes
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.state.calls import PendingCall
from monarch._src.errors import DeadlockError
from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.failures.report import at_text
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Probe

if TYPE_CHECKING:
    import asyncio

# The functions in which a thread waits for another one, or for an executor's job.
_JOIN = threading.Thread.join.__code__
# The function in which `join` waits before Python 3.13.
_JOINS: Any = getattr(getattr(threading.Thread, "_wait_for_tstate_lock", None), "__code__", None)
_WAIT = threading.Condition.wait.__code__


class BlockedByThread(NamedTuple):
    """The threads, and asyncio futures of an executor's jobs, that a thread blocks."""

    threads: frozenset[int]
    awaited: tuple[asyncio.Future[Any], ...]


def blocked_by_thread(thread: int) -> BlockedByThread:
    """The threads and futures that a waiting thread blocks."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    try:
        return _blocked_by_thread(thread, frames)
    finally:
        frames.clear()  # this function's own frame is among them


def _blocked_by_thread(thread: int, frames: dict[int, FrameType]) -> BlockedByThread:
    threads: set[int] = set()
    jobs: list[Any] = []  # the executor jobs of these threads, as futures of `concurrent.futures`
    todo = [thread]
    while todo:
        held = todo.pop()
        threads.add(held)
        jobs += _jobs_on(frames.get(held))
        for other, frame in frames.items():
            if other not in threads and _depends(frame, threads, jobs):
                todo.append(other)
    awaited = (mirror for job in jobs for mirror in _mirrors(job))
    return BlockedByThread(frozenset(threads), tuple(awaited))


def _depends(top: FrameType, threads: set[int], jobs: list[Any]) -> bool:
    frame = top.f_back if top.f_code in (_JOINS, _WAIT) else top
    if frame is None or frame.f_code not in (_JOIN, _result()):
        return False
    held = frame.f_locals  # the thread is waiting, and may go on at any time
    if held.get("timeout", 0) is not None:
        return False
    waited_for = held.get("self")
    if frame.f_code is _JOIN:
        return getattr(waited_for, "ident", None) in threads
    return any(waited_for is job for job in jobs)


def _result() -> Any:
    module = sys.modules.get("concurrent.futures._base")
    return None if module is None else module.Future.result.__code__


def _jobs_on(frame: FrameType | None) -> list[Any]:
    """The futures of the executor jobs that a thread runs."""
    module = sys.modules.get("concurrent.futures.thread")
    if module is None:
        return []
    run = module._WorkItem.run.__code__
    found: list[Any] = []
    while frame is not None:
        item = frame.f_locals.get("self") if frame.f_code is run else None
        if item is not None:
            found.append(item.future)
        frame = frame.f_back
    return found


def _mirrors(job: Any) -> list[asyncio.Future[Any]]:
    """The asyncio futures of a job (`run_in_executor`, `to_thread`)."""
    found: list[asyncio.Future[Any]] = []
    for callback in list(getattr(job, "_done_callbacks", ())):
        if inspect.isfunction(callback) and callback.__module__ == "asyncio.futures":
            mirror = inspect.getclosurevars(callback).nonlocals.get("destination")
            if mirror is not None:
                found.append(mirror)
    return found


class HasInstance(Protocol):
    """The runner of an actor."""

    instance: ActorInstance

    def owes(self, caller: str, number: int, *, overlapping: bool) -> bool:
        """Whether the actor has that call, and cannot answer it while it waits."""
        ...

    @property
    def point(self) -> dict[str, int]:
        """Its coordinates, as shown to users."""
        ...


class DeadlockDetector:
    """Sends and handles the probes of this process."""

    def __init__(self, node: Node, routes: Routes, cells: Mapping[int, HasInstance]) -> None:
        self._node = node
        self._routes = routes
        self._cells = cells
        self.proc_ref: ProcsRef | None = None

    @property
    def has_actors(self) -> bool:
        """Whether any actor runs in this process."""
        return bool(self._cells)

    def probe(self, instance: ActorInstance, wait: Wait) -> None:
        """An actor has waited for a while: send a probe along its wait."""
        begun = instance.waiting.probe(wait)
        if blocks(instance, wait) is not Blocked.NOT:
            self._send(wait.future.pending, Probe(0, *begun, [self._described(instance)]))

    def blocked_by(self, thread: int) -> list[ActorInstance]:
        """The actors of this process that cannot go on before that thread has finished its work."""
        held = blocked_by_thread(thread)
        instances = [cell.instance for cell in list(self._cells.values())]
        return [one for one in instances if _blocked_with(one, held) is not Blocked.NOT]

    def on_probe(self, peer: str, message: Probe, _payload: Payload) -> None:
        """A probe has arrived for an actor of this process."""
        cell = self._cells.get(message.actor)
        if cell is None:
            return
        instance = cell.instance

        def blocks_answer(wait: Wait) -> bool:
            blocked = blocks(instance, wait)
            return blocked is not Blocked.NOT and cell.owes(
                peer, message.along, overlapping=blocked is Blocked.THREAD
            )

        probe = (message.node, message.initiator, message.call, message.round)
        own, others = instance.waiting.on_probe(probe, blocks_answer)
        if own is not None and own.timed:
            own.cycle = message.path
        elif own is not None:
            own.future.fail(DeadlockError(message.path))
        if others:
            message.path.append(self._described(instance))
        for wait in others:
            self._send(wait.future.pending, message)

    def _send(self, pending: PendingCall, probe: Probe) -> None:
        target = target_of(pending)
        probe.actor = target.uid
        probe.along = pending.number
        for position in pending.owing():
            rank = pending.region.global_rank(position)
            self._node.send(self._routes.route_to(target.procs, rank), probe)

    def _described(self, instance: ActorInstance) -> str:
        where = self.proc_ref.name if self.proc_ref is not None else "client"
        cell = self._cells.get(instance.actor_id.uid)
        at = at_text(dict(instance.rank) if cell is None else cell.point)
        return f"{endpoint_text(instance.class_name, instance.endpoint)} on {where}{at}"


class Blocked(Enum):
    """The blocked part of an actor: nothing, the task that runs its call, or its thread."""

    NOT = 0
    TASK = 1
    THREAD = 2  # so overlapping calls cannot begin either


def blocks(instance: ActorInstance, wait: Wait) -> Blocked:
    """The part of the actor that cannot go on before that wait ends. Any thread."""
    if wait.thread:
        return _blocked_with(instance, blocked_by_thread(wait.thread))
    if wait.waiter is None:
        return Blocked.THREAD
    return _task_blocked(instance, (wait.waiter,))


def _blocked_with(instance: ActorInstance, held: BlockedByThread) -> Blocked:
    if instance.thread in held.threads:
        return Blocked.THREAD
    return _task_blocked(instance, held.awaited)


def _task_blocked(instance: ActorInstance, awaited: Sequence[Any]) -> Blocked:
    if not awaited or (instance.is_async and instance.task is None):
        return Blocked.NOT
    from monarch._src.actor.deadlock.task_waits import needs  # asyncio takes 13 ms to load

    needed = any(needs(instance.task, waiter) for waiter in awaited)
    return Blocked.TASK if needed else Blocked.NOT
