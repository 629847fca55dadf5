"""Announces the current client to the procs of a host, and collects their answers.

Runs in: a host agent, on its one thread, with either owner. `session.state.rollcall` decides when
waiting clients are answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from monarch._src.host.state.host import Host
from monarch._src.host.state.procs import ProcState
from monarch._src.net.node import Node
from monarch._src.session.state.rollcall import RollCall
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import AskKnown, ClientIs, ClientKnown, Kept

# The states of procs whose answer counts. A stopping proc gets no more calls, and a proc that is to
# be restarted has no process.
COUNT = (ProcState.STARTING, ProcState.READY)


class ClientAnnouncer:
    """Drives one `RollCall`."""

    def __init__(self, node: Node, host: Host) -> None:
        self._node = node
        self._host = host
        self._roll = RollCall()
        self.handlers: dict[type, Callable[[str, Any, Any], None]] = {
            ClientKnown: self._on_known,
            AskKnown: self._on_ask_known,
        }

    def tell(self, message: ClientIs) -> None:
        """Announce a new client, or its absence, to all procs."""
        procs = [
            proc.node
            for mesh in self._host.meshes.values()
            for proc in mesh.procs
            if proc.state is not ProcState.ENDED
        ]
        self._node.forward(procs, message, NO_PAYLOAD)
        self._roll.announced(procs if message.node else (), message.number, time.monotonic())

    def looked(self) -> None:
        """Answer waiting clients if it is time. Called when all messages read were handled."""
        for node, request in self._roll.due(time.monotonic(), self._is_expected):
            self._node.send(node, Kept(request))

    def next_deadline(self) -> float | None:
        """When `looked` has something to do without a message, or None."""
        return self._roll.deadline

    def _is_expected(self, node: str) -> bool:
        proc = self._host.proc(node)
        return proc is not None and proc.state in COUNT

    def _on_known(self, peer: str, message: ClientKnown, _payload: Payload) -> None:
        self._roll.confirmed(peer, message.number)

    def _on_ask_known(self, peer: str, message: AskKnown, _payload: Payload) -> None:
        self._roll.requested(peer, message.request)
