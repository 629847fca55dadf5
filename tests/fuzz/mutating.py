"""Malformed input made of valid input: by its structure, by its bytes, by its frames. No I/O.

All choices come from a `Source`, which is a seeded generator, or the bytes of a guided fuzzer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

T = TypeVar("T")
JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 127, 128, (1 << 31) - 1, 1 << 32, -(1 << 63), (1 << 64) - 1, 0.5,
    float("nan"), float("inf"), "", "x", "x" * 5000, "\0", "../../etc", "agent", "client-1", b"",
    b"\xff" * 40, [], {}, [None] * 40, {"a": {"b": []}}, [[[[[[[[]]]]]]]],
)  # fmt: skip
DEEP = 40


class Source(Protocol):
    """Where choices come from."""

    def below(self, bound: int) -> int:
        """A number from 0 to below `bound`, which is at least 1."""
        ...

    def some(self, most: int) -> bytes:
        """That many bytes at most."""
        ...


class Seeded:
    """A generator of the standard library."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def some(self, most: int) -> bytes:
        return self._random.randbytes(self.below(most + 1))


class Bytes:
    """Those of a guided fuzzer, in order; zeros behind them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, bound: int) -> int:
        size = max(1, ((bound - 1).bit_length() + 7) // 8)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") % bound

    def some(self, most: int) -> bytes:
        size = self.below(most + 1)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken


def one_of(source: Source, choices: Sequence[T]) -> T:
    return choices[source.below(len(choices))]


def value(source: Source, old: Any, depth: int = 0) -> Any:
    """That value with one thing in it changed."""
    if isinstance(old, dict) and old and depth < DEEP and source.below(4):
        key = one_of(source, list(old))
        return {**old, key: value(source, old[key], depth + 1)}
    if isinstance(old, list) and old and depth < DEEP and source.below(6):
        at = source.below(len(old))
        match source.below(8):
            case 0:
                return old[:at]
            case 1:
                return [*old[:at], *old[at + 1 :]]
            case 2:
                return [*old, one_of(source, JUNK)]
            case 3:
                other = source.below(len(old))
                new = list(old)
                new[at], new[other] = new[other], new[at]
                return new
            case _:
                return [*old[:at], value(source, old[at], depth + 1), *old[at + 1 :]]
    if isinstance(old, int) and not isinstance(old, bool) and source.below(2):
        near = old + one_of(source, (-1, 1, 1 << 8, 1 << 32, -(1 << 32)))
        return near if -(1 << 63) <= near < 1 << 64 else 0
    return one_of(source, JUNK)


def data(source: Source, old: bytes) -> bytes:
    """Those bytes with something changed."""
    if not old:
        return source.some(64)
    at = source.below(len(old))
    match source.below(9):
        case 0 | 1:
            return old[:at]
        case 8:
            return old[:at] + one_of(source, (b"[", b'{"a":', b"\x91", b"\x81\xa1a")) * 3000
        case 2:
            return old[:at] + source.some(16) + old[at:]
        case 3:
            return old[:at] + old[at + 1 + source.below(8) :]
        case 4:
            return old[:at] + b"\xff" * (1 + source.below(8)) + old[at:]
        case 5:
            return old + source.some(64)
        case _:
            new = bytearray(old)
            for _ in range(1 + source.below(4)):
                new[source.below(len(new))] = source.below(256)
            return bytes(new)


def packed(source: Source, old: bytes) -> bytes:
    """MessagePack with one field of what it says changed, if it is that; else changed bytes."""
    try:
        new = value(source, msgspec.msgpack.decode(old))
        return msgspec.msgpack.encode(new)
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return data(source, old)


def frames(source: Source, old: Sequence[bytes]) -> list[bytes]:
    """Those frames with one changed, one more, one less, or in another order."""
    new = list(old)
    match source.below(12):
        case 0:
            new.append(source.some(64))
        case 1 if len(new) > 1:
            del new[source.below(len(new))]
        case 2 if len(new) > 1:
            new.reverse()
        case 3:
            return [source.some(200) for _ in range(1 + source.below(3))]
        case _:
            at = source.below(len(new))
            new[at] = data(source, new[at])
    return new
