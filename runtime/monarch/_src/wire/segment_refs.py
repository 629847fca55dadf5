"""Large parts of a payload that lie in a segment, memory that both sides map. No I/O.

`Payload.buffers` then holds one object for all of them: at the sender a `frames.Placed`, on the
wire an `InSegment`, at the receiver a `frames.Borrowed`. A relay has an `InSegment` and does
nothing about it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

SEGMENT_FROM = (128 + 4) << 10
"""The size in bytes from which data is *large*: it travels in a segment, and not in its message.

`tests/benchmarks/payload_sizes.py` gave it, with `--thresholds`. Up to 128 KiB a message that
carries its payload is the faster one. Beyond, the copies of it are memory that malloc takes from
the system for each message (glibc's limit is 128 KiB too), and a segment, which costs some 50 us a
message whatever its size, is faster. The 4 KiB are for what pickle adds to 128 KiB of data.
"""

Span: TypeAlias = tuple[int, int]  # offset in the segment, bytes


class InSegment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where the large parts of a payload are, and how its receiver may use them.

    host: stands for the host that it is on; on another one nothing is opened: there the gateway
        asks for the parts, and puts them into a segment of its own.
    pid, fd, file: the sender's process, its descriptor of the segment, the inode of that.
    key: stands at the beginning of the segment, so that it is known for the one that is meant.
    number: what the sender calls it.
    capacity: bytes of the whole segment.
    word: in which word of it the receiver says that it needs it no more; of a cast, the first's.
        For another host, by what number it asks.
    sole: nobody else gets the message, so the receiver may write to the segment itself.
    readonly: nobody writes to any of it.
    body: the first part is the body; the others are the buffers of it.
    use: how many messages were in the segment before this one, and one; it stands behind the key.
    """

    host: int
    pid: int
    fd: int
    file: int
    key: int
    number: int
    capacity: int
    word: int
    sole: bool
    readonly: bool
    body: bool
    spans: tuple[Span, ...]
    use: int = 0

    def __len__(self) -> int:
        return sum(length for _, length in self.spans)

    def is_sound(self, header: int) -> bool:
        """Whether it may be true: every part lies in the segment, behind its header."""
        return (
            0 < self.pid < 1 << 32 > self.fd >= 0 <= self.file < 1 << 64
            and 0 <= self.key < 1 << 62 and 0 < self.capacity < 1 << 48
            and 0 <= self.use < 1 << 32 and 0 <= self.word < 1 << 62
            and all(
                header <= at and length >= 0 and at + length <= self.capacity
                for at, length in self.spans
            )
        )  # fmt: skip
