"""Relays: sockets whose bytes travel through ports, in the event loop of an actor.

Runs in: ranks, as tasks of an actor. Owns: the sockets that it is given. Only endpoints import it,
since it loads asyncio.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

from monarch._src.actor.ports import Port, PortReceiver, unheeded
from monarch._src.job.port_forward.messages import Data, EndOfData, Message, Reset, Taken
from monarch._src.job.state.relay import RelayState

LOOPBACK = ("127.0.0.1", "::1")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


async def connect(port: int) -> socket.socket:
    """A connection to that port of this host's loopback interface, by IPv4 or IPv6.

    Raises:
        OSError: nothing listens there.
    """
    failure: OSError | None = None
    for host in LOOPBACK:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except OSError as error:
            sock.close()
            failure = failure or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    assert failure is not None
    raise OSError(failure.errno, f"port {port} of the destination: {failure.strerror}")


def reset(sock: socket.socket) -> None:
    """Close it so that the program at its other end sees a broken connection."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


class Relays:
    """The relays of one actor."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, sock: socket.socket, there: Port[Message], here: PortReceiver[Message]) -> None:
        """Relay between that socket and the ports, until both directions have ended."""
        task = asyncio.create_task(_Relay(sock, there).run(here))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Break all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Relay:
    """One end of a connection."""

    def __init__(self, sock: socket.socket, there: Port[Message]) -> None:
        self._sock = sock
        self._there = unheeded(there)  # the other end may be gone
        self._state = RelayState()
        self._has_room = asyncio.Event()

    async def run(self, here: PortReceiver[Message]) -> None:
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write(here))
        both = {reading, writing}
        try:
            while not self._state.is_over and both:
                done, both = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
        except OSError:  # the program here, or at the other end, is gone
            self._there.send(Reset())
            reset(self._sock)
        except asyncio.CancelledError:
            self._there.send(Reset())
            reset(self._sock)
            raise
        finally:
            for one in (reading, writing):
                one.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            self._sock.close()

    async def _read(self) -> None:
        """Send the bytes that the program here writes."""
        loop = asyncio.get_running_loop()
        while not self._state.has_read_all:
            while not (room := self._state.room):
                self._has_room.clear()
                await self._has_room.wait()
            data = await loop.sock_recv(self._sock, room)
            self._state.on_read(len(data))
            self._there.send(Data(data) if data else EndOfData())

    async def _write(self, here: PortReceiver[Message]) -> None:
        """Write the bytes that come from the other end."""
        loop = asyncio.get_running_loop()
        while not self._state.is_over:
            message = await here.recv()
            if isinstance(message, Data):
                await loop.sock_sendall(self._sock, message.data)
                self._there.send(Taken(len(message.data)))
            elif isinstance(message, Taken):
                self._state.on_taken(message.written)
                self._has_room.set()
            elif isinstance(message, EndOfData):
                self._sock.shutdown(socket.SHUT_WR)
                self._state.on_end_written()
            else:
                raise ConnectionResetError("the other end has broken")
