"""The part of the host agent that keeps copies of the connections of gloo groups.

When a process dies, the kernel closes its connections. It answers peers by a reset if data was on
its way. Gloo forgets a send whose write fails while it answers a peer that is ready to receive, and
its collective waits for its time-out, minutes later. So the death of a rank must not close its
connections: the agent has a copy of each. From the death on it reads and drops what peers still
send, so that their writes end. The peers shut down their own ends at the news of the death
(`gloo_sockets.shut_down`). `LINGER_S` later the agent closes the copies.

A rank that leaves a group in order, or ends in order, has its copies closed first, since its peers
shall see the end of their connections.

Runs in: the host agent on Linux, on its one thread.
Owns: a connection to each rank that has gloo groups, and the copies.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Iterable

from monarch._src.host.parts import AgentView, Handlers, Part
from monarch._src.spmd.socket_updates import LARGEST, MOST_SOCKETS, decode
from monarch._src.system.process import free_descriptors
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import KeepSockets

log = logging.getLogger("monarch.agent")
LINGER_S = 30.0
"""How long copies outlive a rank that has died. The news reaches peers much sooner."""
SPARE_FDS = 512
"""Descriptors that stay free for the agent's own work; a copy that would take one is not kept."""
DROP_BYTES = 1 << 16


class SocketKeeper(Part):
    """Keeps the sockets that ranks send until they say otherwise, or `LINGER_S` after their end."""

    def __init__(self, agent: AgentView) -> None:
        self._selector = agent.selector
        self._ranks: list[_Rank] = []
        self.handlers: Handlers = {KeepSockets: self._on_keep}

    def _on_keep(self, peer: str, message: KeepSockets, _payload: Payload) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            connection.connect(message.path)
        except OSError as error:  # the rank has ended, or waits no longer
            log.info("the sockets of %s are not kept: %s", peer, error)
            connection.close()
            return
        rank = _Rank(connection)
        self._ranks.append(rank)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(rank))

    def _read(self, rank: _Rank) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(
                rank.connection, LARGEST, MOST_SOCKETS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            self._on_end(rank)
            return
        rank.apply(data, [socket.socket(fileno=fd) for fd in fds])

    def _on_end(self, rank: _Rank) -> None:
        """Read from the connections of an ended process until their peers close them."""
        self._selector.unregister(rank.connection)
        rank.connection.close()
        rank.closes_at = time.monotonic() + LINGER_S
        for key, copy in rank.copies.items():
            self._selector.register(
                copy, selectors.EVENT_READ, lambda key=key: self._drop(rank, key)
            )

    def _drop(self, rank: _Rank, key: bytes) -> None:
        """Read what a peer has sent to a rank that is gone."""
        copy = rank.copies[key]
        try:
            while copy.recv(DROP_BYTES, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return
        except OSError:
            pass  # the peer has reset the connection
        self._selector.unregister(copy)
        rank.close([key])

    def after_poll(self) -> None:
        """Close the copies of ranks that ended long ago."""
        now = time.monotonic()
        for rank in [each for each in self._ranks if each.closes_at is not None]:
            assert rank.closes_at is not None
            if rank.copies and now < rank.closes_at:
                continue
            for copy in rank.copies.values():
                self._selector.unregister(copy)
            rank.close(list(rank.copies))
            self._ranks.remove(rank)

    def next_deadline(self) -> float | None:
        """When the copies of a rank that has ended are closed, or None."""
        known = (rank.closes_at for rank in self._ranks)
        return min((found for found in known if found is not None), default=None)


class _Rank:
    """The connection to a rank, and the copies of its sockets by their addresses."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.copies: dict[bytes, socket.socket] = {}
        self.closes_at: float | None = None  # set when the rank has ended

    def apply(self, data: bytes, sockets: list[socket.socket]) -> None:
        """Close copies, and keep these sockets."""
        update = decode(data)
        self.close(update.release)
        if free_descriptors() < SPARE_FDS:
            log.warning("%d sockets of gloo groups are not kept: too few descriptors", len(sockets))
            for each in sockets:
                each.close()
            return
        # Fewer sockets than names have arrived if the agent has run out of descriptors.
        self.copies.update(zip(update.keep, sockets, strict=False))

    def close(self, keys: Iterable[bytes]) -> None:
        """Close these copies; those that are not here are ignored."""
        for key in keys:
            copy = self.copies.pop(key, None)
            if copy is not None:
                with contextlib.suppress(OSError):
                    copy.close()
