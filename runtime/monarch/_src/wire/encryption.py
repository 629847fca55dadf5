"""Records of bytes, encrypted with a key that only two ends know. No I/O.

    u32 n, big endian, 1 to RECORD | n bytes, encrypted | tag, 16 bytes

AES-256 in Galois/counter mode (NIST SP 800-38D), by `cryptography` and OpenSSL. The nonce of a
record is the number of records before it under the same key, so a key is used for only one
direction of one connection. A record that was changed, dropped, repeated or moved is not accepted.
"""

from __future__ import annotations

import struct

# `hmac` and `secrets` export this function too, but load OpenSSL.
from _operator import _compare_digest  # pyright: ignore[reportPrivateUsage]
from typing import Any

from monarch._src.wire.frames import Buffer

KEY_BYTES = 32
RECORD = 3 << 18  # most bytes in one: with smaller ones, 256 MiB take up to 1.7 times as long
HEAD = 4
TAG = 16
ROOM = HEAD + RECORD + TAG
_word = struct.Struct(">I")
_NONCE = 12
_KEPT = 8  # buffers that are kept for further large records
_rooms: list[bytearray] = []


def same_secret(one: bytes, other: bytes) -> bool:
    """Whether two keys, proofs or tickets are equal, in constant time."""
    return _compare_digest(one, other)


class SealError(ValueError):
    """A record was not encrypted by the other end, or is not the next one."""


class Sealer:
    """Encrypts one direction of one connection."""

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
    """Decrypts one direction of one connection."""

    __slots__ = ("_aead", "_count")

    def __init__(self, key: bytes) -> None:
        self._aead = _aead(key)
        self._count = 0

    def unseal(self, record: memoryview) -> bytes:
        """The bytes in the next record.

        Raises:
            SealError: it is not the next record that was encrypted with this key.
        """
        return self._open(self._aead.decrypt, record)

    def unseal_into(self, record: memoryview, into: memoryview) -> None:
        """The same, written to memory of exactly that size.

        Raises:
            SealError: it is not the next record; the contents of `into` are undefined then.
        """
        self._open(self._aead.decrypt_into, record, into)

    def _open(self, opens: Any, record: memoryview, *into: memoryview) -> Any:
        nonce = self._count.to_bytes(_NONCE, "big")
        self._count += 1
        try:
            return opens(nonce, record[HEAD:], record[:HEAD], *into)
        except _invalid():
            raise SealError("a record that the other end did not encrypt") from None


def room_for_one() -> bytearray:
    """A buffer of ROOM bytes, reused if possible; `give_back` it."""
    try:
        return _rooms.pop()
    except IndexError:
        return bytearray(ROOM)


def give_back(room: bytearray) -> None:
    """Return a buffer that is no longer in use."""
    if len(_rooms) < _KEPT:
        _rooms.append(room)


def sealed_size(record: Buffer) -> int:
    """The number of bytes in the record that begins there.

    Raises:
        SealError: this is not the head of a record.
    """
    (size,) = _word.unpack_from(record)
    if not 0 < size <= RECORD:
        raise SealError(f"a record cannot have {size} bytes")
    return size


def _aead(key: bytes) -> Any:
    # Imported with the first encrypted connection: most processes have none.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, and not {len(key)}")
    return AESGCM(key)


def _invalid() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
