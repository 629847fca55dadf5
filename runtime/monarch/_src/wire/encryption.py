"""Bytes sealed with a key that only two ends know, in records, in order. No I/O.

    u32 n, big endian, 1 to RECORD | n bytes, encrypted | tag, 16 bytes

AES-256 in Galois/counter mode (NIST SP 800-38D), as `cryptography` has it of OpenSSL. The nonce of
a record is how many went before it under the same key, which is therefore used for one direction of
one connection. So a record that was changed, left out, said again or moved opens nowhere.
"""

from __future__ import annotations

import struct
from typing import Any

from monarch._src.wire.frames import Buffer

KEY_BYTES = 32
RECORD = 3 << 18  # bytes in one at most: fewer cost 256 MiB between hosts up to 1.7 times as long
HEAD = 4
TAG = 16
ROOM = HEAD + RECORD + TAG
_word = struct.Struct(">I")
_NONCE = 12
_KEPT = 8  # rooms that are kept for the next large records
_rooms: list[bytearray] = []


class SealError(ValueError):
    """Bytes that whoever has the key did not write, or not here."""


class Sealer:
    """One direction of one connection, at who writes."""

    __slots__ = ("_aead", "_count")

    def __init__(self, key: bytes) -> None:
        """`key`: of KEY_BYTES bytes, never used before."""
        self._aead = _aead(key)
        self._count = 0

    def seal_into(self, data: Buffer, room: memoryview) -> memoryview:
        """Seal at least one byte into memory with HEAD + TAG bytes more; returns the record."""
        size = len(data)
        nonce = self._count.to_bytes(_NONCE, "big")
        self._count += 1
        end = HEAD + size + TAG
        _word.pack_into(room, 0, size)
        self._aead.encrypt_into(nonce, data, room[:HEAD], room[HEAD:end])
        return room[:end]


class Unsealer:
    """The same direction, at who reads."""

    __slots__ = ("_aead", "_count")

    def __init__(self, key: bytes) -> None:
        self._aead = _aead(key)
        self._count = 0

    def unseal(self, record: memoryview) -> bytes:
        """What is in the next record.

        Raises:
            SealError: it is not the next one that was sealed with this key.
        """
        return self._open(self._aead.decrypt, record)

    def unseal_into(self, record: memoryview, into: memoryview) -> None:
        """The same, put where there is room for just so many bytes.

        Raises:
            SealError: it is not the next one; what is in `into` is not said.
        """
        self._open(self._aead.decrypt_into, record, into)

    def _open(self, opens: Any, record: memoryview, *into: memoryview) -> Any:
        nonce = self._count.to_bytes(_NONCE, "big")
        self._count += 1
        try:
            return opens(nonce, record[HEAD:], record[:HEAD], *into)
        except _invalid():
            raise SealError("a record that was not sealed by the other end") from None


def room_for_one() -> bytearray:
    """ROOM bytes, most likely of who had them before; `give_back` them."""
    try:
        return _rooms.pop()
    except IndexError:
        return bytearray(ROOM)


def give_back(room: bytearray) -> None:
    """Nobody looks at that any more."""
    if len(_rooms) < _KEPT:
        _rooms.append(room)


def sealed_size(record: Buffer) -> int:
    """How many bytes are sealed in the record that begins there.

    Raises:
        SealError: that is no head of a record.
    """
    (size,) = _word.unpack_from(record)
    if not 0 < size <= RECORD:
        raise SealError(f"no record has {size} bytes")
    return size


def _aead(key: bytes) -> Any:
    # Loaded when the first connection is sealed: most processes have none.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, and not {len(key)}")
    return AESGCM(key)


def _invalid() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
