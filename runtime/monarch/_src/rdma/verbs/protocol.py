"""What the two sides of a connection of queue pairs say to each other. No I/O.

These go as MessagePack in `body` of AskData and of its answer (`docs/reference/protocol.md`):
CONNECT says `Connect` and is answered `Connected`, GRANT says `Wants` and is answered `Grants`,
HANG_UP says the channel and is answered nothing.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from monarch._src.rdma.handle import Owner
from monarch._src.rdma.verbs.device_choice import Place
from monarch._src.wire.msgpack_text import UNREADABLE

T = TypeVar("T")


class Ends(msgspec.Struct, frozen=True, array_like=True):
    """One side: its port, and for each queue pair its number and first packet number.

    `mtu`: bytes of the largest packet. `reads_out`, `reads_in`: how many READs a queue pair may
    have under way, and serve, at once.
    """

    place: Place
    mtu: int
    reads_out: int
    reads_in: int
    pairs: tuple[tuple[int, int], ...]


class Connect(msgspec.Struct, frozen=True, array_like=True):
    """Who asks (a data plane, as an owner has it), under which name for this, and its side."""

    channel: bytes
    who: Owner
    ends: Ends


class Connected(msgspec.Struct, frozen=True, array_like=True):
    """The owner's side, and where peers may try the connection; or why there is none."""

    ends: Ends | None
    probe_address: int = 0
    probe_rkey: int = 0
    probe_size: int = 0
    reason: str = ""
    remedy: str = ""


class Want(msgspec.Struct, frozen=True, array_like=True):
    """A handle, as far as the owner needs it."""

    slot: int
    key: bytes
    size: int


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Where a region lies and the card's key for it. Stale: the handle opens nothing."""

    address: int
    rkey: int
    readonly: bool = False
    stale: bool = False
    reason: str = ""
    remedy: str = ""


class Wants(msgspec.Struct, frozen=True, array_like=True):
    """Regions that the channel of that name wants to reach."""

    channel: bytes
    wants: tuple[Want, ...]


class Grants(msgspec.Struct, frozen=True, array_like=True):
    """The answers, in order. `known`: whether the owner still has that channel."""

    known: bool
    grants: tuple[Grant, ...] = ()


encode = msgspec.msgpack.Encoder().encode


def decode(data: bytes, kind: type[T]) -> T:
    """ValueError if these bytes are no such thing."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNREADABLE as error:
        raise ValueError(f"this is no {kind.__name__}: {error}") from None
