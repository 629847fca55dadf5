"""The ZeroMQ sockets of links, and their monitors.

Runs in: any process that listens or dials beyond its host; one thread at a time uses a socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from monarch._src.net.hosts.authenticator import DOMAIN
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import EVERY_INTERFACE, Address
from monarch._src.wire.frames import Buffer

_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = _NOBLOCK | int(zmq.SNDMORE)
ZERO_COPY = 1 << 16
FAREWELL_S = 2.0  # how long the last messages may take to leave
FAILURES = (
    zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)
OF_DIALLED = (
    FAILURES | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED
)


def listening_at(
    context: zmq.Context[Any], address: Address, heartbeat_s: float, keys: Keys | None
) -> Any:
    """A socket that accepts links at that address; with keys, only those that the gate accepts.

    Raises:
        zmq.ZMQError: it is impossible to listen there.
    """
    socket = _new_socket(context, zmq.ROUTER, address, heartbeat_s)
    try:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.BACKLOG, 1024)
        if keys is not None:
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN.encode())
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            _show_keys(socket, keys)
        socket.bind(str(address))
    except BaseException:
        socket.close(0)
        raise
    return socket


def dialling(
    context: zmq.Context[Any], address: Address, heartbeat_s: float, keys: Keys | None
) -> Any:
    """A socket for a link to a node that listens there, still to be connected."""
    # Without ZMQ_IMMEDIATE, with which libzmq up to 4.3.5 removes the queue of a connection that
    # breaks while its reader is between two parts of a message, and then aborts the process.
    socket = _new_socket(context, zmq.DEALER, address, heartbeat_s)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, 2000)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.allowed.of(Role.WORKER)[0].encode())
        _show_keys(socket, keys)
    return socket


def _new_socket(context: zmq.Context[Any], kind: int, address: Address, heartbeat_s: float) -> Any:
    """A socket whose connections end after that many seconds of silence."""
    v6 = address.is_v6 or address.host == EVERY_INTERFACE
    socket = context.socket(kind)
    beat = int(1000 * heartbeat_s)
    for option, value in (
        (zmq.LINGER, 0), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.IPV6, int(v6)),
        (zmq.HANDSHAKE_IVL, max(1000, 2 * beat)),
        (zmq.HEARTBEAT_IVL, max(10, beat // 5)),
        (zmq.HEARTBEAT_TIMEOUT, max(20, 4 * beat // 5)), (zmq.HEARTBEAT_TTL, max(100, beat)),
        # A full pipe accepts no ping, so only the kernel notices its silence.
        (zmq.TCP_MAXRT, max(100, beat)),
    ):  # fmt: skip
        socket.setsockopt(option, value)
    return socket


def sent_off(socket: Any, route: bytes | None, frames: Sequence[Buffer]) -> bool:
    """Send frames, by that route if there is one; False if there is no connection."""
    try:
        if route is not None:
            socket.send(route, _MORE)
        last = len(frames) - 1
        for at, frame in enumerate(frames):
            copy = len(frame) < ZERO_COPY
            socket.send(frame, _MORE if at < last else _NOBLOCK, copy=copy)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            return False
        raise
    return True


def _show_keys(socket: Any, keys: Keys) -> None:
    """Set the key pair by which a socket authenticates itself."""
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.reveal())


def watch(context: zmq.Context[Any], socket: Any, name: str, events: int) -> Any:
    """A monitor socket, which reports events of another socket's connections."""
    where = f"inproc://monitor-{name}"
    socket.monitor(where, events)
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.LINGER, 0)
    monitor.setsockopt(zmq.RCVHWM, 0)  # otherwise a flood of events blocks ZeroMQ's own thread
    monitor.connect(where)
    return monitor


def events_of(monitor: Any) -> list[dict[str, Any]]:
    """The events since the last call; none without a monitor."""
    found: list[dict[str, Any]] = []
    while monitor is not None and monitor.get(_EVENTS) & _POLLIN:
        found.append(dict(parse_monitor_message(monitor.recv_multipart(_NOBLOCK))))
    return found
