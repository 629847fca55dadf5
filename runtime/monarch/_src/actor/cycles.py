"""Sends the probes that find actors waiting for each other; `core.waiting` decides.

Runs in: any process. `probe` on a thread that waits, `on_probe` on the one that receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from monarch._src.actor.context import ActorInstance
from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.routes import Routes
from monarch._src.core.calls import PendingCall
from monarch._src.errors import DeadlockError, at_text
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Probe


class HasInstance(Protocol):
    """What runs an actor."""

    instance: ActorInstance


class Cycles:
    """The probes of this process."""

    def __init__(self, node: Node, routes: Routes, workers: Mapping[int, HasInstance]) -> None:
        self._node = node
        self._routes = routes
        self._workers = workers
        self.proc_ref: ProcsRef | None = None

    def probe(self, instance: ActorInstance, waits_for: Future[Any]) -> None:
        """An actor has waited for a while: find out whether that can ever end."""
        begun = instance.waiting.probe()
        if begun is not None:
            self._send(waits_for.pending, Probe(0, *begun, [self._described(instance)]))

    def on_probe(self, _peer: str, message: Probe, _payload: Payload) -> None:
        """A probe came for an actor of this process."""
        worker = self._workers.get(message.actor)
        waits_for = worker.instance.waits_for if worker is not None else None
        if worker is None or waits_for is None:
            return
        verdict = worker.instance.waiting.probed((message.node, message.initiator, message.call))
        if verdict == "cycle":
            waits_for.fail(DeadlockError(message.path))
        elif verdict == "forward":
            message.path.append(self._described(worker.instance))
            self._send(waits_for.pending, message)

    def _send(self, pending: PendingCall, probe: Probe) -> None:
        target: Any = pending.actor_mesh
        probe.actor = target.uid
        for position in pending.owing():
            rank = pending.region.global_rank(position)
            self._node.send(self._routes.reach(target.procs, rank), probe)

    def _described(self, instance: ActorInstance) -> str:
        where = self.proc_ref.name if self.proc_ref is not None else "client"
        at = at_text(dict(instance.rank))
        return f"{instance.class_name}.{instance.endpoint} on {where}{at}"
