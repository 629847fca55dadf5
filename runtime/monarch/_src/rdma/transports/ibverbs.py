"""RDMA network cards: bytes go from memory to memory by READ and WRITE, between hosts and on one.

The owner's processor takes no part. The process that moves bytes connects several queue pairs to
the owner's (INIT, RTR, RTS; their parameters go over the control plane), asks once for the location
of each region, then posts requests of up to 1 MiB to all of them. The owner's card checks the key
of a region with each packet, so a handle whose memory has ended leads nowhere (`verbs.grants`).

A queue pair that met an error is dead: the connection is made anew, and unfinished requests are
posted again. The transport has not failed if the owner has a new key for the region, or if the
error belongs to another transfer; otherwise it has, from the third time on.

Runs in: threads that move bytes; the card's poller counts completions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from monarch._src.rdma.handle import Handle, Owner
from monarch._src.rdma.memory import Memory
from monarch._src.rdma.regions import PROBE_ATTEMPTS, PROBE_CELL, probe_cell
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transports.base import HandleExpired, OwnerGone, Piece, TransportFailed
from monarch._src.rdma.verbs.card import Card
from monarch._src.rdma.verbs.channel import LANES, Channel
from monarch._src.rdma.verbs.protocol import (
    Connect,
    Connected,
    Grant,
    Grants,
    Want,
    Wants,
    decode,
    encode,
)
from monarch._src.rdma.verbs.pyverbs import REMOTE_ACCESS, REMOTE_INVALID, REMOTE_OPERATION
from monarch._src.rdma.verbs.scheduler import Chunk, cut_into
from monarch._src.wire.messages import CONNECT, GRANT, HANG_UP

Ask = Callable[[int, bytes, float], bytes]  # request, body, deadline: the owner's answer
FAILURES = 3
IN_VAIN = 16  # attempts that errors of other transfers ended before any byte was moved
_REFUSED = frozenset((REMOTE_INVALID, REMOTE_ACCESS, REMOTE_OPERATION))


class _Open(msgspec.Struct, eq=False):
    """A connection, and the owner's grants, which are valid for that connection only."""

    channel: Channel
    grants: dict[tuple[int, bytes], Grant] = msgspec.field(
        default_factory=dict[tuple[int, bytes], Grant]
    )


class IbverbsLink:
    """See `base.Transport`.

    Raises:
        TransportFailed: one of the processes has no card, or the probe failed.
        OwnerGone, DeadlineExceeded: as `ask` does.
    """

    name: ClassVar[str] = "ibverbs"
    at_once: ClassVar[bool] = False
    takes_gpus: ClassVar[bool] = False

    def __init__(
        self, owner: Owner, own: Owner, card: Card, ask: Ask, tell: Callable[[int, bytes], object],
        gone: Callable[[], bool], deadline: float,
    ) -> None:  # fmt: skip
        """`tell`: as `ask`, but waits for no answer. `gone`: whether the owner is known to have
        ended."""
        self._owner = owner
        self._own = own
        self._card = card
        self._ask, self._tell, self._gone = ask, tell, gone
        self._lock = threading.Lock()
        self._open: _Open | None = None
        self._closed = False
        self.piece = 1 << 26
        self.streams = 2
        self.connections = 0  # so far: more than one means that queue pairs were made anew
        self._connection(deadline)

    @property
    def channel(self) -> Channel | None:
        """The channel in use."""
        found = self._open
        return None if found is None else found.channel

    def granted(self, handle: Handle) -> Grant:
        """The owner's grant for a handle. KeyError: none was sent over this connection."""
        found = self._open
        if found is None:
            raise KeyError(handle.slot)
        return found.grants[handle.slot, handle.key]

    # --- the connection ---------------------------------------------------------------------------

    def _connection(self, deadline: float) -> _Open:
        """A working connection, made anew if necessary."""
        with self._lock:
            found = self._open
            if found is not None and found.channel.why is None:
                return found
            if self._closed:
                self._check_alive()
                raise TransportFailed("this process is leaving its session")
            if found is not None:
                self._hang_up(found)
            self._open = None
            self._open = self._connected(deadline)
            return self._open

    def _connected(self, deadline: float) -> _Open:
        channel = Channel(self._card, os.urandom(8))
        try:
            said = Connect(channel.name, self._own, channel.ends)
            answer = decode(self._ask(CONNECT, encode(said), deadline), Connected)
            if answer.ends is None:
                raise TransportFailed(f"process {self._owner.pid}: {answer.reason}", answer.remedy)
            found = _Open(channel)
            channel.connect(answer.ends)
            self._probe(channel, answer, deadline)
        except ValueError as error:
            channel.cut("the answer was unreadable")
            raise TransportFailed(str(error)) from error
        except BaseException:
            channel.cut("the connection could not be made")
            raise
        self.connections += 1
        return found

    def _probe(self, channel: Channel, there: Connected, deadline: float) -> None:
        """On every queue pair: write a block at the peer, read it back, compare."""
        block = bytearray(2 * LANES * PROBE_CELL)
        memory = memory_of(block)
        key, mr = self._card.key_of(memory, memory.address, memory.size, writable=True)
        half = LANES * PROBE_CELL
        try:
            for _ in range(PROBE_ATTEMPTS):
                sent = os.urandom(half)
                block[:half], block[half:] = sent, bytes(half)
                cells = [probe_cell() for _ in range(LANES)]
                for way, start in (("write", 0), ("read", half)):
                    chunks = [
                        Chunk(
                            memory.address + start + n * PROBE_CELL, key,
                            there.probe_address + cell, there.probe_rkey, PROBE_CELL,
                        )
                        for n, cell in enumerate(cells)
                    ]  # fmt: skip
                    done = channel.move(way, chunks, deadline)
                    if done.left:
                        self._check_alive()
                        raise TransportFailed(f"the probe failed: {done.why}")
                if bytes(block[half:]) == sent:
                    return
        finally:
            if mr is not None:
                self._card.verbs.close(mr)
        raise TransportFailed(
            "the probe read back other bytes than it had written to the other process"
        )

    def _hang_up(self, found: _Open) -> None:
        found.channel.cut("the connection was closed")
        self._tell(HANG_UP, found.channel.name)

    # --- transfers --------------------------------------------------------------------------------

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        self._move("read", pieces, deadline)

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        self._move("write", pieces, deadline)

    def _move(self, way: str, pieces: Sequence[Piece], deadline: float) -> None:
        total = sum(piece.size for piece in pieces)
        left = [
            (at, offset, size)
            for at, piece in enumerate(pieces)
            for offset, size in cut_into(piece.size, total, LANES)
        ]
        keys, temporary = self._own_keys(way, pieces)
        failures = in_vain = 0
        try:
            while left:
                found = self._connection(deadline)
                grants = self._grants(found, way, pieces, deadline)
                if grants is None:
                    continue  # the owner no longer has this connection
                chunks = [
                    Chunk(
                        pieces[at].address + offset, keys[at],
                        grants[at].address + pieces[at].offset + offset, grants[at].rkey, size,
                    )
                    for at, offset, size in left
                ]  # fmt: skip
                done = found.channel.move(way, chunks, deadline)
                left = [left[n] for n in done.left]
                if not left:
                    return
                self._check_alive()
                if self._closed:
                    raise TransportFailed("this process is leaving its session")
                in_vain = 0 if done.landed else in_vain + 1
                if done.status in _REFUSED and self._has_new_key(pieces, grants, deadline):
                    continue
                failures += done.status is not None
                if failures == FAILURES or in_vain == IN_VAIN:
                    at, offset, size = left[0]
                    raise TransportFailed(
                        f"{done.why}, {max(failures, in_vain)} times, over "
                        f"{self._card.place.text}; the first that is not done: {size:,} bytes at "
                        f"{pieces[at].offset + offset:,} of {pieces[at].handle.text}"
                    )
        finally:
            for mr in temporary:
                self._card.verbs.close(mr)

    def _own_keys(self, way: str, pieces: Sequence[Piece]) -> tuple[list[int], list[Any]]:
        """The card's keys of local memory, and the registrations to close after the transfer."""
        keys: list[int] = []
        temporary: list[Any] = []
        try:
            for piece in pieces:
                memory = piece.local or Memory(piece.address, piece.size, way == "write", None)
                key, mr = self._card.key_of(
                    memory, piece.address, piece.size, writable=way == "read"
                )
                if mr is not None:
                    temporary.append(mr)
                keys.append(key)
        except BaseException:
            for mr in temporary:
                self._card.verbs.close(mr)
            raise
        return keys, temporary

    def _grants(
        self, found: _Open, way: str, pieces: Sequence[Piece], deadline: float
    ) -> list[Grant] | None:
        """The grants of the regions; asks the owner for missing ones. None: connect anew.

        Raises:
            HandleExpired: a handle is not valid, or the region may not be written to.
            TransportFailed: the owner could not register a region.
        """
        wanted = {
            (piece.handle.slot, piece.handle.key): piece.handle
            for piece in pieces
            if (piece.handle.slot, piece.handle.key) not in found.grants
        }
        if wanted:
            told = self._asked(found.channel.name, list(wanted.values()), deadline)
            if told is None:
                found.channel.cut("the owner has closed it")
                return None
            found.grants.update(zip(wanted, told, strict=True))
        grants: list[Grant] = []
        for piece in pieces:
            grant = found.grants[piece.handle.slot, piece.handle.key]
            if grant.stale or (grant.readonly and way == "write"):
                raise HandleExpired(piece.handle)
            grants.append(grant)
        return grants

    def _asked(
        self, channel: bytes, handles: Sequence[Handle], deadline: float
    ) -> Sequence[Grant] | None:
        wants = tuple(Want(handle.slot, handle.key, handle.size) for handle in handles)
        try:
            answer = decode(self._ask(GRANT, encode(Wants(channel, wants)), deadline), Grants)
        except ValueError as error:
            raise TransportFailed(str(error)) from error
        if not answer.known:
            return None
        for handle, grant in zip(handles, answer.grants, strict=True):
            if grant.stale:
                raise HandleExpired(handle)
            if grant.reason:
                raise TransportFailed(f"process {self._owner.pid}: {grant.reason}", grant.remedy)
        return answer.grants

    def _has_new_key(
        self, pieces: Sequence[Piece], before: Sequence[Grant], deadline: float
    ) -> bool:
        """Whether the owner has another key than the refused one. Raises HandleExpired."""
        found = self._connection(deadline)
        grants = self._grants(found, "read", pieces, deadline)
        return grants is None or any(
            now.rkey != old.rkey for now, old in zip(grants, before, strict=True)
        )

    def _check_alive(self) -> None:
        if self._gone():
            raise OwnerGone("its process has ended")

    def close(self, *, now: bool = False) -> None:
        if not now:
            with self._lock:
                self._closed = True
                found, self._open = self._open, None
                if found is not None:
                    self._hang_up(found)
            return
        self._closed = True
        found = self._open  # without the lock: a thread may wait for the peer while it holds it
        if found is not None:
            found.channel.cut("this process is leaving its session, or the owner has ended")
            self._tell(HANG_UP, found.channel.name)
