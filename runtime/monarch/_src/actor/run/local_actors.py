"""The actors of this process, and the thread of each.

Runs in: every proc, and a client that hosts controllers. Called on the receiving thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from monarch._src.actor.context import current
from monarch._src.actor.errors.remote import pack_failure
from monarch._src.actor.parts import ActorHost
from monarch._src.actor.run import sync_loop
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.interruptible_sleep import make_interruptible
from monarch._src.actor.run.running_calls import EARLY_CANCELS
from monarch._src.actor.run.spawn_context import spawned_by_bootstrap
from monarch._src.actor.runtime import Runtime
from monarch._src.config import settings
from monarch._src.failures.report import RankFailure
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.ids import parse_proc_node
from monarch._src.wire.messages import DIED, OK, Call, SpawnActor, StopActor, Watch


class LocalActors(ActorHost):
    """All actors of this process.

    `claim_main(cell)` may claim an actor for the main thread by returning True; the main thread
    then runs it. Every other actor has its own thread.

    Between `hold` and `release`, cells are created and queue their messages, but no actor begins.
    Actors that a bootstrap function has spawned begin at once, since it may wait for them.
    """

    def __init__(
        self, runtime: Runtime, claim_main: Callable[[ActorCell], bool] | None = None
    ) -> None:
        self._runtime = runtime
        self._claim_main = claim_main
        self._cells: dict[int, ActorCell] = {}  # those whose code may still run
        self._threads: list[threading.Thread] = []
        self._early: dict[int, _Early] = {}
        # Cancellations of calls of actors that do not exist yet: actor, caller, call.
        self._early_cancels: deque[tuple[int, str, int]] = deque(maxlen=EARLY_CANCELS)
        self._lock = threading.Lock()
        self._held: list[ActorCell] | None = None
        # Processes that own actors here, and whose ends are watched.
        self._creators: set[str] = set()
        self._refused: RankFailure | None = None
        # Actors begin one at a time, in the order of their spawn messages.
        self._begin_lock = threading.Lock()
        self._changed = threading.Condition()
        runtime.hooks.actors = self
        runtime.terminations.on_node_ended = self._on_creator_ended

    def spawn(self, _peer: str, spec: SpawnActor, payload: Payload) -> None:
        """Create an actor's cell; the constructor runs on the actor's own thread."""
        known = self._runtime.cells.get(spec.actor)
        if spec.if_absent and known is not None and known.dead is None:
            return
        cell = ActorCell(self._runtime, spec, payload)
        self._runtime.cells[spec.actor] = cell
        self._cells[spec.actor] = cell
        self._runtime.tombstones.forget(spec.actor)
        for actor, caller, number in [one for one in self._early_cancels if one[0] == spec.actor]:
            self._early_cancels.remove((actor, caller, number))
            cell.cancel(caller, number)
        for message in self._take_early(spec.actor):
            cell.post(*message)
        self._watch(spec.creator)
        with self._begin_lock:
            if self._held is not None and not spawned_by_bootstrap(spec):
                self._held.append(cell)
            else:
                self._begin(cell)

    def _begin(self, cell: ActorCell) -> None:
        if self._refused is not None:
            cell.refuse(self._refused)
            return
        if self._claim_main is not None and self._claim_main(cell):
            return
        name = f"actor-{cell.spec.name}"
        thread = threading.Thread(target=run_actor, args=(cell,), name=name, daemon=True)
        thread.start()
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def hold(self) -> None:
        """Let no actor begin until `release`. Called before the first message."""
        self._held = []

    def release(self, failure: RankFailure | None) -> None:
        """Let actors begin; or fail them all, if the bootstrap function has failed."""
        with self._begin_lock:
            held, self._held = self._held or [], None
            self._refused = failure
            for cell in held:
                self._begin(cell)

    def _watch(self, creator: str) -> None:
        """Watch the process of an actor's owner, unless its end ends this process anyway."""
        runtime = self._runtime
        ref = runtime.proc_ref
        if creator in self._creators or parse_proc_node(creator) is None:
            return
        if creator != runtime.name and (ref is None or creator != ref.owner):
            self._creators.add(creator)
            runtime.routes.tell_agent_at(runtime.node.site_of(creator), Watch(creator))

    def _on_creator_ended(self, node: str) -> None:
        if node not in self._creators:
            return
        self._creators.discard(node)
        for cell in list(self._cells.values()):
            if cell.spec.creator == node and cell.dead is None:
                cell.stop(f"the process of its owner, {node}, has ended")

    def stop(self, reason: str, grace_s: float | None = None) -> None:
        """Stop every actor after its queued messages; the meshes that it owns end first."""
        for cell in list(self._cells.values()):
            if cell.dead is None:
                cell.stop(reason, grace_s)

    def are_overdue(self) -> bool:
        """Whether an actor still runs that was asked to stop earlier."""
        return any(cell.stop_deadline is not None for cell in list(self._cells.values()))

    def wait_until_gone(self, least_s: float) -> bool:
        """Wait until all actors have ended, for `least_s` or the latest stop deadline.

        Returns False if some actors still run.
        """
        least = time.monotonic() + least_s
        with self._changed:
            while self._cells:
                due = [one.stop_deadline or least for one in self._cells.values()]
                left = max(least, *due) - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def on_actor_gone(self, cell: ActorCell) -> None:
        """An actor has ended: remove it, and wake the thread that waits for the last one."""
        with self._changed:
            if self._cells.get(cell.spec.actor) is cell:
                del self._cells[cell.spec.actor]
            self._changed.notify_all()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the threads have ended, at most `timeout_s` in all."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))

    # --- messages without an actor ----------------------------------------------------------------

    def on_unknown_actor(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Hold a call that has arrived before the message that spawns its actor.

        A mesh can be passed on before its actors exist, and messages of different senders have no
        order. If the actor is not spawned within `message_delivery_timeout`, the call is rejected.
        """
        if isinstance(message, StopActor):  # the actor has ended already
            self._runtime.routes.reply(peer, message, OK, NO_PAYLOAD)
            return
        with self._lock:
            early = self._early.get(message.actor)
            if early is None:
                early = self._early[message.actor] = _Early(
                    threading.Timer(settings().delivery_s, self._refuse_early, (message.actor,))
                )
                early.timer.daemon = True
                early.timer.start()
            early.messages.append((peer, message, payload))

    def on_early_cancel(self, actor: int, caller: str, number: int) -> None:
        """Hold a cancellation, which may overtake the message that spawns its actor."""
        self._early_cancels.append((actor, caller, number))

    def _take_early(self, actor: int) -> list[tuple[str, Call, Payload]]:
        with self._lock:
            early = self._early.pop(actor, None)
        if early is None:
            return []
        early.timer.cancel()
        return early.messages

    def _refuse_early(self, actor: int) -> None:
        runtime = self._runtime
        ref = runtime.proc_ref
        point = dict(ref.extent.point_of_rank(max(runtime.rank, 0))) if ref is not None else {}
        failure = RankFailure(
            ref.name if ref is not None else "client", runtime.rank, point, "an actor", None,
            runtime.host, os.getpid(), "stopped", "", "there is no such actor on this proc",
        )  # fmt: skip
        for peer, message, _ in self._take_early(actor):
            if message.call:
                runtime.routes.reply(peer, message, DIED, pack_failure(failure, None))
            else:
                runtime.undeliverable.return_to_sender(
                    peer, message, f"{runtime.name}/#{actor:x}", failure
                )


class _Early(msgspec.Struct):
    """Calls of an actor that does not exist yet, in order; the timer rejects them."""

    timer: threading.Timer
    messages: list[tuple[str, Call, Payload]] = []


def run_actor(cell: ActorCell) -> None:
    """Run the actor. Returns when the actor has ended."""
    try:
        if cell.runtime.proc_ref is not None:  # not in a client
            make_interruptible()
        cls = cell.prepare()
        if cls is None:
            return
        if cls.is_async:
            from monarch._src.actor.run import async_loop

            async_loop.serve(cell)
        else:
            sync_loop.serve(cell)
    finally:
        current.set(None)  # the main thread must not keep its actor alive
