"""Runs: a list that stores equal neighbours once, and decodes a value on first read. No I/O.

Invariants: ``_ends`` is None if and only if every run has length 1; else ``_ends[r]`` is the index
after the last element of run r, and the last is the length. ``_encoded`` is None if and only if no
cell is encoded; else its byte r is 1 exactly while cell r holds a payload. A cell is written before
its byte is cleared, both under ``_lock``, so a reader that finds the byte clear may read the cell
without the lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from math import copysign
from threading import RLock
from typing import Any, Generic, TypeAlias, TypeVar, cast

_V = TypeVar("_V")
_W = TypeVar("_W")
_P = TypeVar("_P")

_COMPARE_AT_MOST = 64 * 1024
"""Bytes or characters: longer values are folded only if they are the same object.

So the time for folding is negligible beside the time in which the values arrived.
"""

_BUFFERS = frozenset((bytes, bytearray, memoryview))
_Tuple: TypeAlias = "tuple[object, ...]"
_new: Any = object.__new__


def alike(a: object, b: object) -> bool:
    """Whether one value may stand for the other: the same object, or cheaply found to be equal.

    ``==`` is called only on builtin atoms of exactly one type, so never on an array or a tensor;
    short tuples are compared atom by atom. 1, 1.0 and True differ, and so do 0.0 and -0.0.
    """
    if a is b:
        return True
    if type(a) is tuple and type(b) is tuple:
        return _same_tuple(cast(_Tuple, a), cast(_Tuple, b), _same_atom)
    return _same_atom(a, b)


def same_payload(a: object, b: object) -> bool:
    """Whether one payload may stand for the other: `alike`, or equal buffers.

    Payloads are only read, so mutable buffers may be folded too; values may not.
    """
    if a is b:
        return True
    if type(a) is tuple and type(b) is tuple:
        return _same_tuple(cast(_Tuple, a), cast(_Tuple, b), _same_bytes)
    return _same_bytes(cast(object, a), b)


def _same_tuple(a: _Tuple, b: _Tuple, same: Callable[[object, object], bool]) -> bool:
    # One level deep and short, so that nested tuples cost nothing and cannot exhaust the stack.
    return len(a) == len(b) <= 16 and all(x is y or same(x, y) for x, y in zip(a, b, strict=True))


def _same_atom(a: Any, b: Any) -> bool:
    kind = cast("type[object]", type(a))
    if kind is not type(b):
        return False
    if kind is int or kind is bool:
        return a == b
    if kind is str or kind is bytes:
        return len(a) == len(b) <= _COMPARE_AT_MOST and a == b
    if kind is float:
        return a == b and copysign(1.0, a) == copysign(1.0, b)
    if kind is complex:
        return _same_atom(a.real, b.real) and _same_atom(a.imag, b.imag)
    return False


def _same_bytes(a: object, b: object) -> bool:
    if type(a) is type(b) is bytes or not (type(a) in _BUFFERS and type(b) in _BUFFERS):
        return _same_atom(a, b)
    one, two = memoryview(cast(bytes, a)), memoryview(cast(bytes, b))
    # Other formats and layouts would be compared element by element, in Python, which is slow.
    return (
        one.format == two.format == "B"
        and one.ndim == two.ndim == 1
        and one.contiguous
        and two.contiguous
        and one.nbytes == two.nbytes <= _COMPARE_AT_MOST
        and one == two
    )


def fold(values: Iterable[_V], same: Callable[[_V, _V], bool] = alike) -> Iterator[tuple[int, _V]]:
    """(count, value) for every run of equal neighbours; the value is the first of them."""
    count = 0
    first: Any = None
    for value in values:
        if count and (first is value or same(first, value)):
            count += 1
            continue
        if count:
            yield count, first
        count, first = 1, value
    if count:
        yield count, first


class Runs(Generic[_V]):
    """A sequence of values that stores equal neighbours once.

    Immutable to its readers; any thread may read. Elements of one run are one object: a program
    that changes it in place changes it for all of them.
    """

    __slots__ = ("_cells", "_decode", "_encoded", "_ends", "_left", "_len", "_lock")

    _cells: list[Any]
    _ends: list[int] | None
    _len: int
    _encoded: bytearray | None
    _decode: Callable[[Any], _V] | None
    _left: int  # cells still encoded
    _lock: RLock  # re-entrant: decoding one value may read another

    def __init__(self, values: Iterable[_V]) -> None:
        self._fill(fold(values))

    @staticmethod
    def of_encoded(payloads: Iterable[_P], decode: Callable[[_P], _W]) -> Runs[_W]:
        """The values that ``decode`` makes of the payloads, each on first read.

        `decode` is called in the reading thread, at most once for a run of equal payloads, and its
        result is kept. If it raises, the reader gets the error, and the next read tries again. The
        payloads must not change in the meantime.
        """
        runs: Runs[_W] = _new(Runs)
        runs._fill(fold(payloads, same_payload))
        if runs._cells:
            runs._left = len(runs._cells)
            runs._encoded = bytearray(b"\x01") * runs._left
            runs._decode = decode
            runs._lock = RLock()
        return runs

    @staticmethod
    def of_counts(counted: Iterable[tuple[int, _W]]) -> Runs[_W]:
        """From (count, value) pairs, as in `counted`. ValueError if a count is below 1."""
        runs: Runs[_W] = _new(Runs)
        runs._fill(counted)
        return runs

    def _fill(self, counted: Iterable[tuple[int, Any]]) -> None:
        cells: list[Any] = []
        ends: list[int] = []
        end = 0
        for count, value in counted:
            if count < 1:
                raise ValueError(f"a run has length {count}; the shortest is 1")
            end += count
            ends.append(end)
            cells.append(value)
        self._cells = cells
        self._len = end
        self._ends = ends if end != len(cells) else None
        self._encoded = None
        self._decode = None

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, at: int) -> _V:
        """The value at an index from 0. IndexError if it is negative or out of range."""
        if not 0 <= at < self._len:
            raise IndexError(f"no value at {at}; there are {self._len}, counted from 0")
        return self._read(at if self._ends is None else bisect_right(self._ends, at))

    def __iter__(self) -> Iterator[_V]:
        if self._ends is None:
            for run in range(len(self._cells)):
                yield self._read(run)
        else:
            start = 0
            for run, end in enumerate(self._ends):
                yield from repeat(self._read(run), end - start)
                start = end

    def counted(self) -> Iterator[tuple[int, _V]]:
        """(count, value) for every run, in order."""
        start = 0
        for run in range(len(self._cells)):
            end = run + 1 if self._ends is None else self._ends[run]
            yield end - start, self._read(run)
            start = end

    def __reduce__(self) -> tuple[object, ...]:
        return Runs.of_counts, (list(self.counted()),)  # decoded: only this process can decode

    def _read(self, run: int) -> _V:
        encoded = self._encoded
        if encoded is not None and encoded[run]:
            self._decode_cell(run, encoded)
        return self._cells[run]

    def _decode_cell(self, run: int, encoded: bytearray) -> None:
        with self._lock:
            if not encoded[run] or self._decode is None:
                return  # another thread was first
            value = self._decode(self._cells[run])
            if not encoded[run]:
                return  # `decode` read this cell itself: keep the value of that read
            self._cells[run] = value
            encoded[run] = 0
            self._left -= 1
            if not self._left:
                self._encoded = None
                self._decode = None
