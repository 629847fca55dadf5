"""The actors of a forward: `PortForwarder`, which owns it, and those on each side.

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
from typing import TYPE_CHECKING, Any, cast

from monarch._src.actor.current import current_rank
from monarch._src.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch._src.actor.ports import Channel, Port
from monarch._src.errors import ActorError, SupervisionError
from monarch._src.job.port_forward.addresses import (
    DestinationPort,
    SourceAddress,
    address_at,
    address_text,
    checked_port,
    parsed_address,
    port_at,
)
from monarch._src.job.port_forward.messages import Message
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.shape import Point, ValueMesh

if TYPE_CHECKING:
    from monarch._src.job.port_forward.relay import Relays

log = logging.getLogger("monarch.job")


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
