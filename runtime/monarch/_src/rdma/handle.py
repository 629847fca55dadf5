"""A handle: what a process needs to reach memory of another one, and nothing that it could misuse.

No I/O. It has no address: where the bytes are stands in the owner's table of keys, which is looked
at for each transfer, so that an old or an invented handle leads nowhere.
"""

from __future__ import annotations

# hmac and secrets have it, and load OpenSSL.
from _operator import _compare_digest  # pyright: ignore[reportPrivateUsage]

import msgspec

from monarch._src.wire.msgpack_text import UNREADABLE

VERSION = 2
KEY_BYTES = 16


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """A process that has registered memory.

    `incarnation`: random, of this data plane of this process. `page`: the number, there, of the
    descriptor of its table of keys; -1 if it has none that others can open. `address`: where its
    node listens.
    """

    incarnation: bytes
    host: str
    pid: int
    page: int
    node: str
    address: str


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """One registered range of bytes. `actor` is who registered it, in words and by its id."""

    version: int
    owner: Owner
    slot: int
    key: bytes
    size: int
    readonly: bool
    shared: bool  # whether it lies in a segment that others can map
    actor: str
    actor_id: str
    gpu: bool = False  # whether it is memory of a GPU

    @property
    def text(self) -> str:
        """For errors; the key is not in it."""
        return f"the RDMABuffer of {self.size:,} bytes of {self.actor} (pid {self.owner.pid})"


def same(one: bytes, other: bytes) -> bool:
    """Whether two keys are equal, in a time that does not tell how much of them is."""
    return _compare_digest(one, other)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Handle)


def encode(handle: Handle) -> bytes:
    """For a pickle."""
    return _encoder.encode(handle)


def decode(data: bytes) -> Handle:
    """ValueError if these are not the bytes of a handle of this version."""
    try:
        handle = _decoder.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"this is no handle of an RDMABuffer: {error}") from None
    if handle.version != VERSION:
        raise ValueError(
            f"a handle of version {handle.version} of the data plane; this process has {VERSION}"
        )
    keys = len(handle.key), len(handle.owner.incarnation)
    if keys != (KEY_BYTES, KEY_BYTES) or not 0 <= handle.slot < 1 << 32 or handle.size <= 0:
        raise ValueError("this is no handle of an RDMABuffer: its fields make no sense")
    return handle
