"""Tells the procs of a host who the client is, and the client that they know.

Runs in: a host agent, on its one thread, with either tenure. Who waits for whom,
`session.state.rollcall` decides.
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

# One that stops is called by nobody any more, and of one that is to be started again no process is
# there; what begins is told in time, or not waited for.
COUNT = (ProcState.STARTING, ProcState.READY)


class ClientAnnouncer:
    """See the module's text."""

    def __init__(self, node: Node, host: Host) -> None:
        self._node = node
        self._host = host
        self._roll = RollCall()
        self.handlers: dict[type, Callable[[str, Any, Any], None]] = {
            ClientKnown: self._on_known,
            AskKnown: self._on_asked,
        }

    def tell(self, message: ClientIs) -> None:
        """Tell all procs that there is another client, or none."""
        procs = [
            proc.node
            for mesh in self._host.meshes.values()
            for proc in mesh.procs
            if proc.state is not ProcState.ENDED
        ]
        self._node.forward(procs, message, NO_PAYLOAD)
        self._roll.told(procs if message.node else (), message.number, time.monotonic())

    def looked(self) -> None:
        """Everything that has come was handled: answer who waits, if it is time."""
        for node, request in self._roll.due(time.monotonic(), self._counts):
            self._node.send(node, Kept(request))

    def next_deadline(self) -> float | None:
        """When `looked` has something to do though nothing has come, or None."""
        return self._roll.deadline

    def _counts(self, node: str) -> bool:
        proc = self._host.proc(node)
        return proc is not None and proc.state in COUNT

    def _on_known(self, peer: str, message: ClientKnown, _payload: Payload) -> None:
        self._roll.answered(peer, message.number)

    def _on_asked(self, peer: str, message: AskKnown, _payload: Payload) -> None:
        self._roll.asked(peer, message.request)
