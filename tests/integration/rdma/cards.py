"""Two sides of `ibverbs` in this process: what the control plane would carry is handed over."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from monarch._src.rdma.handle import VERSION, Handle
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports.base import Piece
from monarch._src.rdma.transports.ibverbs import IbverbsLink
from monarch._src.rdma.verbs.card import Card
from monarch._src.rdma.verbs.process_card import Cards, Watch

PATIENCE_S = 120.0


class Side:
    """A process as far as the card knows it: its regions and its card."""

    def __init__(self, name: str) -> None:
        self.regions = Regions(name, "nowhere")
        self.watched: dict[int, Callable[[], None]] = {}
        self.known = {name}
        self._kept: list[Any] = []
        self.cards = Cards(
            self.regions,
            Watch(self._watch, self._unwatch, self.known.__contains__, self._at_once),
        )

    def _watch(self, fd: int, ended: Callable[[], None]) -> None:
        self.watched[fd] = ended

    def _unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def _at_once(self, work: Callable[[], None]) -> bool:
        work()
        return True

    def share(self, value: Any) -> Handle:
        """Register memory."""
        memory = memory_of(value)
        slot, key, shared = self.regions.register(memory)
        return Handle(
            VERSION, self.regions.owner, slot, key, memory.size, memory.readonly, shared, "a", "a"
        )

    def make(self, size: int, seed: int) -> Handle:
        """Memory that stays."""
        self._kept.append(bytes_of(size, seed))
        return self.share(self._kept[-1])

    def close(self) -> None:
        self.cards.end_serving()
        self.regions.close()
        self.cards.close()


class Both:
    """An owner, a mover, and the mover's link to the owner."""

    def __init__(self) -> None:
        self.owner, self.mover = Side("owner"), Side("mover")
        self.owner.known.add("mover")
        self.asked: list[int] = []
        self.gone = False
        try:
            self.link = self.another_link()
        except BaseException:
            self.mover.close()
            self.owner.close()
            raise

    def another_link(self) -> IbverbsLink:
        def ask(what: int, body: bytes, deadline: float) -> bytes:
            self.asked.append(what)
            return self.owner.cards.answer(what, body)

        return self.mover.cards.link(
            self.owner.regions.owner, ask, self.owner.cards.answer, lambda: self.gone,
            time.monotonic() + PATIENCE_S,
        )  # fmt: skip

    @property
    def card(self) -> Card:
        return self.mover.cards.card()

    def read(self, handle: Handle, room: Any, deadline_s: float = PATIENCE_S) -> None:
        self.link.read_into([self.piece(handle, room)], time.monotonic() + deadline_s)

    def write(self, handle: Handle, data: Any, deadline_s: float = PATIENCE_S) -> None:
        self.link.write_from([self.piece(handle, data)], time.monotonic() + deadline_s)

    def piece(self, handle: Handle, value: Any) -> Piece:
        memory = memory_of(value)
        return Piece(handle, 0, memory.address, min(handle.size, memory.size), memory)

    def key_of(self, value: Any) -> tuple[int, Any]:
        """The card's key of memory of this side; see `Card.key_of`."""
        return self.card.key_of(memory_of(value), 0, 0, writable=True)

    def close(self) -> None:
        self.link.close()
        self.mover.close()
        self.owner.close()


@contextmanager
def both_sides() -> Iterator[Both]:
    both = Both()
    try:
        yield both
    finally:
        both.close()


def bytes_of(size: int, seed: int) -> numpy.ndarray[Any, Any]:
    """Bytes that repeat late."""
    block = numpy.random.default_rng(seed).integers(0, 256, 4093, numpy.uint8)
    return numpy.resize(block, size)


def events_open() -> int:
    """How many descriptors of cards this process has."""
    gc.collect()
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "infiniband" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # the one that listed them
    return found
