"""Reports undeliverable messages to their senders, if no caller waits for the answer.

Runs in: the client and every proc, on the receiving thread or on a sending one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from msgspec.structs import replace

from monarch._src.actor.deliver.routes import Routes
from monarch._src.actor.refs import Known
from monarch._src.actor.supervise.ownership import OwnedMeshes
from monarch._src.failures.report import MeshFailure, RankFailure, as_causes
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import parse_proc_node
from monarch._src.wire.messages import Call, Reply, Undelivered


class Sender(Protocol):
    """An actor of this process; see `monarch._src.actor.run.cell`."""

    def on_undelivered(self, message: Undelivered) -> None:
        """Queue a message that the actor sent and that could not be delivered."""
        ...


class UndeliverableMessages:
    """Undeliverable messages of this process, and those that it returns to other senders."""

    def __init__(
        self,
        node: Node,
        known: Known,
        routes: Routes,
        cells: Mapping[int, Sender],
        ended: Container[int],
        ownership: OwnedMeshes,
        host: str,
    ) -> None:
        self._node = node
        self._known = known
        self._routes = routes
        self._cells = cells
        self._ended = ended  # ended actors, whose undeliverable messages are dropped
        self._ownership = ownership
        self._host = host

    # --- to other processes -----------------------------------------------------------------------

    def return_to_sender(self, peer: str, call: Call, to: str, why: RankFailure) -> None:
        """Return a broadcast message whose actor has ended or does not exist."""
        failed = why.kind != "stopped"
        said = "that actor has failed" if failed else f"that actor was stopped: {why.message}"
        failure = replace(
            why, endpoint=call.endpoint, kind="undeliverable", exception_type="", message=said,
            frames=(), traceback="", death=None, causes=as_causes([why]) if failed else (),
        )  # fmt: skip
        if call.reply_to:
            peer = call.reply_to
            self._routes.reach_node(peer, call.reply_address)
        self._node.send(peer, Undelivered(call.sent_by, to, call.actor, failure))

    def on_unread_port(self, peer: str, message: Reply) -> None:
        """A message has arrived for a port whose receiver is gone."""
        why = "its receiver is gone"
        self._node.send(peer, self._no_port(self._node.name, message.call, message.sent_by, why))

    # --- to actors of this process ----------------------------------------------------------------

    def deliver(self, message: Undelivered) -> None:
        """Hand an undeliverable message to its sender: an actor, or the process itself."""
        cell = self._cells.get(message.sent_by)
        if cell is not None:
            cell.on_undelivered(message)
            return
        if message.sent_by in self._ended:
            return
        root = self._ownership.root
        reported_anyway = message.failure.causes and message.receiver in root.meshes
        if self._ownership.on_unhandled is not None and not reported_anyway:
            failure = message.failure
            self._ownership.on_unhandled(MeshFailure(failure.mesh_name, (failure,)))

    def on_undelivered(self, _peer: str, message: Undelivered, _payload: Payload) -> None:
        """Another process has returned a message."""
        self.deliver(message)

    def on_port_gone(self, node: str, number: int, sent_by: int) -> None:
        """A message could not be sent to a port, whose process is gone."""
        self.deliver(self._no_port(node, number, sent_by, "its process is gone"))

    def _no_port(self, node: str, number: int, sent_by: int, why: str) -> Undelivered:
        place = parse_proc_node(node)
        ref = None if place is None else self._known.ref(place[0])
        at = {} if ref is None or place is None else dict(ref.extent.point_of_rank(place[1]))
        name = node if place is not None and ref is None else "client" if ref is None else ref.name
        failure = RankFailure(
            name, 0 if place is None else place[1], at, f"port {number}", None, self._host, None,
            "undeliverable", "", why,
        )  # fmt: skip
        return Undelivered(sent_by, f"{node}/port {number}", 0, failure)
