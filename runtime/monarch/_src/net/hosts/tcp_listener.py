"""Listening by TCP at a free port. Runs in: any process; it does not block. Owns nothing.

Stands on sockets alone, so that what moves bytes may use it, which knows nothing else of `net`.
"""

from __future__ import annotations

import socket


def listener_at(host: str, backlog: int) -> socket.socket:
    """A listener at that address, or at every interface for `*`, at a port that is free.

    `backlog`: how many may have connected and not been accepted yet.

    Raises:
        OSError: it cannot be listened at.
    """
    if host != "*":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, 0), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    return socket.create_server(("", 0), backlog=backlog)
