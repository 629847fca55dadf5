"""Runs: equal neighbours once, and decoded when first read."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.shape import Runs
from monarch._src.shape.run_length import alike, fold, same_payload

atoms = st.sampled_from(
    [0, 1, -1, True, False, None, 0.0, -0.0, 1.0, "", "a", b"", b"a", 1j, 1 + 0j]
)
values = st.lists(atoms | st.tuples(atoms, atoms), max_size=12)


class Unequal:
    """As an array: comparing two of them is no answer."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared with ==")

    __hash__ = None  # type: ignore[assignment]


def counts(runs: Runs[Any]) -> list[int]:
    return [count for count, _ in runs.counted()]


@given(values)
def test_folding_loses_no_value_and_no_type(items: list[Any]) -> None:
    runs = Runs(items)
    assert repr(list(runs)) == repr(items)  # repr tells 0.0 from -0.0 and 1 from True
    assert repr([runs[at] for at in range(len(runs))]) == repr(items)
    assert [value for count, value in runs.counted() for _ in range(count)] == items
    assert sum(counts(runs)) == len(runs) == len(items)


@given(values)
def test_neighbours_in_different_runs_differ(items: list[Any]) -> None:
    heads = [value for _, value in fold(items)]
    assert not any(alike(a, b) for a, b in pairwise(heads))


@given(values)
def test_pickling_keeps_values_and_runs(items: list[Any]) -> None:
    runs = Runs(items)
    copy = pickle.loads(pickle.dumps(runs))
    assert repr(list(copy)) == repr(items)
    assert counts(copy) == counts(runs)


def test_runs_can_be_made_of_counts_and_give_them_back() -> None:
    runs = Runs.of_counts([(2, "a"), (1, "b")])
    assert list(runs) == ["a", "a", "b"]
    assert list(runs.counted()) == [(2, "a"), (1, "b")]
    with pytest.raises(ValueError, match="a run has length 0"):
        Runs.of_counts([(0, "a")])


@pytest.mark.parametrize("at", [-1, 3])
def test_an_index_out_of_range_is_an_index_error(at: int) -> None:
    with pytest.raises(IndexError, match=f"no value at {at}; there are 3"):
        Runs([1, 1, 2])[at]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        (0, False),
        (0.0, -0.0),
        ("a", b"a"),
        ((1,), (True,)),
        (0j, -0j),
        ([], []),
    ],
)
def test_equal_values_that_are_not_the_same_stay_apart(a: Any, b: Any) -> None:
    assert a == b or type(a) is not type(b)
    assert list(map(id, Runs([a, b]))) == [id(a), id(b)]


def test_nan_and_its_copies_are_each_kept() -> None:
    nan = float("nan")
    assert counts(Runs([nan, nan, float("nan")])) == [2, 1]


def test_equality_is_never_asked_of_anything_but_builtin_atoms() -> None:
    class Name(str):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared with ==")

        __hash__ = str.__hash__

    one = Unequal()
    assert counts(Runs([one, one, Unequal()])) == [2, 1]
    assert counts(Runs([(1, Unequal()), (1, Unequal())])) == [1, 1]
    assert counts(Runs([Name("a"), Name("a")])) == [1, 1]


def test_mutable_values_are_folded_only_if_they_are_one_object() -> None:
    shared: list[int] = []
    assert counts(Runs([shared, shared, []])) == [2, 1]
    assert counts(Runs([bytearray(b"a"), bytearray(b"a")])) == [1, 1]


def test_long_strings_are_not_compared() -> None:
    long = "a" * 100_000
    assert counts(Runs([long, long, "".join(["a"] * 100_000)])) == [2, 1]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (b"a", b"a", True),
        (b"a", b"b", False),
        (b"a", memoryview(b"a"), True),
        (bytearray(b"a"), bytearray(b"a"), True),
        (bytearray(b"a"), bytearray(b"b"), False),
        (memoryview(b"abc")[::2], memoryview(b"abc")[::2], False),
        (memoryview(b"ab").cast("H"), memoryview(b"ab").cast("H"), False),
        ((b"head", bytearray(b"a")), (b"head", memoryview(b"a")), True),
        ((b"head", bytearray(b"a")), (b"head", memoryview(b"b")), False),
        ((b"head",), (b"head", b""), False),
        (bytearray(70_000), bytearray(70_000), False),
    ],
)
def test_payloads_are_the_same_by_bytes_where_that_is_cheap(a: Any, b: Any, same: bool) -> None:
    assert same_payload(a, b) is same


class Decoder:
    """Counts what it decodes; fails while told to."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.failing = False

    def __call__(self, payload: bytes) -> list[str]:
        self.calls.append(payload)
        if self.failing:
            raise ModuleNotFoundError("no module named 'torch'")
        return [payload.decode()]


def test_nothing_is_decoded_before_it_is_read_and_nothing_twice() -> None:
    decode = Decoder()
    runs = Runs.of_encoded([b"a", b"a", b"b", b"a"], decode)
    assert len(runs) == 4
    assert decode.calls == []
    assert runs[2] == ["b"]
    assert decode.calls == [b"b"]
    assert runs[0] is runs[1]
    assert runs[0] is not runs[3]
    assert list(runs) == [["a"], ["a"], ["b"], ["a"]]
    assert decode.calls == [b"b", b"a", b"a"]


def test_runs_of_no_payloads_are_empty() -> None:
    assert list(Runs.of_encoded([], Decoder())) == []


def test_an_error_of_decoding_goes_to_the_reader_and_the_next_read_tries_again() -> None:
    decode = Decoder()
    runs = Runs.of_encoded([b"a", b"b"], decode)
    decode.failing = True
    with pytest.raises(ModuleNotFoundError):
        runs[0]
    with pytest.raises(ModuleNotFoundError):
        list(runs)
    decode.failing = False
    assert list(runs) == [["a"], ["b"]]
    assert decode.calls == [b"a", b"a", b"a", b"b"]


def test_the_decoder_is_let_go_when_everything_is_decoded() -> None:
    decode = Decoder()
    runs = Runs.of_encoded([b"a", b"b"], decode)
    list(runs)
    assert runs._decode is None
    assert runs._encoded is None


def test_pickling_decodes_first() -> None:
    runs = Runs.of_encoded([b"a", b"a", b"b"], lambda payload: payload.decode())
    copy = pickle.loads(pickle.dumps(runs))  # a lambda couldn't be pickled
    assert list(copy.counted()) == [(2, "a"), (1, "b")]


def test_decoding_may_read_the_value_that_is_being_decoded() -> None:
    depth = 0

    def decode(payload: bytes) -> list[str]:
        nonlocal depth
        depth += 1
        if depth == 1:
            inner.append(runs[0])
        return [payload.decode()]

    inner: list[list[str]] = []
    runs: Runs[list[str]] = Runs.of_encoded([b"a"], decode)
    assert runs[0] is inner[0]
    assert runs[0] == ["a"]


def in_threads(count: int, work: Callable[[], None]) -> None:
    start = threading.Barrier(count)

    def body() -> None:
        start.wait(timeout=30)
        work()

    threads = [threading.Thread(target=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_threads_that_read_at_once_get_one_object_decoded_once() -> None:
    decode = Decoder()
    payloads = [str(rank // 2).encode() for rank in range(200)]
    runs = Runs.of_encoded(payloads, decode)
    seen: list[list[int]] = []
    in_threads(8, lambda: seen.append([id(value) for value in runs]))
    assert len(seen) == 8
    assert all(ids == seen[0] for ids in seen)
    assert len(decode.calls) == 100


def test_a_thread_that_arrives_while_another_decodes_waits_for_its_result() -> None:
    entered, release = threading.Event(), threading.Event()
    calls: list[bytes] = []

    def decode(payload: bytes) -> list[str]:
        calls.append(payload)
        entered.set()
        assert release.wait(timeout=30)
        return [payload.decode()]

    runs = Runs.of_encoded([b"a"], decode)
    results: list[list[str]] = []
    first = threading.Thread(target=lambda: results.append(runs[0]))
    second = threading.Thread(target=lambda: results.append(runs[0]))
    first.start()
    assert entered.wait(timeout=30)
    second.start()
    release.set()
    first.join(timeout=30)
    second.join(timeout=30)
    assert len(results) == 2
    assert results[0] is results[1]
    assert calls == [b"a"]
