"""Whom this process has dialled: the sockets that lead there, and what ZeroMQ tells of them.

Runs in: any process that dials beyond its host, under the lock of its links.
Owns: a socket and a monitor for each end that is not final, until its last word has left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_poll import LinkPoll
from monarch._src.net.hosts.link_types import End
from monarch._src.net.hosts.zmq_sockets import FAREWELL_S, OF_DIALLED, dialling, events_of, watch
from monarch._src.net.state.access import fingerprint, is_name
from monarch._src.net.state.addresses import Address


class Dialled:
    """See the module's text. `ends`: by the name of the node, as far as it is known."""

    def __init__(
        self,
        context: zmq.Context[Any],
        poll: LinkPoll,
        keys: Keys | None,
        heartbeat_s: float,
        connection: Callable[[End, bool], None],
        refused: Callable[[End, str], None],
    ) -> None:
        """Args:
        connection: there is one for that end from now on, or none.
        refused: that end is not let in, and why.
        """
        self._context = context
        self._poll = poll
        self._keys = keys
        self._heartbeat_s = heartbeat_s
        self._connection = connection
        self._refused = refused
        self.ends: dict[str, End] = {}

    def dial(self, end: End, address: Address, receive: Callable[[Any, End], bool]) -> None:
        """Have a connection for that end, made again whenever it breaks."""
        self.ends[end.link.peer] = end
        end.socket = dialling(self._context, address, self._heartbeat_s, self._keys)
        end.monitor = watch(self._context, end.socket, f"dialled-{id(end)}", OF_DIALLED)
        end.socket.connect(str(address))
        self._poll.add(end.monitor, partial(self._events, end), first=True)
        self._poll.add(end.socket, partial(receive, end.socket, end))

    def _events(self, end: End) -> bool:
        for event in events_of(end.monitor):
            kind = event["event"]
            if kind == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._connection(end, True)
            elif kind == zmq.Event.DISCONNECTED:
                self._connection(end, False)
            elif kind == zmq.Event.HANDSHAKE_FAILED_AUTH and not end.link.is_final:
                mark = fingerprint(self._keys.public) if self._keys else "none"
                why = (
                    f"the node at {end.address} lets in no such key ({mark}, {event['value']}): is "
                    "it listed in the job.public that the worker has?"
                )
                self._refused(end, why)
            else:
                end.failed_handshakes += 1
        return False

    def why_lost(self, end: End, why: str) -> str:
        """Why an end is lost, as it is to be told."""
        if not end.failed_handshakes or end.link.session:
            return why
        with_keys = "without keys, as this side is"
        if self._keys:
            with_keys = f"with the keys of job {self._keys.allowed.job}"
        return (
            f"{why}; somebody accepts connections at {end.address}, but the "
            f"handshake fails: is it a worker, {with_keys}? Does it run, or is it stopped?"
        )

    def name(self, end: End, name: str) -> tuple[str, str]:
        """Who was dialled as anybody calls itself so: what it was called, or why it may not.

        Then it keeps the name that it was dialled by, and is refused.
        """
        end.is_anybody = False
        if not is_name(name):
            return "", f"who answers at {end.address} has no name that a node may have"
        other = self.ends.get(name)
        if other is not None and not other.link.is_final:
            return "", end.also_called(name, other)
        dialled_as, end.link.peer = end.link.peer, name
        del self.ends[dialled_as]
        self.ends[name] = end
        return dialled_as, ""

    def leave_ended(self) -> None:
        """Close the sockets of ends that are final, when their last word has left."""
        for end in self.ends.values():
            if end.link.is_final and end.socket is not None:
                end.socket.disable_monitor()  # or ZeroMQ's thread waits for who reads it, for ever
                self._poll.leave(0, end.monitor)
                self._poll.leave(FAREWELL_S, end.socket)
                end.monitor = end.socket = None

    def close(self) -> None:
        """Have no ends any more; their sockets are closed with all others of the links."""
        for end in self.ends.values():
            if end.socket is not None:
                end.socket.disable_monitor()
        self.ends.clear()
