"""The messages on a TCP connection of the data plane. No I/O.

A connection begins as described in `net.streams.sockets`, and then carries one request
after another.

    request   magic, kind, slot, incarnation, key, size of the region, offset, size   72 bytes
    answer    magic, status, bytes done; if a GPU failed, its error's number          16 bytes
    READ      answer, then the bytes
    WRITE     answer, then the requester sends the bytes, then another answer
    ECHO      `size` bytes there, the same back: the probe
    HERE      not answered: the requests now go in the other direction; `key` is the ticket
    PART      a piece of a payload, with more fields after the request: answer, then the bytes

    PART      REQUEST: fd as slot, key and inode as key, size of the segment, offset in it, size
              pid, part, word, offset in the part, use                               32 bytes
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

MAGIC = b"MRDM"
READ, WRITE, ECHO, HERE, PART = 1, 2, 3, 4, 5
DONE, STALE, REFUSED, WRONG_PROCESS, FAILED = 0, 1, 2, 3, 4
REQUEST = struct.Struct("<4sII16s16sQQQ4x")
ANSWER = struct.Struct("<4sIQ")
PLACE = struct.Struct("<IIQQI4x")
_KEY_AND_FILE = struct.Struct("<QQ")
ECHO_BYTES = 4096
TICKET_BYTES = 16  # a ticket travels in the field for a key
HELLO_S = 10.0  # how long a connection may take for its first request, or for the first answer


class Request(NamedTuple):
    """A request to a server, after its incarnation has been checked."""

    what: int
    slot: int
    key: bytes
    whole: int
    offset: int
    size: int


class PartRequest(msgspec.Struct, frozen=True):
    """A request for a piece of a payload: `size` bytes of a part, from `at` in it.

    In another process's segment the piece is at `offset`; for the server's own payloads, `word`
    is the number of the payload. The other fields are those of `InSegment`.
    """

    pid: int
    fd: int
    file: int
    key: int
    capacity: int
    use: int
    word: int
    part: int
    at: int
    offset: int
    size: int

    def packed(self, incarnation: bytes) -> bytes:
        """The bytes of the request to the server of that incarnation."""
        key = _KEY_AND_FILE.pack(self.key, self.file)
        head = REQUEST.pack(
            MAGIC, PART, self.fd, incarnation, key, self.capacity, self.offset, self.size
        )
        return head + PLACE.pack(self.pid, self.part, self.word, self.at, self.use)

    @classmethod
    def unpacked(cls, request: Request, place: bytes | bytearray) -> PartRequest:
        """The request in a `Request` and the PLACE after it."""
        key, file = _KEY_AND_FILE.unpack(request.key)
        pid, part, word, at, use = PLACE.unpack(place)
        return cls(
            pid, request.slot, file, key, request.whole, use, word, part, at, request.offset,
            request.size,
        )  # fmt: skip
