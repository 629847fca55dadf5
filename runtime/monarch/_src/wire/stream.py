"""Messages of one or more frames in a stream of bytes, and back. No I/O.

    u32 n, below 2**24, big endian            a message of one frame of n bytes, which follow
    u32 2**31 + n | n times u64 | ...         one of n frames: their sizes, then they themselves

Nearly all messages are one frame: that costs four bytes and no look at what is in it. A frame that
does not come at once is received where it stays: the splitter says where the next bytes go.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from monarch._src.wire.frames import Buffer
from monarch._src.wire.memory_copies import CHEAP, room

MOST_FRAMES = 1 << 20
_ONE = 1 << 24  # what is no stream of messages, as text, hardly begins with a zero
_SEVERAL = 1 << 31
_HEAD = 4
_word = struct.Struct(">I").unpack_from


class StreamError(ValueError):
    """Bytes that are no stream of messages."""


def pack(frames: Sequence[Buffer]) -> list[Buffer]:
    """What to write, in order, nothing of it empty. Frames beside the first are not copied.

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
    """Finds the messages in what comes on one stream.

    `mark` is the first item of every message that is found from now on. While `into` is set, what
    comes next goes there (see `got`), and not to `feed`.
    """

    __slots__ = ("_frame", "_frames", "_rest", "_sizes", "into", "mark")

    def __init__(self, mark: bytes = b"") -> None:
        self.mark = mark
        self.into: memoryview | None = None
        self._rest = b""  # of a message whose beginning has come
        self._frames: list[Any] = []  # of a message of which not all has come: mark, frames
        self._sizes: list[int] = []  # of those of its frames that are still to come, last first
        self._frame: Any = None  # the one that is coming

    def feed(self, data: Buffer) -> list[list[Any]]:
        """The messages that are complete with these bytes, each as [mark, frame, ...].

        Frames beside the first can be written to.

        Raises:
            StreamError: this is no stream of messages; nothing more can be had from it.
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
                raise StreamError(f"no message begins with the bytes {data[at:begin].hex()}")
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
        """So many bytes have been put to where `into` says; the message that is complete so."""
        into = self.into
        assert into is not None
        if count < len(into):
            self.into = into[count:]
            return None
        self._keep()
        self._take(b"", 0)
        return self._whole() if self.into is None else None

    def _whole(self) -> list[Any]:
        whole, self._frames = self._frames, []  # it is not ours to hold any more
        whole[0] = self.mark
        return whole

    def _take(self, data: bytes, at: int) -> int:
        """The frames of this message that are in the data; where in it they end."""
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
        """The frame that was coming is there."""
        first = len(self._frames) == 1
        self._frames.append(self._frame.toreadonly() if first else self._frame)
        self._frame = self.into = None
