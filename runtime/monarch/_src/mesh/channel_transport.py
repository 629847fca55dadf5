"""Which hosts a program may connect to: its own only, or others too.

Runs in: a client. Routes depend on where processes are (`net.hosts.gateway`), so nothing listens
because of this choice. Programs for Monarch make it first, and it is a promise that the runtime
keeps: after `enable_transport("ipc")` it dials no other host.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from monarch._src.mesh.client import current_session
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.state.addresses import Address, parse_listening


class ChannelTransport(enum.Enum):
    """How a program reaches processes. `Unix`: on its own host, by sockets in a directory.

    The others: also on other hosts, by TCP, encrypted with the keys of the job.
    """

    Unix = "ipc"
    TcpWithHostname = "tcp"
    TcpWithLocalhost = "tcp(localhost)"


_CHOICES = ", ".join(repr(one.value) for one in ChannelTransport)
_lock = GuardedLock()
_chosen: ChannelTransport | Address | None = None


def enable_transport(transport: ChannelTransport | str) -> None:
    """Choose how this program reaches processes, before it uses any. Repeating a choice is allowed.

    Args:
        transport: a ChannelTransport, or `"ipc"`, `"tcp"`, or an address such as
            `"tcp://host:26600"`. Without a call, both are allowed.

    Raises:
        RuntimeError: another transport was enabled, or processes have been used already.
        ValueError: an unknown transport, or an invalid address.
        TypeError: neither text nor a ChannelTransport.
    """
    global _chosen
    wanted = _read(transport)
    with _lock:
        if wanted == _chosen:
            return
        if _chosen is not None:
            raise RuntimeError(
                f"the transport of this program is {_text(_chosen)}, and cannot become "
                f"{_text(wanted)}: a program has one transport"
            )
        if current_session() is not None:
            raise RuntimeError(
                f"enable_transport({_text(wanted)!r}) comes too late: this program has processes "
                "already; call it before anything else, or call shutdown_context() first"
            )
        _chosen = wanted


def _read(transport: object) -> ChannelTransport | Address:
    if isinstance(transport, ChannelTransport):
        return transport
    if not isinstance(transport, str):
        raise TypeError(
            f"transport={transport!r}: give a ChannelTransport, {_CHOICES} or an address"
        )
    if "://" in transport:
        return parse_listening(transport).bind
    for one in ChannelTransport:
        if transport == one.value:
            return one
    hint = ""
    if "tls" in transport:
        hint = "; traffic between hosts is always encrypted with the keys of the job: use 'tcp'"
    raise ValueError(
        f"there is no transport {transport!r}: give {_CHOICES} or tcp://HOST:PORT{hint}"
    )


def _text(chosen: ChannelTransport | Address) -> str:
    return chosen.value if isinstance(chosen, ChannelTransport) else str(chosen)


def check_transport(addresses: Iterable[Address]) -> None:
    """Raise RuntimeError if an address is on another host and the program excluded those."""
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
    """Undo `enable_transport`. For tests."""
    global _chosen
    _chosen = None
