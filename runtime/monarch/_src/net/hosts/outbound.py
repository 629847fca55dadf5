"""Outbound links: the sockets to nodes that this process has dialled, and their ZeroMQ monitors.

Runs in: any process that dials beyond its host, under the lock of its links.
Owns: a socket and a monitor for each end that is not final, until its last message has left.
Invariants: a socket gets messages only while its end is connected. ZeroMQ keeps those that have not
left when the connection breaks, and sends them first by the next one: at most a window of messages
and some hellos, which the listener drops as leftovers.
ZeroMQ does not report why a connection failed. So a plain socket tries the address of an end that
cannot reconnect: a host that refuses it has no process there any more.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import LinkEnd
from monarch._src.net.hosts.link_poll import LinkPoll
from monarch._src.net.hosts.zmq_sockets import FAREWELL_S, OF_DIALLED, dialling, events_of, watch
from monarch._src.net.state.access import fingerprint, is_name
from monarch._src.net.state.addresses import Address

# ZeroMQ's first try is due when the connection breaks, so the third one reports a second failure.
RETRIES = 3
NOT_LISTENING = frozenset({errno.ECONNREFUSED, errno.ENOENT})  # errors of tcp, ipc


class Dialled:
    """The ends of outbound links, in `ends` by the name of the node, or a placeholder for it."""

    def __init__(
        self,
        context: zmq.Context[Any],
        poll: LinkPoll,
        keys: Keys | None,
        heartbeat_s: float,
        connection: Callable[[LinkEnd, bool], None],
        refused: Callable[[LinkEnd, str], None],
        not_listening: Callable[[LinkEnd], None],
    ) -> None:
        """Args:
        connection: called when that end is connected, or disconnected.
        refused: called when the peer refuses that end, with the reason.
        not_listening: called when no process listens at the address of that end.
        """
        self._context = context
        self._poll = poll
        self._keys = keys
        self._heartbeat_s = heartbeat_s
        self._connection = connection
        self._refused = refused
        self._not_listening = not_listening
        self.ends: dict[str, LinkEnd] = {}

    def dial(self, end: LinkEnd, address: Address, receive: Callable[[Any, LinkEnd], bool]) -> None:
        """Open a connection for that end; ZeroMQ reconnects whenever it breaks."""
        self.ends[end.link.peer] = end
        end.socket = dialling(self._context, address, self._heartbeat_s, self._keys)
        end.monitor = watch(self._context, end.socket, f"dialled-{id(end)}", OF_DIALLED)
        end.socket.connect(str(address))
        self._poll.add(end.monitor, partial(self._events, end, address), first=True)
        self._poll.add(end.socket, partial(receive, end.socket, end))

    def _events(self, end: LinkEnd, address: Address | None = None) -> bool:
        for event in events_of(end.monitor):
            kind = event["event"]
            if kind == zmq.Event.HANDSHAKE_SUCCEEDED:
                end.is_connected = True
                end.retries = 0
                self._end_probe(end)
                self._connection(end, True)
            elif kind == zmq.Event.DISCONNECTED:
                end.is_connected = False
                self._connection(end, False)
            elif kind == zmq.Event.CONNECT_RETRIED:
                end.retries += 1
                if end.retries >= RETRIES and address is not None and not end.link.is_final:
                    self._probe(end, address)
            elif kind == zmq.Event.HANDSHAKE_FAILED_AUTH and not end.link.is_final:
                mark = fingerprint(self._keys.public) if self._keys else "none"
                why = (
                    f"the node at {end.address} refuses the key ({mark}, {event['value']}): "
                    "is it listed in the job.public that the worker has?"
                )
                self._refused(end, why)
            else:
                end.failed_handshakes += 1
        return False

    # --- whether a process listens ----------------------------------------------------------------

    def _probe(self, end: LinkEnd, address: Address) -> None:
        """Try the address by a plain socket, which takes the place of an earlier one."""
        self._end_probe(end)
        where: Any = (address.host, address.port)
        family = socket.AF_INET6 if address.is_v6 else socket.AF_INET
        if address.transport == "ipc":
            family, where = socket.AF_UNIX, address.path
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
            probe.setblocking(False)
            code = probe.connect_ex(where)
        except OSError:  # no descriptor is free, or the host is a name
            return
        if code == errno.EINPROGRESS:
            end.probe = probe
            self._poll.add_descriptor(probe.fileno(), partial(self._probed, end))
            return
        probe.close()
        if code in NOT_LISTENING:
            self._not_listening(end)

    def _probed(self, end: LinkEnd) -> bool:
        code = end.probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._end_probe(end)
        if code in NOT_LISTENING:
            self._not_listening(end)
        return False

    def _end_probe(self, end: LinkEnd) -> None:
        if end.probe is not None:
            self._poll.remove_descriptor(end.probe.fileno())
            end.probe.close()
            end.probe = None

    def why_lost(self, end: LinkEnd, why: str) -> str:
        """The reason for the loss of a link, with advice if its handshake has failed."""
        if not end.failed_handshakes or end.link.session:
            return why
        with_keys = "without keys, as this side is"
        if self._keys:
            with_keys = f"with the keys of job {self._keys.allowed.job}"
        return (
            f"{why}; a process accepts connections at {end.address}, but the "
            f"handshake fails: is it a worker, {with_keys}? Does it run, or is it stopped?"
        )

    def name(self, end: LinkEnd, name: str) -> tuple[str, str]:
        """Rename a link that was dialled with `anybody`.

        Returns:
            Its placeholder and "", or "" and the reason why the peer may not have that name.
        """
        end.is_anybody = False
        if not is_name(name):
            return "", f"the node at {end.address} has no valid name"
        other = self.ends.get(name)
        if other is not None and not other.link.is_final:
            return "", end.also_called(name, other)
        dialled_as, end.link.peer = end.link.peer, name
        del self.ends[dialled_as]
        self.ends[name] = end
        return dialled_as, ""

    def leave_ended(self) -> None:
        """Close the sockets of ends that are final, once their last message has left."""
        for end in self.ends.values():
            if end.link.is_final:
                self._leave(end)

    def close(self) -> None:
        """Close all sockets, and forget all ends."""
        for end in self.ends.values():
            self._leave(end)
        self.ends.clear()

    def _leave(self, end: LinkEnd) -> None:
        if end.socket is None:
            return
        self._events(end)  # it may have been disconnected
        self._end_probe(end)
        end.socket.disable_monitor()  # or ZeroMQ's thread waits for a reader for ever
        self._poll.leave(0, end.monitor)
        # Without a connection, ZeroMQ would wait for the next one to send what is left.
        self._poll.leave(FAREWELL_S if end.is_connected else 0, end.socket)
        end.monitor = end.socket = None
        end.is_connected = False
