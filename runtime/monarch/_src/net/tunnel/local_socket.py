"""How processes of a host request connections through a gateway: a socket in the session.

Runs in: the requesting process (any thread, which blocks), and the process that holds the tunnel
(`net.tunnel.client_end`). A *door* is a Unix socket in the session's directory, which is mode 0700.
A process that connects sends one line of JSON and gets one in return; with `join` the connection
then becomes the stream itself. Without a gateway a session has no door.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec

from monarch._src.errors import HostUnreachableError
from monarch._src.net.state.addresses import Address, parse_address
from monarch._src.wire.msgpack_text import UNREADABLE

DOOR = "gateway"
LONGEST_LINE = 1 << 16


class Ask(msgspec.Struct, frozen=True):
    """A request for a connection to that address; without one, asks whether the gateway is there.

    The gateway resolves the address. Without `join` it is only tried, and the answer contains a
    socket that leads to the address from then on.
    """

    address: str = ""
    join: bool = False


class Answer(msgspec.Struct, frozen=True):
    """The numeric address, and the path of that socket; or why there is no connection."""

    address: str = ""
    path: str = ""
    why: str = ""


def read_ask(line: bytes) -> Ask:
    """Parse a request. Raises ValueError if the line is not one, or the address is malformed."""
    try:
        asked = msgspec.json.decode(line, type=Ask)
    except UNREADABLE as error:
        raise ValueError(f"this is not a request to a gateway: {error}") from None
    if asked.address or asked.join:
        parse_address(asked.address)
    return asked


def read_answer(line: bytes) -> Answer:
    """Parse an answer. Raises ValueError if the line is not one."""
    try:
        return msgspec.json.decode(line, type=Answer)
    except UNREADABLE as error:
        raise ValueError(f"this is not an answer of a gateway: {error}") from None


def written(said: Ask | Answer) -> bytes:
    """The line for a request or an answer."""
    return msgspec.json.encode(said) + b"\n"


def door_of(directory: str | Path) -> Path | None:
    """The door of that session; None if it has none."""
    path = Path(directory) / DOOR
    return path if path.exists() else None


def greet_gateway(door: Path, gateway: Address, timeout_s: float) -> None:
    """Wait for the link to the gateway.

    Raises:
        HostUnreachableError: there is none; the text has the reason.
    """
    _tried(door, gateway, Ask(), timeout_s)


def try_through(door: Path, address: Address, timeout_s: float) -> tuple[Address, Address]:
    """Prepare a path to that address: its numeric form, and the local address to connect to.

    Raises:
        HostUnreachableError: the host or the gateway cannot be reached.
    """
    answer = _tried(door, address, Ask(str(address)), timeout_s)
    return parse_address(answer.address), Address("ipc", path=answer.path)


def _tried(door: Path, address: Address, ask: Ask, timeout_s: float) -> Answer:
    try:
        connection, answer = _asked(door, ask, time.monotonic() + timeout_s)
    except OSError as error:
        raise HostUnreachableError(f"{address}: {_text(door, error)}") from None
    connection.close()
    if answer.why:
        raise HostUnreachableError(answer.why)
    return answer


def connect_through(door: Path, host: str, port: int, deadline: float) -> socket.socket:
    """A connection to that address through the gateway; locally it is a Unix socket.

    Raises:
        OSError: it cannot be made; TimeoutError: not by the deadline.
    """
    connection, answer = _asked(door, Ask(str(Address("tcp", host, port)), join=True), deadline)
    if answer.why:
        connection.close()
        raise ConnectionError(answer.why)
    return connection


def _asked(door: Path, ask: Ask, deadline: float) -> tuple[socket.socket, Answer]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        connection.connect(str(door))
        connection.sendall(written(ask))
        line = bytearray()
        while not line.endswith(b"\n"):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            # One byte at a time: bytes after the line belong to the stream.
            said = connection.recv(1)
            if not said:
                raise ConnectionError("the process that holds the tunnel has ended")
            line += said
        return connection, read_answer(bytes(line))
    except BaseException as error:
        connection.close()
        if isinstance(error, ValueError):
            raise ConnectionError(str(error)) from None
        raise


def _text(door: Path, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer through the gateway in time"
    return f"the tunnel to the gateway has ended ({error}); its socket is {door}"
