"""How processes of a host ask for connections that go through a gateway: a socket in its session.

Runs in: who asks (any thread, which blocks), and the process that holds the tunnel
(`net.tunnel.client_end`). A *door* is a Unix socket in the session's directory, which is mode 0700.
Who connects says one line of JSON and is answered by one; with `join` the connection is then the
stream itself. A session whose client is behind no gateway has no door.
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
    """A connection to that address, as the gateway sees it; none: is the gateway there?

    Without `join` it is only tried, and answered with a socket that leads there from then on.
    """

    address: str = ""
    join: bool = False


class Answer(msgspec.Struct, frozen=True):
    """The address in numbers, and the path of that socket; or why there is no connection."""

    address: str = ""
    path: str = ""
    why: str = ""


def read_ask(line: bytes) -> Ask:
    """ValueError if that is none, or asks for no address."""
    try:
        asked = msgspec.json.decode(line, type=Ask)
    except UNREADABLE as error:
        raise ValueError(f"this is no question to a gateway: {error}") from None
    if asked.address or asked.join:
        parse_address(asked.address)
    return asked


def read_answer(line: bytes) -> Answer:
    """ValueError if that is none."""
    try:
        return msgspec.json.decode(line, type=Answer)
    except UNREADABLE as error:
        raise ValueError(f"this is no answer of a gateway: {error}") from None


def written(said: Ask | Answer) -> bytes:
    """As a line."""
    return msgspec.json.encode(said) + b"\n"


def door_of(directory: str | Path) -> Path | None:
    """The door of that session; None if it has none."""
    path = Path(directory) / DOOR
    return path if path.exists() else None


def greet_gateway(door: Path, gateway: Address, timeout_s: float) -> None:
    """Return when there is a link to the gateway.

    Raises:
        HostUnreachableError: there is none; says why.
    """
    _tried(door, gateway, Ask(), timeout_s)


def try_through(door: Path, address: Address, timeout_s: float) -> tuple[Address, Address]:
    """Have a way to that address: what it is in numbers, and where to connect on this host.

    Raises:
        HostUnreachableError: nobody can be reached there, or the gateway cannot.
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
    """A connection to that address; it is a Unix socket here.

    Raises:
        OSError: there is none to be had; TimeoutError: in time.
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
            # A byte at a time: what comes behind the line is not ours.
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
        return "no answer by way of the gateway in time"
    return f"there is no way to the gateway any more ({error}); its socket is {door}"
