"""References to large parts of a payload in a segment, memory that both sides map. No I/O.

`Payload.buffers` then has one object for all of them: in the sender a `frames.Placed`, on the wire
an `InSegment`, in the receiver a `frames.Borrowed`. A relay passes an `InSegment` on unchanged.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

SEGMENT_FROM = (128 + 4) << 10
"""The size in bytes from which on data is *large*: it travels in a segment, not in its message.

The value comes from `tests/benchmarks/payload_sizes.py --thresholds`. Up to 128 KiB a message that
contains its payload is faster. Beyond that, each of its copies needs memory from the system for
each message (glibc's limit is 128 KiB too); a segment, which takes some 50 us a message whatever
its size, is then faster. The 4 KiB are for the bytes that pickle adds to 128 KiB of data.
"""

Span: TypeAlias = tuple[int, int]  # offset in the segment, bytes


class InSegment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The place of the large parts of a payload, and the rules for their receiver.

    host: a number of the sender's host. On another host the gateway fetches the parts, and puts
        them into a segment of its own.
    pid, fd, file: the sender's process, its descriptor of the segment, the inode of that.
    key: is also at the beginning of the segment, and identifies it.
    number: the sender's number for the segment.
    capacity: bytes of the whole segment.
    word: the index of the word in which the receiver returns its loan; for a cast, that of the
        first receiver. For another host, the number for requests.
    sole: there is no other receiver, so this one may write to the segment itself.
    readonly: no process writes to any part.
    body: whether the first part is the body; the others are its buffers.
    use: counts the messages in the segment; follows the key there.
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
        """Whether it is consistent: every part lies in the segment, after its header."""
        return (
            0 < self.pid < 1 << 32 > self.fd >= 0 <= self.file < 1 << 64
            and 0 <= self.key < 1 << 62 and 0 < self.capacity < 1 << 48
            and 0 <= self.use < 1 << 32 and 0 <= self.word < 1 << 62
            and all(
                header <= at and length >= 0 and at + length <= self.capacity
                for at, length in self.spans
            )
        )  # fmt: skip
