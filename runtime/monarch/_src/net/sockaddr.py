"""The addresses of a host name as text, for programs that open sockets of their own.

Runs in: any process, on a thread that may block: resolving may be slow.
"""

from __future__ import annotations

import enum
import socket

from monarch._src.net.state.addresses import Scope, scope_of


class AddrType(enum.Enum):
    """Which kind of address: `Default` is IPv6 if the name has such an address, otherwise IPv4."""

    Default = enum.auto()
    IPv4 = enum.auto()
    IPv6 = enum.auto()


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """An address of that host, such as `127.0.0.1` or `::1`, without brackets.

    Link-local addresses are left out: they mean nothing on other networks.

    Raises:
        RuntimeError: the name has no such address.
    """
    return _resolved(hostname, port, addr_type)[1]


def get_sockaddr(hostname: str, port: int) -> str:
    """An address of that host with the port: `127.0.0.1:8080` or `[::1]:8080`.

    Raises:
        RuntimeError: the name has no address.
    """
    family, address = _resolved(hostname, port, AddrType.Default)
    return f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"


def _resolved(hostname: str, port: int, addr_type: AddrType) -> tuple[int, str]:
    why = "it has none of that kind"
    for family in _FAMILIES[addr_type]:
        try:
            found = socket.getaddrinfo(hostname, port, family, socket.SOCK_STREAM)
        except socket.gaierror as error:
            why = error.strerror or str(error)
            continue
        for *_, address in found:
            host = str(address[0])
            if scope_of(host.partition("%")[0]) is not Scope.LINK_LOCAL:
                return family, host
    kind = "address" if addr_type is AddrType.Default else f"{addr_type.name} address"
    raise RuntimeError(f"{hostname!r} has no {kind} that others can dial: {why}")
