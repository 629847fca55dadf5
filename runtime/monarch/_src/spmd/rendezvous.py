"""The stores in which the ranks of a process group find each other.

Runs in: a rank. A store over TCP listens on a socket that is bound before its port is told to any
other rank, so no other process can take the port meanwhile.
"""

from __future__ import annotations

import errno
import os
import socket
from datetime import timedelta
from typing import Any

import msgspec

from monarch._src.actor.runtime import runtime
from monarch._src.spmd.torch_modules import torch_distributed

LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_FAMILIES = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}


class FilePlace(msgspec.Struct, frozen=True):
    """A store in a file of the session's directory on the one host of all ranks."""

    name: str


class TcpPlace(msgspec.Struct, frozen=True):
    """A store that rank 0 serves."""

    host: str
    port: int


def address_family(use_ipaddr: object) -> socket.AddressFamily | None:
    """The family that `use_ipaddr` names: None, `"IPv4"`, `"IPv6"` or an enum member of that name.

    `AddrType.Default` of `monarch.tools.network` is as None.

    Raises:
        ValueError: it names neither.
    """
    if use_ipaddr is None or getattr(use_ipaddr, "name", "") == "Default":
        return None
    family = _FAMILIES.get(str(getattr(use_ipaddr, "name", use_ipaddr)).lower())
    if family is None:
        raise ValueError(f"use_ipaddr is None, 'IPv4' or 'IPv6', not {use_ipaddr!r}")
    return family


def listen(
    *, one_host: bool, port: int = 0, use_ipaddr: object = None
) -> tuple[socket.socket, str, int]:
    """A socket that listens, with the host name or address, and port, that other ranks dial.

    Raises:
        OSError: the port is taken, or there is no such address here.
    """
    family = address_family(use_ipaddr)
    if one_host:
        family = family or socket.AF_INET
        host = LOOPBACK[family]
        bound, there = host, host
    else:
        there = _own_address(family)
        bound, family = ("", family) if family else ("", socket.AF_INET)
    try:
        found = socket.create_server((bound, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise OSError(
                error.errno,
                f"port {port} of {os.uname().nodename} cannot be bound: {error.strerror}; leave "
                "the port out to take a free one",
            ) from None
        raise
    return found, there, found.getsockname()[1]


def _own_address(family: socket.AddressFamily | None) -> str:
    """The name or address by which other hosts dial this host."""
    if family is None:
        _, addresses = runtime().serves_at
        told = [one for one in addresses if one]
        return told[0] if told else socket.gethostname()
    found = socket.getaddrinfo(socket.gethostname(), None, family, socket.SOCK_STREAM)
    return str(found[0][4][0])


class StoreServer:
    """A store that this process serves, from `open` until it is garbage collected or closed."""

    def __init__(self, store: Any, host: str, port: int) -> None:
        self.store = store
        self.host = host
        self.port = port

    @classmethod
    def open(cls, *, one_host: bool, port: int = 0, use_ipaddr: object = None) -> StoreServer:
        """Bind a socket and serve a store on it. Raises as `listen` and `torch_distributed` do."""
        dist = torch_distributed()
        listener, host, port = listen(one_host=one_host, port=port, use_ipaddr=use_ipaddr)
        store = dist.TCPStore(
            LOOPBACK[listener.family], port, is_master=True, wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
        return cls(store, host, port)


def store_at(place: FilePlace | TcpPlace, world_size: int, timeout: timedelta) -> Any:
    """The store at that place, for a rank that does not serve it."""
    dist = torch_distributed()
    if isinstance(place, FilePlace):
        store = dist.FileStore(_path_of(place), world_size)
    else:
        store = dist.TCPStore(place.host, place.port, is_master=False, timeout=timeout)
    store.set_timeout(timeout)
    return store


def remove_file(place: FilePlace) -> None:
    """Remove the file of a store. Idempotent; the ranks need it only to make groups."""
    try:
        os.unlink(_path_of(place))
    except FileNotFoundError:
        pass


def _path_of(place: FilePlace) -> str:
    return os.path.join(runtime().directory, place.name)
