"""What is said on a TCP connection of the data plane. No I/O.

A connection begins as `rdma.transports.tcp_sockets` says, and then carries one request after
another.

    request   magic, what, slot, incarnation, key, size of the region, offset, size   72 bytes
    answer    magic, status, bytes done; if a GPU failed, its error's number          16 bytes
    READ      answer, then the bytes
    WRITE     answer, then the requester sends the bytes, then another answer
    ECHO      so many bytes there, the same back: the probe
    HERE      not answered: from here on the requests go the other way; `key` is the ticket
"""

from __future__ import annotations

import struct

MAGIC = b"MRDM"
READ, WRITE, ECHO, HERE = 1, 2, 3, 4
DONE, STALE, REFUSED, WRONG_PROCESS, FAILED = 0, 1, 2, 3, 4
REQUEST = struct.Struct("<4sII16s16sQQQ4x")
ANSWER = struct.Struct("<4sIQ")
ECHO_BYTES = 4096
HELLO_S = 10.0  # how long a connection may take to say its first request, or to be answered one
