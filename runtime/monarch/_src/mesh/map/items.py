"""The items of an iterable, taken one by one while a map runs, and kept until they are done.

Runs in: the calling process, on the thread that takes the results: generators of the user run
there. While the iterable blocks, that thread takes no results; so `take` ends after `TAKE_S`, and
the driver takes nothing from an iterable that `is_slow` while it has results to yield.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from itertools import islice
from time import monotonic
from typing import Any, cast

TAKE_S = 0.01
"""Seconds after which `take` returns, and the driver looks for results."""
SLOW_S = 0.1
"""Seconds: an iterable whose last item took longer is slow."""
_SAMPLED = 16  # objects of a container
_DEEPEST = 3  # of containers


class ItemStream:
    """Items by their numbers, from 0. `expected`: how many there are, as far as is known."""

    def __init__(self, *iterables: Iterable[Any]) -> None:
        """The items of one iterable, or tuples of those of several, up to the end of the shortest.

        Raises whatever the iterables raise when their iteration begins.
        """
        # Items in memory. Others may be loaded while they are taken, which may block.
        self._in_memory = all(
            isinstance(one, (Sequence, AbstractSet, Mapping)) for one in iterables
        )
        sizes = [_expected(one) for one in iterables]
        known = [size for size in sizes if size is not None]
        self.expected = min(known) if len(known) == len(sizes) else None
        self._iterator: Iterator[Any] = (
            iter(iterables[0]) if len(iterables) == 1 else zip(*iterables, strict=False)
        )
        self._held: dict[int, Any] = {}
        self._last_s = 0.0  # how long the last item took
        self.taken = 0
        self.at_end = False
        self.error: Exception | None = None  # of the iterable; its results come first

    def __len__(self) -> int:
        """How many have been taken."""
        return self.taken

    def __getitem__(self, number: int) -> Any:
        """An item that has been taken and is not done."""
        return self._held[number]

    @property
    def is_slow(self) -> bool:
        """Whether the next item may be long in coming."""
        return self._last_s > SLOW_S

    @property
    def last_s(self) -> float:
        """How many seconds the last item took."""
        return self._last_s

    def take(self, most: int) -> int:
        """Take up to that many items, or fewer if that lasts; returns how many.

        Exceptions that are no `Exception`, such as an interrupt, are raised; others are kept.
        """
        began = now = monotonic()
        count = 0
        try:
            while count < most and not self.at_end:
                self._held[self.taken] = next(self._iterator)
                self.taken += 1
                count += 1
                if not self._in_memory:
                    before, now = now, monotonic()
                    self._last_s = now - before
                    if now - began > TAKE_S:
                        break
        except StopIteration:
            self.close()
        except Exception as error:
            self.close()
            self.error = error
        return count

    def drop(self, numbers: Iterable[int]) -> None:
        """Free items that are done."""
        for number in numbers:
            self._held.pop(number, None)

    def close(self) -> None:
        """Take no others, and drop the iterator. It is not closed, since it is the caller's."""
        self.at_end = True
        self._iterator = iter(())


def estimated_bytes(value: Any, depth: int = _DEEPEST) -> int:
    """About how many bytes a value of builtin types and arrays has."""
    size: Any = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    kind = cast("type[Any]", type(value))
    if not depth or not issubclass(kind, (list, tuple, set, frozenset, dict)):
        return 0
    some: Any = value.values() if issubclass(kind, dict) else value
    sizes = [estimated_bytes(one, depth - 1) for one in islice(some, _SAMPLED)]
    return sum(sizes) * len(some) // len(sizes) if sizes else 0


def _expected(items: Iterable[Any]) -> int | None:
    if not isinstance(items, Sized):
        return None
    try:
        return len(items)
    except Exception:  # such as that of a loader whose data has no length
        return None
