"""Items are taken from their iterable one by one, held until they are done, and measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from monarch._src.mesh.map import items
from monarch._src.mesh.map.items import ItemStream, estimated_bytes


def test_as_many_items_are_taken_as_are_asked_for_and_held_until_they_are_dropped() -> None:
    stream = ItemStream(itertools.count(10))
    assert (stream.take(3), len(stream), stream.at_end) == (3, 3, False)
    assert [stream[number] for number in range(3)] == [10, 11, 12]
    stream.drop([0, 2])
    assert stream[1] == 11
    with pytest.raises(KeyError):
        stream[0]
    assert (stream.take(0), stream.take(1), stream[3]) == (0, 1, 13)


def test_the_end_and_an_exception_end_the_stream() -> None:
    short = ItemStream([1, 2])
    assert (short.take(3), short.at_end, short.error, short.take(1)) == (2, True, None, 0)

    def broken() -> Iterator[int]:
        yield 1
        raise LookupError("broken")

    stream = ItemStream(broken())
    assert (stream.take(3), stream.at_end, str(stream.error)) == (1, True, "broken")
    assert stream[0] == 1
    assert stream.take(1) == 0


def test_an_exception_that_is_none_is_raised() -> None:
    def interrupted() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    stream = ItemStream(interrupted())
    with pytest.raises(KeyboardInterrupt):
        stream.take(3)


def test_a_closed_stream_takes_nothing_and_leaves_its_iterator_as_it_is() -> None:
    numbers = itertools.count()
    stream = ItemStream(numbers)
    stream.take(2)
    stream.close()
    assert (stream.at_end, stream.take(1), next(numbers)) == (True, 0, 2)


def test_an_iterable_may_close_the_stream_that_it_is_taken_from() -> None:
    streams: list[ItemStream] = []

    def closes() -> Iterator[int]:
        yield 1
        streams[0].close()
        yield 2
        yield 3

    streams.append(ItemStream(closes()))
    assert streams[0].take(10) == 2


def test_taking_ends_early_if_it_lasts_unless_the_items_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(items, "TAKE_S", -1.0)
    for one in ([1, 2, 3], (1, 2, 3), {1, 2, 3}, {1: 2, 2: 3, 3: 4}, range(3), "abc"):
        stream = ItemStream(one)
        assert (stream.take(9), stream.expected, stream.is_slow) == (3, 3, False)
    stream = ItemStream(iter([1, 2, 3]))
    assert (stream.take(9), stream.take(9), stream.expected) == (1, 1, None)
    monkeypatch.setattr(items, "SLOW_S", -1.0)
    assert stream.is_slow


class Loader:
    """Has no length, though its class has the method."""

    def __len__(self) -> int:
        raise TypeError("no length")

    def __iter__(self) -> Iterator[int]:
        return iter([1])


def test_an_iterable_may_have_no_length() -> None:
    assert ItemStream(Loader()).expected is None


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 0),
        (7, 0),
        ("text", 4),
        (b"bytes", 5),
        (numpy.zeros(100), 800),
        (numpy.float64(1), 8),
        ([], 0),
        ((1, numpy.zeros(10)), 80),
        ({"a": b"123", "b": [b"4567"] * 2}, 11),
        ([b"12"] * 1000, 2000),
        ([[[[b"deep"]]]], 0),
    ],
)
def test_sizes_of_plain_values_are_about_right(value: Any, size: int) -> None:
    assert estimated_bytes(value) == size
