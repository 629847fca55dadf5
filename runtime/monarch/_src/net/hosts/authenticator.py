"""Decides which keys may connect: the handler of ZeroMQ's authentication protocol (ZAP, RFC 27).

Runs in: a thread of its own, one for each context that listens; it ends with the context.
Invariants: it exists before the first listener. ZeroMQ asks it about every connection, after the
peer has proved that it holds the secret of the key that it names. No message of the peer reaches a
socket before the answer. Malformed requests are refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils import z85

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.state.access import AllowList, Role, fingerprint

log = logging.getLogger("monarch.net")
ADDRESS = "inproc://zeromq.zap.01"
DOMAIN = "monarch"
VERSION = b"1.0"
KEY_BYTES = 32


class Gate:
    """Accepts all and only the keys of an allow-list."""

    def __init__(self, context: zmq.Context[Any], allowed: AllowList, audit: Audit) -> None:
        self._allowed = allowed
        self._audit = audit
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ADDRESS)
        self._thread = threading.Thread(target=self._serve, name="monarch-gate", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while True:
                request = self._socket.recv_multipart()
                self._socket.send_multipart(self._decide(request))
        except zmq.ContextTerminated:
            pass
        except Exception:
            # Without answers ZeroMQ accepts no connection, so this fails safely.
            log.exception("the gate has failed: no further connection is accepted")
        finally:
            self._socket.close(0)

    def join(self) -> None:
        """Wait until the thread has ended, as it does when the context ends."""
        self._thread.join()

    def _decide(self, request: Sequence[bytes]) -> list[bytes]:
        if len(request) < 6 or request[0] != VERSION:
            return _answer(request[1] if len(request) > 1 else b"", "500", "not a ZAP 1.0 request")
        number, address, mechanism = request[1], request[3], request[5]
        where = address.decode(errors="replace").removeprefix("::ffff:")
        if mechanism != b"CURVE" or len(request) != 7 or len(request[6]) != KEY_BYTES:
            self._audit.note("refused", why="it has no key", address=where)
            return _answer(number, "400", "a key of the job is needed")
        public = z85.encode(request[6]).decode()
        role = self._allowed.role_of(public)
        if role is None:
            self._audit.note(
                "refused", why="its key is not one of this job", address=where,
                key=fingerprint(public),
            )  # fmt: skip
            return _answer(number, "400", "that key is not one of this job")
        return _answer(number, "200", "OK", f"{role.value} {fingerprint(public)} {where}")


def _answer(number: bytes, status: str, text: str, user: str = "") -> list[bytes]:
    return [VERSION, number, status.encode(), text.encode(), user.encode(), b""]


def who_sent(frame: Any) -> tuple[Role, str, str]:
    """Role, fingerprint and address of the peer that sent a received frame.

    Raises:
        PermissionError: no authenticator has accepted the peer.
    """
    try:
        role, mark, address = str(frame.get("User-Id")).split(" ", 2)
        return Role(role), mark, address
    except (zmq.ZMQError, ValueError):
        raise PermissionError("a message of a peer that no authenticator has accepted") from None
