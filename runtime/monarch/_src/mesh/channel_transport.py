"""Which hosts a program deals with, said before it begins: its own, or others too.

Runs in: a client. Which way messages go is decided by where processes are (`net.hosts.gateway`),
and who drives dials; so nothing listens because of what is said here. It is what programs for
Monarch say first, and a promise that is kept: after `enable_transport("ipc")` no other host is
dialled.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable

from monarch._src.mesh.client import current_session
from monarch._src.net.state.addresses import Address, parse_listening


class ChannelTransport(enum.Enum):
    """How a program reaches processes. `Unix`: those of its own host, by sockets in a directory.

    The others: also other hosts, by TCP, encrypted with the keys of the job.
    """

    Unix = "ipc"
    TcpWithHostname = "tcp"
    TcpWithLocalhost = "tcp(localhost)"


_SAID = ", ".join(repr(one.value) for one in ChannelTransport)
_lock = threading.Lock()
_chosen: ChannelTransport | Address | None = None


def enable_transport(transport: ChannelTransport | str) -> None:
    """Say how this program reaches processes, before it uses any. Again with the same is nothing.

    Args:
        transport: a ChannelTransport, or `"ipc"`, `"tcp"`, or an address such as
            `"tcp://host:26600"`. A program that calls this never may do both.

    Raises:
        RuntimeError: another one was enabled, or processes have been used already.
        ValueError: there is no such transport, or that is no address.
        TypeError: neither text nor a ChannelTransport.
    """
    global _chosen
    asked = _read(transport)
    with _lock:
        if asked == _chosen:
            return
        if _chosen is not None:
            raise RuntimeError(
                f"the transport of this program is {_text(_chosen)}, and cannot become "
                f"{_text(asked)}: one for a program"
            )
        if current_session() is not None:
            raise RuntimeError(
                f"enable_transport({_text(asked)!r}) comes too late: this program has processes "
                "already; call it before anything else, or call shutdown_context() first"
            )
        _chosen = asked


def _read(transport: object) -> ChannelTransport | Address:
    if isinstance(transport, ChannelTransport):
        return transport
    if not isinstance(transport, str):
        raise TypeError(f"transport={transport!r}: give a ChannelTransport, {_SAID} or an address")
    if "://" in transport:
        return parse_listening(transport).bind
    for one in ChannelTransport:
        if transport == one.value:
            return one
    hint = ""
    if "tls" in transport:
        hint = "; between hosts everything is encrypted anyway, with the keys of the job: use 'tcp'"
    raise ValueError(f"there is no transport {transport!r}: give {_SAID} or tcp://HOST:PORT{hint}")


def _text(chosen: ChannelTransport | Address) -> str:
    return chosen.value if isinstance(chosen, ChannelTransport) else str(chosen)


def check_transport(addresses: Iterable[Address]) -> None:
    """RuntimeError if one of these is of another host, and the program has said: none."""
    only_here = _chosen is ChannelTransport.Unix or (
        isinstance(_chosen, Address) and _chosen.transport == "ipc"
    )
    beyond = [address for address in addresses if address.transport != "ipc"]
    if only_here and beyond:
        raise RuntimeError(
            f"{beyond[0]} is not dialled: this program has called enable_transport('ipc'), so it "
            "reaches processes of its own host only; enable 'tcp' instead"
        )


def forget_transport() -> None:
    """As if nothing had been said. For tests."""
    global _chosen
    _chosen = None
