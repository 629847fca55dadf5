"""What a rank tells its agent of the connections of its gloo groups. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

LARGEST = 1 << 16
"""Bytes of an encoded update."""
MOST_SOCKETS = 128
"""Sockets that one update names; the kernel passes at most 253 with a message."""


class Update(msgspec.Struct, array_like=True, frozen=True):
    """Sockets to keep a copy of, which come with the message in this order, and copies to close.

    A socket is named by its own address and that of its peer, as the kernel gives them.
    """

    keep: list[bytes]
    release: list[bytes]


def updates(before: Collection[bytes], now: Collection[bytes]) -> Iterator[Update]:
    """The updates that take an agent with copies of `before` to copies of `now`."""
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    for at in range(0, max(len(gone), len(new)), MOST_SOCKETS):
        yield Update(new[at : at + MOST_SOCKETS], gone[at : at + MOST_SOCKETS])


def encode(update: Update) -> bytes:
    """The update as bytes, at most `LARGEST`."""
    return msgspec.msgpack.encode(update)


def decode(data: bytes) -> Update:
    """The inverse of `encode`."""
    return msgspec.msgpack.decode(data, type=Update)
