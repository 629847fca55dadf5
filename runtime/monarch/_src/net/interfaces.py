"""The addresses of this host, name resolution, and probes for listening sockets.

Runs in: any process, on a thread that may block: resolving and dialling may be slow.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import enum
import errno
import os
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from monarch._src.errors import HostUnreachableError
from monarch._src.net.state.addresses import (
    Address,
    Attempt,
    Scope,
    attempts_text,
    listening_remedy,
    scope_of,
)


class _SockAddr(ctypes.Structure):
    if sys.platform == "darwin":
        _fields_ = [("length", ctypes.c_uint8), ("family", ctypes.c_uint8)]
    else:
        _fields_ = [("family", ctypes.c_uint16)]


class _IfAddrs(ctypes.Structure):
    pass


_IfAddrs._fields_ = [  # pyright: ignore[reportPrivateUsage]
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SockAddr)),
]
_UP = 0x1


def interface_addresses() -> list[str]:
    """The addresses of the interfaces that are up, in the order of the system, IPv4 first."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "the interfaces of this host cannot be listed")
    found: dict[int, list[str]] = {socket.AF_INET: [], socket.AF_INET6: []}
    try:
        at = first
        while at:
            entry: Any = at.contents
            if entry.address and entry.flags & _UP:
                family = entry.address.contents.family
                # Both families: 2 bytes of family, 2 of port, then 4 of address or of flow.
                start, size = (4, 4) if family == socket.AF_INET else (8, 16)
                if family in found:
                    where = ctypes.addressof(entry.address.contents) + start
                    raw = ctypes.string_at(where, size)
                    found[family].append(socket.inet_ntop(family, raw))
            at = entry.next
    finally:
        libc.freeifaddrs(first)
    return list(dict.fromkeys([*found[socket.AF_INET], *found[socket.AF_INET6]]))


def resolve(address: Address) -> list[str]:
    """Resolve a name, in the order of the system; may block. An address resolves to itself.

    Raises:
        OSError: the name is not known here.
    """
    if address.scope in (Scope.ROUTED, Scope.LINK_LOCAL, Scope.EVERY_INTERFACE):
        return [address.host]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def listening_problem(address: Address, error: OSError) -> str:
    """The text for a failure to listen at that address, with the remedy."""
    if isinstance(error, socket.gaierror):
        return (
            f"cannot listen at {address}: the name is not known here ({error.strerror}); give a "
            "name or address of this host, or `*` for every one that it has"
        )
    code = error.errno or 0
    remedy = listening_remedy(code)
    if not remedy:
        return error.strerror or str(error)
    return f"cannot listen at {address}: {os.strerror(code)}; {remedy}"


def first_that_answers(host_name: str, addresses: Sequence[Address], timeout_s: float) -> Address:
    """The first address that accepts a connection; a name is tried by each of its addresses.

    Each gets an equal share of the time that is left of `timeout_s`.

    Raises:
        HostUnreachableError: no address accepts; the text lists every address with its errno.
    """
    attempts: list[Attempt] = []
    tried: list[tuple[Address, str]] = []
    for address in addresses:
        if address.transport == "ipc":
            tried.append((address, ""))
            continue
        try:
            tried += [(address, host) for host in resolve(address)]
        except OSError as error:
            problem = f"the name is not known here ({error.strerror})"
            attempts.append(Attempt(str(address), 0, problem))
    deadline = time.monotonic() + timeout_s
    for at, (address, host) in enumerate(tried):
        left = max(0.0, deadline - time.monotonic()) / (len(tried) - at)
        numeric = Address("tcp", host, address.port) if host else address
        code = _dial(numeric, left)
        if not code:
            return numeric
        named = "" if numeric == address else f"{address} = "
        attempts.append(Attempt(f"{named}{numeric}", code))
    raise HostUnreachableError(attempts_text(host_name, attempts))


def _dial(address: Address, timeout_s: float) -> int:
    """0 if a process accepts a connection there, else the errno."""
    family, where = socket.AF_UNIX, address.path
    if address.transport == "tcp":
        family = socket.AF_INET6 if address.is_v6 else socket.AF_INET
        where = (address.host, address.port)
    try:
        dialled = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        return error.errno or errno.EAFNOSUPPORT
    with dialled, selectors.DefaultSelector() as selector:
        dialled.setblocking(False)
        code = dialled.connect_ex(where)
        if code == errno.EAGAIN:
            return 0  # for ipc: the backlog of the listener is full
        if code != errno.EINPROGRESS:
            return code
        selector.register(dialled, selectors.EVENT_WRITE)
        if not selector.select(timeout_s):
            return errno.ETIMEDOUT
        return dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def platform_text() -> str:
    """The properties of a platform that must be equal for hosts to exchange raw memory."""
    return f"{sys.platform} {sys.byteorder}-endian {8 * ctypes.sizeof(ctypes.c_void_p)} bit"


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
