"""The part of the host agent that tells its processes which history they keep.

Runs in: the host agent, on its one thread, from the first order on.
Owns: the orders of this host.
Invariants: every process of the host gets the order before any request for rows that comes after
it, since both travel on one link. Procs that connect later get it when they connect. A temporary
order ends by itself, though the program that gave it has died. Orders do not outlive the client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from monarch._src.host.parts import AgentView, Handlers, Part
from monarch._src.host.state.procs import ProcState
from monarch._src.telemetry.history.state.orders import NOTHING, Kept, Orders
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import SetHistory, TableRead


class HistoryService(Part):
    """Passes SetHistory on."""

    def __init__(self, agent: AgentView) -> None:
        self._agent = agent
        self._orders = Orders()
        self._told = NOTHING
        self._client = agent.owner.client
        self.handlers: Handlers = {SetHistory: self._on_order}

    def _on_order(self, peer: str, message: SetHistory, _payload: Payload) -> None:
        self._forget_earlier_client()
        kept = Kept(message.retention_s, message.rows, message.torch)
        if message.for_s:
            self._orders.order_for(kept, message.for_s, time.monotonic())
        else:
            self._orders.order(kept)
        self._tell_all()
        self._agent.node.send(peer, TableRead(message.request, self._agent.node.site))
        if peer.startswith(OBSERVER):
            self._agent.node.drop(peer)  # an observer connects for one question

    def _forget_earlier_client(self) -> None:
        """Drop orders of a client that no longer holds the host. Its procs go on as they were."""
        if self._client != self._agent.owner.client:
            self._client = self._agent.owner.client
            self._orders, self._told = Orders(), NOTHING

    def _tell_all(self) -> None:
        kept = self._orders.in_force(time.monotonic())
        if kept == self._told:
            return
        self._told = kept
        for node in self._processes():
            self._agent.node.send(node, _order(kept))

    def _processes(self) -> Iterator[str]:
        agent = self._agent
        for mesh in agent.host.meshes.values():
            for proc in mesh.procs:
                if proc.said_hello and proc.state not in (ProcState.ENDED, ProcState.RESTARTING):
                    yield proc.node
        client = agent.owner.client_now
        if client and not agent.node.site and agent.node.knows(client):
            yield client

    def on_proc_connected(self, proc: str) -> None:
        """See `Part`."""
        self._forget_earlier_client()
        if self._told != NOTHING:
            self._agent.node.send(proc, _order(self._told))

    def next_deadline(self) -> float | None:
        """See `Part`."""
        return self._orders.next_deadline()

    def after_poll(self) -> None:
        """See `Part`."""
        if self._told != NOTHING:
            self._tell_all()


def _order(kept: Kept) -> SetHistory:
    """The message for a process."""
    return SetHistory(0, kept.retention_s, kept.rows, torch=kept.torch)
