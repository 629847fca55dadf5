"""The addresses and ports of a forward: constants, or functions of a point. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from monarch._src.shape import Point

DestinationPort: TypeAlias = "int | Callable[[Point], int]"
SourceAddress: TypeAlias = "str | Callable[[Point], str]"


def checked_port(name: str, port: Any, *, lowest: int = 1) -> int:
    """That port.

    Raises:
        ValueError: it is no port number.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not lowest <= port < 1 << 16:
        raise ValueError(f"{name} is a port from {lowest} to 65535, not {port!r}")
    return port


def parsed_address(address: Any) -> tuple[str, int]:
    """The host and port of `ADDRESS:PORT`; port 0 means any that is free.

    Raises:
        ValueError: the text is no address; the error says how to write one.
    """
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # an IPv6 address without brackets
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise ValueError(
            f"src_address is {address!r}; write ADDRESS:PORT, such as '127.0.0.1:8080' or "
            "'[::1]:8080'"
        )
    return host, checked_port("the port of src_address", int(port), lowest=0)


def address_text(host: str, port: int) -> str:
    """`ADDRESS:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_at(port: DestinationPort, point: Point) -> int:
    """The port for that point. ValueError if the function returns no port."""
    return checked_port("dst_port", port(point) if callable(port) else port)


def address_at(address: SourceAddress, point: Point) -> tuple[str, int]:
    """The host and port for that point. ValueError if the function returns no address."""
    return parsed_address(address(point) if callable(address) else address)
