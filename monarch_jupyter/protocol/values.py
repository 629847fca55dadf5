"""Messages about the values of a grid: all first, then changes. No I/O.

`put` may be called from any thread; the rest is called on the publisher's. Invariants: as those of
`MeshTable`: each delta's `seq` is one above that of the message before it, and a snapshot has that
of the last delta. Of values put faster than they are sent, only the last count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch.frontend import Coordinates
from monarch_jupyter.protocol.messages import GridMessage, ValuesDeltaMessage, ValuesMessage
from monarch_jupyter.rendering.value_contents import NOT_COMPARED, value_texts
from monarch_jupyter.rendering.values import LONGEST_SHOWN, as_numbers


@dataclass(frozen=True)
class Picture:
    """The shown text of each rank's value and, if all values are numbers, the numbers.

    The number of one that is not finite is None. `places`: the coordinates to show.
    """

    sizes: Mapping[str, int]
    places: Coordinates
    numbers: tuple[float | None, ...] | None
    texts: tuple[str, ...]


def picture_of(
    sizes: Mapping[str, int], values: Sequence[object], places: Coordinates | None = None
) -> Picture:
    """The picture of values in rank order; long texts are cut, and say how long they were.

    `places`: the coordinates of a slice.
    """
    numbers = as_numbers(values)
    finite: tuple[float | None, ...] | None = None
    if numbers is None:
        texts = _told_apart(value_texts(values))
    else:
        finite = tuple(float(number) if math.isfinite(number) else None for number in numbers)
        texts = tuple(str(number) for number in numbers)
    return Picture(dict(sizes), places or Coordinates.own(sizes), finite, texts)


def _bounded(text: str) -> str:
    if len(text) <= LONGEST_SHOWN:
        return text
    end = NOT_COMPARED if text.endswith(NOT_COMPARED) else ""
    return f"{text[:LONGEST_SHOWN]} … ({len(text):,} characters){end}"


def _told_apart(texts: Sequence[str]) -> tuple[str, ...]:
    """The texts, cut; a number is added to those that differ only where they are cut."""
    numbers: dict[str, dict[str, int]] = {}
    for text in texts:
        of_cut = numbers.setdefault(_bounded(text), {})
        of_cut.setdefault(text, len(of_cut) + 1)
    cuts = [(_bounded(text), text) for text in texts]
    return tuple(
        cut if len(numbers[cut]) == 1 else f"{cut}, text {numbers[cut][text]}" for cut, text in cuts
    )


class ValueTable:
    """The values of one grid as its readers know them."""

    def __init__(self, picture: Picture) -> None:
        self._seq = 0
        self._current = picture  # replaced whole, by one store
        self._sent: Picture = picture

    def put(self, picture: Picture) -> None:
        """Replace the values."""
        self._current = picture

    def current(self) -> ValuesMessage:
        """The current values, outside of the numbered messages, for a page that starts."""
        return _values(-1, self._current)

    def delta(self) -> GridMessage | None:
        """The message that brings readers up to date; None if nothing changed."""
        before, now = self._sent, self._current
        if now is before:
            return None
        self._sent = now
        if _kind(now) != _kind(before):
            self._seq += 1
            return self.snapshot()
        # A number with another value has another text too: it is written out in full.
        pairs = zip(before.texts, now.texts, strict=True)
        changed = [rank for rank, (old, new) in enumerate(pairs) if old != new]
        if not changed:
            return None
        self._seq += 1
        numbers = None if now.numbers is None else [now.numbers[rank] for rank in changed]
        texts = [now.texts[rank] for rank in changed]
        return ValuesDeltaMessage(
            type="values_delta", seq=self._seq, ranks=changed, numbers=numbers, texts=texts
        )

    def snapshot(self) -> ValuesMessage:
        """All values as last sent, under the number of the last message."""
        return _values(self._seq, self._sent)


def _kind(picture: Picture) -> tuple[object, ...]:
    indices = [(dim, *of_dim) for dim, of_dim in picture.places.indices.items()]
    return (
        *picture.sizes.items(),
        *indices,
        *picture.places.fixed.items(),
        picture.numbers is None,
    )


def _values(seq: int, picture: Picture) -> ValuesMessage:
    numbers = None if picture.numbers is None else list(picture.numbers)
    places = picture.places
    return ValuesMessage(
        type="values", seq=seq, sizes=dict(picture.sizes),
        dims=list(places.dims),
        indices={dim: list(indices) for dim, indices in places.indices.items()},
        fixed=dict(places.fixed), numbers=numbers, texts=list(picture.texts),
    )  # fmt: skip
