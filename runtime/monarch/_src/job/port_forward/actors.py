"""The actors of a forward: `PortForwarder`, which owns it, and those on each side; their addresses.

Runs in: `PortForwarder` where the program spawns it, usually in the client; the others in the ranks
of the two meshes. Owns: the listening sockets, and every connection through them.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from monarch._src.actor.current import current_rank
from monarch._src.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch._src.actor.ports import Channel, Port
from monarch._src.errors import ActorError, SupervisionError
from monarch._src.job.port_forward.messages import Message
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.shape import Point, ValueMesh

if TYPE_CHECKING:
    from monarch._src.job.port_forward.relay import Relays

DestinationPort: TypeAlias = "int | Callable[[Point], int]"
SourceAddress: TypeAlias = "str | Callable[[Point], str]"
log = logging.getLogger("monarch.job")


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


def _relay() -> ModuleType:
    # It loads asyncio, which a client that only imports this module does not need.
    from monarch._src.job.port_forward import relay

    return relay


class Destination(Actor):
    """Connects to a port of its host."""

    __monarch_label__ = "the port forward"

    def __init__(self) -> None:
        self._port = 0
        self._relays: Relays = _relay().Relays()

    @endpoint
    async def configure(self, port: DestinationPort) -> int:
        """Take the port for this rank, and return it. ValueError if it is no port."""
        self._port = port_at(port, current_rank())
        return self._port

    @concurrent_endpoint
    async def open(self, there: Port[Message]) -> Port[Message]:
        """Connect; bytes go to `there`, and come to the port that this returns.

        Raises:
            OSError: nothing listens at that port.
        """
        sock = await _relay().connect(self._port)
        here, receiver = Channel[Message].open()
        self._relays.add(sock, there, receiver)
        return here

    async def __cleanup__(self, exc: Exception | None) -> None:
        await self._relays.close()


class Source(Actor):
    """Listens, and relays each connection to its destination."""

    __monarch_label__ = "the port forward"

    def __init__(self) -> None:
        self._relays: Relays = _relay().Relays()
        self._listener: socket.socket | None = None
        self._accepting: Any = None

    @endpoint
    async def start(self, destinations: Any, address: SourceAddress) -> str:
        """Listen at the address for this rank; return it with the port that was bound.

        Raises:
            ValueError: the text is no address. OSError: this rank cannot listen there.
        """
        import asyncio

        point = current_rank()
        host, port = address_at(address, point)
        listener = self._listener = _listen(host, port)
        destination = destinations.slice(**dict(point))
        self._accepting = asyncio.create_task(self._accept(listener, destination))
        return address_text(host, listener.getsockname()[1])

    async def _accept(self, listener: socket.socket, destination: Any) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        opening: set[Any] = set()
        try:
            while True:
                sock, _ = await loop.sock_accept(listener)
                one = asyncio.create_task(self._open(sock, destination))
                opening.add(one)
                one.add_done_callback(opening.discard)
        finally:
            for one in opening:
                one.cancel()

    async def _open(self, sock: socket.socket, destination: Any) -> None:
        relay = _relay()
        here, receiver = Channel[Message].open()
        try:
            there = await destination.open.call_one(here)
        except BaseException as error:
            relay.reset(sock)
            if isinstance(error, ActorError):
                log.warning("a forwarded connection was refused: %s", error.exception)
            elif not isinstance(error, SupervisionError):  # that is reported to the owner
                raise
        else:
            self._relays.add(sock, there, receiver)

    async def __cleanup__(self, exc: Exception | None) -> None:
        import asyncio

        if self._accepting is not None:
            self._accepting.cancel()
            with suppress(asyncio.CancelledError):
                await self._accepting
        if self._listener is not None:
            self._listener.close()
        await self._relays.close()


class PortForwarder(Actor):
    """Forwards TCP ports between processes of two meshes, point by point.

    Spawn it on `this_proc()`. Its end (`stop()`) closes every listener and connection.
    """

    @endpoint
    async def forward(
        self,
        dst_proc_mesh: ProcMesh,
        dst_port: int | Callable[[Point], int],
        src_proc_mesh: ProcMesh,
        src_address: str | Callable[[Point], str],
    ) -> ValueMesh[str]:
        """Listen on each source process, and relay its connections to the same point of the other.

        Bytes travel by the links of the session, so a port that a firewall closes can be reached.

        Args:
            dst_proc_mesh: processes that reach the service, by the loopback interface of its host.
            dst_port: the port of the service, from 1 to 65535, or a function of a `Point`.
            src_proc_mesh: processes that listen: a mesh of the same dims and sizes.
            src_address: `"ADDRESS:PORT"` to listen at, or a function of a `Point` to one; port 0
                means any that is free.

        Returns:
            The addresses, with the ports that were bound.

        Raises:
            ActorError: of a ValueError: the shapes differ, or an address or port is none; of an
                OSError: a process cannot listen there. Nothing is forwarded then.
        """
        there, here = dst_proc_mesh.extent, src_proc_mesh.extent
        if (there.labels, there.sizes) != (here.labels, here.sizes):
            raise ValueError(
                f"the meshes of a forward have the same dims and sizes, and these have {there} "
                f"(destination) and {here} (source): slice one"
            )
        if not callable(dst_port):
            checked_port("dst_port", dst_port)
        if not callable(src_address):
            parsed_address(src_address)
        destinations: Any = dst_proc_mesh.spawn("forwards_to", Destination)
        sources: Any = None
        try:
            await destinations.configure.call(dst_port)
            sources = src_proc_mesh.spawn("forwards_from", Source)
            return cast("ValueMesh[str]", await sources.start.call(destinations, src_address))
        except BaseException as error:
            for actors in (sources, destinations):
                if actors is not None:
                    await actors.stop()
            if isinstance(error, ActorError) and isinstance(error.exception, (OSError, ValueError)):
                raise error.exception from None  # it is told as the error of this call
            raise


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        code = error.errno or errno.EINVAL
        where = f"{address_text(host, port)} of {os.uname().nodename}"
        raise OSError(code, f"cannot listen at {where}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener
