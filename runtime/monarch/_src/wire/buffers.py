"""Immutable bytes in pieces: written, sent without a copy, read. No I/O."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from monarch._src.config import settings
from monarch._src.wire.memory_copies import bytes_from, copied

ReadableBuffer: TypeAlias = "bytes | bytearray | memoryview | Any"  # any object with a buffer
_SEARCHED = 1 << 12


class Buffer:
    """Collects bytes to be sent; `freeze()` makes them readable.

    `write` takes the data as they are at that moment. A `bytes` of at least `small_write_threshold`
    (256) bytes, or a view of one, is kept without a copy; smaller data and mutable memory are
    copied once. So a `bytearray` or an array may be reused as soon as `write` has returned.

    It can be an argument or a result, and arrives as a Buffer with the same bytes, to which more
    can be written. Pieces of 132 KiB and more are sent without another copy. Only one thread at a
    time may use it.
    """

    __slots__ = ("_length", "_pending", "_pieces", "_threshold")

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        self._pending = bytearray()  # small writes, which follow the pieces
        self._length = 0
        self._threshold = settings().small_write_threshold

    def write(self, data: ReadableBuffer, /) -> int:
        """Append data; returns its size in bytes.

        Raises:
            TypeError: the data is not a buffer; text has to be encoded first.
        """
        try:
            view = memoryview(data)
        except TypeError:
            raise TypeError(
                f"Buffer.write takes bytes or another buffer, not {type(data).__qualname__}"
                + ("; encode the text first" if isinstance(data, str) else "")
            ) from None
        size = view.nbytes
        if size < self._threshold:
            self._pending += view if view.c_contiguous else view.tobytes()
        elif size:
            self._end_piece()
            self._pieces.append(_kept(view))
        self._length += size
        return size

    def freeze(self) -> FrozenBuffer:
        """All bytes written so far, for reading; this buffer is empty afterwards."""
        self._end_piece()
        pieces, self._pieces, self._length = self._pieces, [], 0
        return FrozenBuffer(pieces)

    def _end_piece(self) -> None:
        if self._pending:
            self._pieces.append(memoryview(self._pending).toreadonly())
            self._pending = bytearray()

    def _continue(self, frozen: FrozenBuffer) -> None:
        self._pieces, self._length = list(frozen), len(frozen)

    def __len__(self) -> int:
        """How many bytes have been written."""
        return self._length

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        self._end_piece()
        return _written, _for_pickle(self._pieces, protocol)

    def __repr__(self) -> str:
        return f"<Buffer of {self._length} bytes>"


class FrozenBuffer:
    """Immutable bytes, in one piece or several; made by `Buffer.freeze()`.

    It is read from the front like a file: bytes that were read are gone, and `len` is the number of
    bytes left. `bytes(frozen)`, `getbuffer()` and iteration return the bytes that are left without
    consuming them; iteration yields the pieces as read-only views. From Python 3.12 it is a buffer
    itself (`memoryview(frozen)`).

    It can be an argument or a result. Pieces of 132 KiB and more are sent without a copy, and
    arrive as views of the received memory, without being joined. Only one thread at a time may use
    it.
    """

    __slots__ = ("_left", "_pieces")

    def __init__(self, pieces: Iterable[memoryview] = ()) -> None:
        """`pieces`: flat read-only views of memory that does not change any more."""
        self._pieces = deque(pieces)
        self._left = sum(map(len, self._pieces))

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes, or fewer if fewer are left; all if it is negative or None.

        A `bytes` that was written in one piece and is read whole is the same object, not a copy.
        """
        taken = self._take(self._left if size is None or size < 0 else size)
        return whole(taken[0]) if len(taken) == 1 else b"".join(taken)

    def readline(self, size: int | None = -1, /) -> bytes:
        """The bytes up to and including the next newline, at most `size`; all if there is none."""
        most = self._left if size is None or size < 0 else min(size, self._left)
        return self.read(self._through_newline(most))

    def readinto(self, target: Any, /) -> int:
        """Read into writable memory until it is full or nothing is left; returns the byte count."""
        room = memoryview(target).cast("B")
        at = 0
        for piece in self._take(len(room)):
            room[at : at + len(piece)] = piece
            at += len(piece)
        return at

    def getbuffer(self) -> memoryview:
        """A read-only view of all bytes left; several pieces are joined first, once."""
        if len(self._pieces) > 1:
            self._pieces = deque([memoryview(b"".join(self._pieces))])
        return self._pieces[0] if self._pieces else memoryview(b"")

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.getbuffer()

    def _take(self, size: int) -> list[memoryview]:
        taken: list[memoryview] = []
        pieces = self._pieces
        size = min(size, self._left)
        self._left -= size
        while size:
            piece = pieces.popleft()
            if len(piece) > size:
                pieces.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        return taken

    def _through_newline(self, most: int) -> int:
        seen = 0
        for piece in self._pieces:
            for at in range(0, len(piece), _SEARCHED):
                if seen >= most:
                    return most
                found = piece[at : at + _SEARCHED].tobytes().find(b"\n")
                if found >= 0:
                    return min(seen + found + 1, most)
                seen += min(_SEARCHED, len(piece) - at)
        return most

    def __len__(self) -> int:
        """How many bytes are left to read."""
        return self._left

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def __iter__(self) -> Iterator[memoryview]:
        """The pieces that are left."""
        return iter(tuple(self._pieces))

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        return _frozen, _for_pickle(self._pieces, protocol)

    def __repr__(self) -> str:
        count = len(self._pieces)
        return f"<FrozenBuffer of {self._left} bytes in {count} piece{'s' * (count != 1)}>"


def _kept(view: memoryview) -> memoryview:
    """The present bytes of a view, flat and immutable: a copy if the memory is mutable."""
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    is_flat = view.format == "B" and view.ndim == 1
    flat = view if is_flat else pickle.PickleBuffer(view).raw()  # `cast` refuses some formats
    return flat if type(view.obj) is bytes else memoryview(copied(flat)).toreadonly()


def _for_pickle(pieces: Iterable[memoryview], protocol: Any) -> tuple[Any, ...]:
    kind: Any = pickle.PickleBuffer if protocol >= 5 else bytes
    return tuple(map(kind, pieces))


def _frozen(*pieces: Any) -> FrozenBuffer:
    return FrozenBuffer([memoryview(piece).toreadonly() for piece in pieces])


def _written(*pieces: Any) -> Buffer:
    buffer = Buffer()
    buffer._continue(_frozen(*pieces))  # pyright: ignore[reportPrivateUsage]
    return buffer


def whole(view: memoryview) -> bytes:
    """The bytes of a view: the original object if the view shows all of it, otherwise a copy."""
    owner = view.obj
    while type(owner) is memoryview:
        owner = owner.obj
    return owner if type(owner) is bytes and len(owner) == view.nbytes else bytes_from(view)
