"""What is said on a TCP connection of the data plane. No I/O.

A connection begins as `rdma.transports.tcp_sockets` says, and then carries one request after
another.

    request   magic, what, slot, incarnation, key, size of the region, offset, size   72 bytes
    answer    magic, status, bytes done; if a GPU failed, its error's number          16 bytes
    READ      answer, then the bytes
    WRITE     answer, then the requester sends the bytes, then another answer
    ECHO      so many bytes there, the same back: the probe
    HERE      not answered: from here on the requests go the other way; `key` is the ticket
    PART      a piece of a payload, of which more is said behind the request: answer, then the bytes

    PART      REQUEST: fd as slot, key and inode as key, size of the segment, offset in it, size
              pid, part, word, where in the part, use                                32 bytes
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
HELLO_S = 10.0  # how long a connection may take to say its first request, or to be answered one


class Request(NamedTuple):
    """What is asked of a server, once it was found to be the one that is meant."""

    what: int
    slot: int
    key: bytes
    whole: int
    offset: int
    size: int


class PartAsked(msgspec.Struct, frozen=True):
    """A piece of a payload: so many bytes of that part, from `at` in it.

    In another process's segment they are at `offset`; of the server's own payloads, `word` says
    which is meant. For the others see `InSegment`.
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
        """As it is said to the server of that incarnation."""
        key = _KEY_AND_FILE.pack(self.key, self.file)
        head = REQUEST.pack(
            MAGIC, PART, self.fd, incarnation, key, self.capacity, self.offset, self.size
        )
        return head + PLACE.pack(self.pid, self.part, self.word, self.at, self.use)

    @classmethod
    def unpacked(cls, request: Request, place: bytes | bytearray) -> PartAsked:
        """What such a request and the PLACE behind it say."""
        key, file = _KEY_AND_FILE.unpack(request.key)
        pid, part, word, at, use = PLACE.unpack(place)
        return cls(
            pid, request.slot, file, key, request.whole, use, word, part, at, request.offset,
            request.size,
        )  # fmt: skip
