"""A handle: everything that a process needs to reach registered memory of another process.

No I/O. It contains no address: the owner's table of keys has the address, and is consulted for each
transfer, so that an outdated or forged handle leads nowhere.
"""

from __future__ import annotations

import msgspec

from monarch._src.wire.msgpack_text import UNREADABLE

VERSION = 2
KEY_BYTES = 16


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """A process that has registered memory.

    incarnation: random, for this data plane of this process.
    page: the number in that process of the descriptor of its table of keys; -1 if other processes
        cannot open it.
    address: where its node listens.
    """

    incarnation: bytes
    host: str
    pid: int
    page: int
    node: str
    address: str


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """One registered range of bytes. `actor` names the actor that registered it; see its id."""

    version: int
    owner: Owner
    slot: int
    key: bytes
    size: int
    readonly: bool
    shared: bool  # whether the memory is in a segment that other processes can map
    actor: str
    actor_id: str
    gpu: bool = False  # whether the memory is on a GPU

    @property
    def text(self) -> str:
        """A description for errors, without the key."""
        return f"the RDMABuffer of {self.size:,} bytes of {self.actor} (pid {self.owner.pid})"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Handle)


def encode(handle: Handle) -> bytes:
    """The bytes for a pickle."""
    return _encoder.encode(handle)


def decode(data: bytes) -> Handle:
    """The handle in these bytes. Raises ValueError if there is none of this version."""
    try:
        handle = _decoder.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"this is not a handle of an RDMABuffer: {error}") from None
    if handle.version != VERSION:
        raise ValueError(
            f"a handle of version {handle.version} of the data plane; this process has {VERSION}"
        )
    keys = len(handle.key), len(handle.owner.incarnation)
    if keys != (KEY_BYTES, KEY_BYTES) or not 0 <= handle.slot < 1 << 32 or handle.size <= 0:
        raise ValueError("this is not a handle of an RDMABuffer: its fields are inconsistent")
    return handle
