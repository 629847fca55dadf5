"""TCP listeners at free ports. Runs in: any process; it does not block. Owns nothing.

It depends only on sockets, so that the data plane may use it without the rest of `net`.
"""

from __future__ import annotations

import socket


def listener_at(host: str, backlog: int) -> socket.socket:
    """A listener at that address, or on every interface for `*`, at a free port.

    `backlog`: how many connections may wait to be accepted.

    Raises:
        OSError: it is impossible to listen there.
    """
    if host != "*":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, 0), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    return socket.create_server(("", 0), backlog=backlog)
