"""The two sides of a transfer, as actors: who has memory, and who moves it."""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy

from monarch._src.actor.runtime import runtime
from monarch._src.net.streams.sockets import LOOPBACK
from monarch._src.rdma import peer_transports, plane
from monarch._src.rdma.plane import plane_of
from monarch._src.rdma.transports.base import Piece, Transport, TransportFailed
from monarch._src.system import shared_memory
from monarch.actor import Actor, endpoint
from monarch.config import configure
from monarch.rdma import RDMAAction, RDMABuffer, shared_empty, transports

TRANSPORTS = ["shm", "cma", "tcp"]
ENCRYPTED = "tcp encrypted"


class Way(str):
    """The name of a transport, and who has memory and who moves it.

    Two ways over one transport are equal: parameters of tests are their texts.
    """

    parties: tuple[type[Holder], type[Mover]]


def way_over(text: str) -> str:
    """What one of TRANSPORTS, or ENCRYPTED, says."""
    if text != ENCRYPTED:
        return text
    made = Way("tcp")
    made.parties = (FarHolder, Mover)
    return made


def sides_of(transport: str) -> tuple[type[Holder], type[Mover]]:
    """Who has memory and who moves it over that transport; see `Way`."""
    return getattr(transport, "parties", (Holder, Mover))


def pattern(size: int, seed: int = 0) -> numpy.ndarray[Any, Any]:
    """Bytes that differ from their neighbours, and from those a page or a piece further."""
    found = numpy.empty(size, numpy.uint8)
    fill(found, seed)
    return found


def fill(memory: numpy.ndarray[Any, Any], seed: int) -> None:
    """Put the pattern there."""
    for place, block in _blocks(len(memory), seed):
        memory[place] = block


def is_pattern(memory: numpy.ndarray[Any, Any], seed: int) -> bool:
    """Whether it is the pattern, all of it."""
    return all(bool((memory[place] == block).all()) for place, block in _blocks(len(memory), seed))


def _blocks(size: int, seed: int) -> Iterator[tuple[slice, numpy.ndarray[Any, Any]]]:
    """Where, and what, a block at a time: a gibibyte takes a second."""
    block = _block()
    at = 0
    while at < size:
        number, start = divmod(seed + at, len(block))
        piece = block[start : start + size - at]
        yield slice(at, at + len(piece)), piece + numpy.uint8(37 * number % 256)
        at += len(piece)


@cache
def _block() -> numpy.ndarray[Any, Any]:
    numbers = numpy.arange(1 << 21, dtype=numpy.uint64)
    return ((numbers * 2654435761) >> 13).astype(numpy.uint8)


class Holder(Actor):
    """Has memory, and does nothing for who moves it. Of the host; `gpu_parties` has others."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.buffers: list[RDMABuffer] = []

    @endpoint
    def make(self, size: int, shared: bool, offset: int = 0, seed: int = 0) -> RDMABuffer:
        memory = self.memory(size + offset, shared)
        self.fill(memory[offset:], seed)
        self.arrays.append(memory[offset:])
        self.buffers.append(RDMABuffer(memory[offset:]))
        return self.buffers[-1]

    def memory(self, size: int, shared: bool) -> Any:
        if shared:
            return numpy.frombuffer(shared_empty(size), numpy.uint8)
        return numpy.zeros(size, numpy.uint8)

    def fill(self, memory: Any, seed: int) -> None:
        fill(memory, seed)

    def seen(self, memory: Any) -> numpy.ndarray[Any, Any]:
        return memory

    def address(self, memory: Any) -> int:
        return memory.ctypes.data

    @endpoint
    def holds(self, at: int, size: int, seed: int) -> bool:
        return is_pattern(self.seen(self.arrays[at][:size]), seed)

    @endpoint
    def data(self, at: int) -> bytes:
        return self.arrays[at].tobytes()

    @endpoint
    def forget(self) -> None:
        self.arrays.clear()
        self.buffers.clear()
        gc.collect()

    @endpoint
    def refill(self, size: int) -> int:
        """Free the memory and have other things in its place."""
        del self.buffers[:]
        address = self.address(self.arrays[0])
        self.arrays.clear()
        gc.collect()
        found = 0
        for _ in range(20):
            other = self.full_of(0xEE, size)
            self.arrays.append(other)
            found += self.address(other) == address
        return found

    def full_of(self, value: int, size: int) -> Any:
        return numpy.full(size, value, numpy.uint8)

    @endpoint
    def hold_the_lock(self, fifo: str, at: int) -> None:
        """Say so in memory, then keep the interpreter's lock until the FIFO is written to."""
        fd = os.open(fifo, os.O_RDWR)
        self.arrays[at][0] = 1
        ctypes.PyDLL(None).read(fd, ctypes.create_string_buffer(1), 1)
        os.close(fd)
        self.arrays[at][0] = 2

    @endpoint
    def wait_for(self, fifo: str, at: int) -> None:
        """The same, without the lock: its thread is busy, others of the process may run."""
        self.arrays[at][0] = 1
        with open(fifo, "rb") as waiting:
            waiting.read(1)
        self.arrays[at][0] = 2

    @endpoint
    def facts(self) -> dict[str, int]:
        """What this process has open."""
        return open_things()

    @endpoint
    def registered(self) -> int:
        return plane_of(runtime()).regions.registered


class FarHolder(Holder):
    """Serves everybody over TCP as it does other hosts: encrypted."""

    def __init__(self) -> None:
        super().__init__()
        be_far()


def be_far() -> None:
    """Have this process serve its memory to everybody over TCP as it does to other hosts."""
    configure(rdma_encrypt_tcp=True)
    dialling = plane_of(runtime()).dialling
    dialling._is_near = lambda _: False
    dialling._serves_at = lambda: (LOOPBACK, [LOOPBACK])


class Mover(Actor):
    """Moves bytes between its own memory, which is the host's here, and that of others."""

    def room(self, size: int, value: int = 0) -> Any:
        return numpy.full(size, value, numpy.uint8)

    def plain(self, size: int) -> Any:
        """Memory that does not tell of its end."""
        return bytearray(size)

    def seen(self, room: Any) -> numpy.ndarray[Any, Any]:
        return room

    def filled(self, size: int, seed: int) -> Any:
        return pattern(size, seed)

    def clear(self, room: Any) -> None:
        room[:] = 0

    @endpoint
    def only(self, *names: str) -> None:
        """Know no other transports from here on; to be said before the first transfer."""
        peer_transports.ORDER = tuple(names)
        warnings.simplefilter("ignore")

    @endpoint
    def forbid_tcp(self) -> None:
        configure(rdma_allow_tcp_fallback=False)

    @endpoint
    def ways(self) -> list[str]:
        return [str(use) for use in transports()]

    @endpoint
    def backend(self, buffer: RDMABuffer) -> str:
        return buffer.backend

    @endpoint
    def read(self, buffer: RDMABuffer, seed: int = 0, offset: int = 0, timeout: float = 60) -> str:
        """Read all of it to an odd place; the transport that did it."""
        room = self.room(buffer.size() + offset + 1, 0xAA)
        buffer.read_into(room[offset : offset + buffer.size()], timeout=timeout).get()
        seen = self.seen(room)
        assert is_pattern(seen[offset:-1], seed), "wrong bytes"
        assert (seen[:offset] == 0xAA).all()
        assert seen[-1] == 0xAA, "bytes beyond the end"
        return buffer.backend

    @endpoint
    def write(self, buffer: RDMABuffer, size: int, seed: int) -> str:
        buffer.write_from(self.filled(size, seed)).get()
        return buffer.backend

    @endpoint
    def first_byte(self, buffer: RDMABuffer) -> int:
        room = self.plain(buffer.size())
        buffer.read_into(room).get()
        return int(self.seen(room)[0])

    @endpoint
    def read_many(self, buffers: list[RDMABuffer]) -> bool:
        """All at once, each by itself."""
        rooms = [self.room(buffer.size()) for buffer in buffers]
        futures = [b.read_into(room) for b, room in zip(buffers, rooms, strict=True)]
        for future in futures:
            future.get()
        return self._all_there(rooms)

    def _all_there(self, rooms: list[Any]) -> bool:
        return all((self.seen(r) == pattern(len(r), n)).all() for n, r in enumerate(rooms))

    @endpoint
    def batch(self, sources: list[RDMABuffer], sinks: list[RDMABuffer]) -> bool:
        """All in one action, which is submitted twice."""
        action = RDMAAction()
        rooms = [self.room(buffer.size()) for buffer in sources]
        for room, source in zip(rooms, sources, strict=True):
            action.read_remote(room, source)
        for n, sink in enumerate(sinks):
            action.write_remote(sink, self.filled(sink.size(), 100 + n))
        action.submit().get()
        for room in rooms:
            self.clear(room)
        action.submit().get()
        return self._all_there(rooms)

    @endpoint
    def repeat(self, buffer: RDMABuffer, times: int) -> dict[str, int]:
        room = self.plain(buffer.size())
        for _ in range(times):
            buffer.read_into(room).get()
            buffer.write_from(room).get()
        return open_things()

    @endpoint
    def read_each(self, buffers: list[RDMABuffer]) -> int:
        """Read what can still be read; how many could not."""
        lost = 0
        for buffer in buffers:
            try:
                buffer.read_into(self.plain(buffer.size())).get()
            except RuntimeError:
                lost += 1
        return lost

    @endpoint
    def facts(self) -> dict[str, int]:
        return open_things()

    @endpoint
    def used(self) -> list[tuple[str | None, dict[str, str], dict[str, int]]]:
        return [(use.transport, use.failed, use.transfers) for use in transports()]

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get()
        buffer.drop().get()

    # --- faults: real ones in the middle of a transfer, or a transport that cannot go on ----------

    @endpoint
    def forget(self, buffer: RDMABuffer) -> None:
        """Know nothing of the owner: no connection, no failure, no warning that was given."""
        plane.forget_warnings()
        plane_of(runtime())._forget(buffer.handle().owner.incarnation)

    @endpoint
    def break_transport(self, buffer: RDMABuffer, name: str, when: str) -> None:
        """That transport to the owner fails: at its opening, in the first read, or half way."""

        def refuse(pieces: Sequence[Piece], calls: int) -> None:
            if when == "first" or calls > 1:
                raise TransportFailed("it was cut by the test", "don't cut it")

        def opener(deadline: float) -> Transport:
            if when == "open":
                raise TransportFailed("it was cut by the test", "don't cut it")
            link = real(deadline)
            return _watched(link, refuse)

        openers = plane_of(runtime()).pair(buffer.handle().owner).openers
        real = openers[name]
        openers[name] = opener

    @endpoint
    def read_with_warnings(
        self, buffer: RDMABuffer, seed: int
    ) -> tuple[str, list[tuple[str, str]]]:
        room = self.room(buffer.size())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                self.clear(room)
                buffer.read_into(room).get()
                assert (self.seen(room) == pattern(len(room), seed)).all(), "wrong bytes"
        return buffer.backend, [(w.category.__name__, str(w.message)) for w in caught]

    @endpoint
    def kill_half_way(self, buffer: RDMABuffer, who: str, way: str) -> None:
        """Kill the owner, or ourselves, when one piece is done and others are not."""
        victim = buffer.handle().owner.pid if who == "owner" else os.getpid()

        def kill(pieces: Sequence[Piece], calls: int) -> None:
            if calls == 2:
                end = os.pidfd_open(victim)
                os.kill(victim, signal.SIGKILL)
                select.select([end], [], [])
                os.close(end)

        openers = plane_of(runtime()).pair(buffer.handle().owner).openers
        for name, opener in list(openers.items()):
            openers[name] = _watching(opener, kill)
        room = self.room(buffer.size())
        move = buffer.read_into if way == "read" else buffer.write_from
        move(room).get()

    @endpoint
    def die_while_writing(self, buffer: RDMABuffer) -> None:
        """Die with the region locked, as the kernel copies into it."""
        copy_to = shared_memory.copy_to

        def copy_and_die(pid: int, vectors: Sequence[shared_memory.Vector]) -> int:
            if vectors[0][2] >= 1 << 16:  # not the probe
                os.kill(os.getpid(), signal.SIGKILL)
            return copy_to(pid, vectors)

        shared_memory.copy_to = copy_and_die
        buffer.write_from(numpy.zeros(buffer.size(), numpy.uint8)).get()


def _watching(
    opener: Callable[[float], Transport], before: Callable[[Sequence[Piece], int], None]
) -> Callable[[float], Transport]:
    return lambda deadline: _watched(opener(deadline), before)


def _watched(link: Any, before: Callable[[Sequence[Piece], int], None]) -> Transport:
    """The same link, one piece at a time, with something done before each call."""
    calls = 0

    def wrap(move: Callable[[Sequence[Piece], float], None]) -> Callable[..., None]:
        def moved(pieces: Sequence[Piece], deadline: float) -> None:
            nonlocal calls
            calls += 1
            before(pieces, calls)
            move(pieces, deadline)

        return moved

    link.read_into, link.write_from = wrap(link.read_into), wrap(link.write_from)
    link.streams, link.piece = 1, 1 << 18
    return link


def open_things() -> dict[str, int]:
    """Descriptors, and mappings of what other processes share, of this process."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        mapped = sum("memfd:monarch" in line for line in maps)
    return {"descriptors": len(os.listdir("/proc/self/fd")), "mappings": mapped}
