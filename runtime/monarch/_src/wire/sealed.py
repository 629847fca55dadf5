"""Bytes sealed with a key that only two ends know, in records, in order. No I/O.

    u32 n, big endian, 1 to RECORD | n bytes, encrypted | tag, 16 bytes

If the top bit of the first word is set, what is sealed is of the other of two kinds, whatever these
mean to who uses them; it is sealed with the rest.

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
_OTHER = 1 << 31
ROOM = HEAD + RECORD + TAG
_word = struct.Struct(">I")
_NONCE = 12
_KEPT = 8  # rooms that wait for who next seals or opens large records
_rooms: list[bytearray] = []


class SealError(ValueError):
    """Bytes that whoever has the key did not write, or not here."""


class Sealer:
    """One direction of one connection, at who writes."""

    __slots__ = ("_aead", "_count", "_into")

    def __init__(self, key: bytes) -> None:
        """`key`: of KEY_BYTES bytes, never used before."""
        self._aead = _aead(key)
        self._count = 0
        self._into: bytearray | None = None

    def seal(self, data: Buffer, *, other: bool = False) -> bytes:
        """A record of at least one byte; `other`: of the other kind."""
        head = (len(data) | _OTHER if other else len(data)).to_bytes(HEAD, "big")
        nonce = self._count.to_bytes(_NONCE, "big")
        self._count += 1
        return head + self._aead.encrypt(nonce, data, head)

    def seal_large(self, data: Buffer) -> memoryview:
        """The same in memory that is used again by the next one."""
        if self._into is None:
            self._into = room_for_one()
        return self.seal_into(data, memoryview(self._into))

    def rest(self) -> None:
        """What `seal_large` has returned last is not needed any more."""
        if self._into is not None:
            give_back(self._into)
            self._into = None

    def seal_into(self, data: Buffer, room: memoryview) -> memoryview:
        """The same in that memory, which has HEAD + TAG bytes more than the data; what is used."""
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


def head_at(room: Buffer, at: int) -> tuple[int, bool]:
    """How many bytes are sealed in the record that begins there; whether it is of the other kind.

    Raises:
        SealError: that is no head of a record.
    """
    (word,) = _word.unpack_from(room, at)
    size = word & ~_OTHER
    if not 0 < size <= RECORD:
        raise SealError(f"no record has {size} bytes")
    return size, word != size


def _aead(key: bytes) -> Any:
    # Loaded when the first connection is sealed: most processes have none.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, and not {len(key)}")
    return AESGCM(key)


def _invalid() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
