"""The messages of the two sides of a connection of queue pairs. No I/O.

They are MessagePack in `body` of AskData and of its answer (`docs/reference/protocol.md`): CONNECT
sends `Connect` and gets `Connected`, GRANT sends `Wants` and gets `Grants`, HANG_UP sends the name
of the channel and gets no answer.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from monarch._src.rdma.handle import Owner
from monarch._src.rdma.verbs.device_choice import ChosenPort
from monarch._src.wire.msgpack_text import UNREADABLE

T = TypeVar("T")


class Ends(msgspec.Struct, frozen=True, array_like=True):
    """One side: its port, and for each queue pair its number and first packet number.

    `mtu`: bytes of the largest packet. `reads_out`, `reads_in`: how many READs a queue pair may
    have open in each direction.
    """

    place: ChosenPort
    mtu: int
    reads_out: int
    reads_in: int
    pairs: tuple[tuple[int, int], ...]


class Connect(msgspec.Struct, frozen=True, array_like=True):
    """A request to connect: the name of the channel, the requester and its side."""

    channel: bytes
    who: Owner
    ends: Ends


class Connected(msgspec.Struct, frozen=True, array_like=True):
    """The owner's side, and the memory for the probe; or the reason why there is no connection."""

    ends: Ends | None
    probe_address: int = 0
    probe_rkey: int = 0
    probe_size: int = 0
    reason: str = ""
    remedy: str = ""


class Want(msgspec.Struct, frozen=True, array_like=True):
    """A handle, reduced to the fields that the owner needs."""

    slot: int
    key: bytes
    size: int


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """The address of a region and the card's key for it. Stale: the handle is not valid."""

    address: int
    rkey: int
    readonly: bool = False
    stale: bool = False
    reason: str = ""
    remedy: str = ""


class Wants(msgspec.Struct, frozen=True, array_like=True):
    """The regions that a channel wants to reach."""

    channel: bytes
    wants: tuple[Want, ...]


class Grants(msgspec.Struct, frozen=True, array_like=True):
    """The answers, in order. `known`: whether the owner still has that channel."""

    known: bool
    grants: tuple[Grant, ...] = ()


encode = msgspec.msgpack.Encoder().encode


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a message. Raises ValueError if the bytes are not one of that kind."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNREADABLE as error:
        raise ValueError(f"this is not a {kind.__name__}: {error}") from None
