"""An open card, the local memory that it may use, and one thread for completions.

Runs in: any process that moves bytes over a card or whose memory is moved over one. The poller is a
thread of its own, which sleeps until a completion channel is readable.
Owns: a context, a protection domain, registrations of local memory, the poller.
Invariants: a registration ends before the memory that it pins may be used otherwise. There is one
poller for each card, however many peers there are.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from monarch._src.rdma.memory import Memory, span_of_root
from monarch._src.rdma.shared_segments import segment_of
from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.verbs import sysfs
from monarch._src.rdma.verbs.device_choice import ChosenPort, choose
from monarch._src.rdma.verbs.protocol import Ends
from monarch._src.rdma.verbs.pyverbs import verbs


class Watched(Protocol):
    """An object with a descriptor that the poller watches."""

    fd: int

    def on_events(self) -> None:
        """Handle that the descriptor is readable."""
        ...


class Card:
    """The card of this process. Raises TransportFailed if there is none that can be used."""

    def __init__(self) -> None:
        place, reason = choose(sysfs.devices())
        if place is None:
            raise TransportFailed(reason)
        self.place: ChosenPort = place
        self.verbs = verbs()
        self.context, self.domain, self.limits = self.verbs.open(place.device, place.port)
        self._own: dict[tuple[int, bool], tuple[weakref.ref[Any], Any, int, int]] = {}
        self.registered = 0  # registrations of local memory so far
        self._closed = False
        self._watched: dict[int, Watched] = {}
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._poller = threading.Thread(target=self._run, name="monarch-data-verbs", daemon=True)
        self._poller.start()

    def queue_pairs(self, count: int, queue: Any, depth: int) -> list[Any]:
        """That many queue pairs, to be connected. Raises TransportFailed."""
        pairs: list[Any] = []
        try:
            while len(pairs) < count:
                pairs.append(self.verbs.queue_pair(self.domain, queue, self.place.port, depth))
        except BaseException:
            self.destroy(pairs)
            raise
        return pairs

    def destroy(self, pairs: Sequence[Any]) -> None:
        """Destroy queue pairs; the card stops to work on their requests."""
        for pair in pairs:
            self.verbs.close(pair)

    def ends(self, pairs: Sequence[Any], first: Sequence[int]) -> Ends:
        """The local side of queue pairs that are to be connected."""
        numbers = tuple((pair.qp_num, n) for pair, n in zip(pairs, first, strict=True))
        limits = self.limits
        return Ends(self.place, limits.mtu, limits.reads_out, limits.reads_in, numbers)

    # --- local memory -----------------------------------------------------------------------------

    def key_of(
        self, memory: Memory, address: int, nbytes: int, *, writable: bool
    ) -> tuple[int, Any]:
        """The card's key of local memory, and the registration to close after use, if any.

        The registration of a storage is kept until the storage ends, which a weak reference
        reports. Other memory is registered for one transfer.
        """
        writable = writable and not memory.readonly
        root = memory.root
        start, size = span_of_root(root, memory.address, memory.size)
        found = segment_of(memory.address, memory.size)
        whole = None if found is None or found[0].root is None else found[0].root()
        if found is not None and whole is not None:
            root, start, size = whole, found[0].address, found[0].size
        if root is None:
            mr = self._register(address, nbytes, writable)
            return mr.lkey, mr
        key = id(root), writable
        known = self._own.get(key)
        if known is not None and known[0]() is root and known[2] == start and known[3] == size:
            return known[1].lkey, None
        mr = self._register(start, size, writable)
        ref = weakref.ref(root, lambda ref: self._freed(key, ref))
        kept = self._own.setdefault(key, (ref, mr, start, size))
        if kept[1] is not mr:  # another thread was faster
            return mr.lkey, mr
        return mr.lkey, None

    def _register(self, start: int, size: int, writable: bool) -> Any:
        self.registered += 1
        return self.verbs.register(self.domain, start, size, writable=writable, remote=False)

    def _freed(self, key: tuple[int, bool], ref: weakref.ref[Any]) -> None:
        """A storage is about to be freed: on any thread, under any lock. Takes no lock."""
        known = self._own.get(key)
        if known is not None and known[0] is ref and not self._closed:
            del self._own[key]
            self.verbs.close(known[1])

    # --- the poller -------------------------------------------------------------------------------

    def watch(self, channel: Watched) -> None:
        """Have the poller watch its descriptor."""
        self._watched[channel.fd] = channel
        self._poll.register(channel.fd, select.EPOLLIN)

    def unwatch(self, channel: Watched) -> None:
        """Stop to watch it. Call it before the descriptor is closed. Idempotent."""
        if self._watched.get(channel.fd) is channel:
            del self._watched[channel.fd]
            self._poll.unregister(channel.fd)

    def _run(self) -> None:
        while not self._closed:
            for fd, _ in self._poll.poll():
                channel = self._watched.get(fd)
                if channel is not None:
                    channel.on_events()

    def close(self) -> None:
        """Close the card. No channel may be open any more. Idempotent."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._wake, 1)
        self._poller.join()
        self._poll.close()
        os.close(self._wake)
        for _, mr, _, _ in list(self._own.values()):
            self.verbs.close(mr)
        self._own.clear()
        self.verbs.close(self.domain)
        self.verbs.close(self.context)


def first_packet() -> int:
    """An unpredictable number for the first packet of a connection: 24 bits."""
    return int.from_bytes(os.urandom(3), "big")
