"""Messages of one or more frames in a stream of bytes, and back. No I/O.

    u32 n, below 2**24, big endian            a message of one frame of n bytes, which follow
    u32 2**31 + n | n times u64 | ...         a message of n frames: their sizes, then the frames

Nearly all messages are one frame: that costs four bytes, and the contents are not examined. A frame
that does not come at once is received in place: the splitter provides the memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from monarch._src.wire.frames import Buffer
from monarch._src.wire.memory_copies import CHEAP, room

MOST_FRAMES = 1 << 20
_ONE = 1 << 24  # other data, such as text, rarely begins with a zero byte
_SEVERAL = 1 << 31
_HEAD = 4
_word = struct.Struct(">I").unpack_from


class StreamError(ValueError):
    """The bytes are not a stream of messages."""


def pack(frames: Sequence[Buffer]) -> list[Buffer]:
    """The buffers to write, in order, without empty ones. Only the first frame may be copied.

    Raises:
        ValueError: more than a million frames.
    """
    first = frames[0]
    count = len(frames)
    if count == 1 and len(first) < _ONE:
        word = len(first).to_bytes(_HEAD, "big")
        return [word + first] if len(first) < CHEAP else [word, first]
    if count > MOST_FRAMES:
        raise ValueError(f"a message of {count} frames; {MOST_FRAMES} are the most")
    sizes = struct.pack(f">{count}Q", *map(len, frames))
    head = (_SEVERAL | count).to_bytes(_HEAD, "big")
    return [b"".join((head, sizes, first)), *(frame for frame in frames[1:] if len(frame))]


class Splitter:
    """Finds the messages in the bytes of one stream.

    `mark` is the first item of every message that is found from now on. While `into` is set, the
    next bytes have to be written there (see `got`), not passed to `feed`.
    """

    __slots__ = ("_frame", "_frames", "_rest", "_sizes", "into", "mark")

    def __init__(self, mark: bytes = b"") -> None:
        self.mark = mark
        self.into: memoryview | None = None
        self._rest = b""  # the beginning of an incomplete message
        self._frames: list[Any] = []  # of an incomplete message: the mark, then complete frames
        self._sizes: list[int] = []  # of its outstanding frames, last first
        self._frame: Any = None  # the one that is being received

    def feed(self, data: Buffer) -> list[list[Any]]:
        """The messages that these bytes complete, each as [mark, frame, ...].

        Frames after the first can be written to.

        Raises:
            StreamError: this is not a stream of messages; do not feed it any more.
        """
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if end >= _HEAD and _word(data)[0] == end - _HEAD:  # one message, as mostly
            self._rest = b""
            return [[self.mark, bytes(data[_HEAD:])]]
        data = bytes(data)
        found: list[list[Any]] = []
        while end - at >= _HEAD:
            (first,) = _word(data, at)
            begin = at + _HEAD
            if first < _ONE:
                stop = begin + first
                if stop <= end:
                    found.append([self.mark, data[begin:stop]])
                    at = stop
                    continue
                self._sizes, self._frames = [first], [self.mark]
                at = self._take(data, begin)
                break
            count = first ^ _SEVERAL
            if not 0 < count <= MOST_FRAMES:
                raise StreamError(f"a message cannot begin with the bytes {data[at:begin].hex()}")
            frames = begin + 8 * count
            if frames > end:
                break
            self._sizes = list(struct.unpack_from(f">{count}Q", data, begin))[::-1]
            self._frames = [self.mark]
            at = self._take(data, frames)
            if self.into is not None:
                break
            found.append(self._whole())
        self._rest = data[at:]
        return found

    def got(self, count: int) -> list[Any] | None:
        """`count` bytes were written to `into`: the message that they complete, if any."""
        into = self.into
        assert into is not None
        if count < len(into):
            self.into = into[count:]
            return None
        self._keep()
        self._take(b"", 0)
        return self._whole() if self.into is None else None

    def _whole(self) -> list[Any]:
        whole, self._frames = self._frames, []  # keep no reference to it
        whole[0] = self.mark
        return whole

    def _take(self, data: bytes, at: int) -> int:
        """Take the frames of this message in the data; returns the offset of their end."""
        end = len(data)
        while self._sizes:
            size = self._sizes.pop()
            there = min(size, end - at)
            try:
                self._frame = frame = room(size)
            except (MemoryError, OverflowError, OSError) as error:
                raise StreamError(f"there is no memory for a frame of {size} bytes") from error
            frame[:there] = data[at : at + there]
            at += there
            if there < size:
                self.into = frame[there:]
                return at
            self._keep()
        return at

    def _keep(self) -> None:
        """The frame that was being received is complete."""
        first = len(self._frames) == 1
        self._frames.append(self._frame.toreadonly() if first else self._frame)
        self._frame = self.into = None
