"""Records that only who has the key can write, and each only in its place."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.wire.sealed import (
    HEAD,
    KEY_BYTES,
    RECORD,
    TAG,
    Sealer,
    SealError,
    Unsealer,
    head_at,
)

KEY = bytes(range(KEY_BYTES))


def ends() -> tuple[Sealer, Unsealer]:
    return Sealer(KEY), Unsealer(KEY)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=500), st.booleans()), max_size=20))
def test_what_is_sealed_is_what_is_unsealed_in_order(said: list[tuple[bytes, bool]]) -> None:
    sealer, unsealer = ends()
    for data, other in said:
        record = sealer.seal(data, other=other)
        assert head_at(record, 0) == (len(data), other)
        assert len(record) == HEAD + len(data) + TAG
        assert unsealer.unseal(memoryview(record)) == data


@pytest.mark.parametrize("size", [1, 70_000, RECORD])
def test_large_and_small_records_may_follow_each_other(size: int) -> None:
    sealer, unsealer = ends()
    large = os.urandom(size)
    for _ in range(3):
        into = memoryview(bytearray(size))
        unsealer.unseal_into(sealer.seal_large(large), into)
        assert into == large
        assert unsealer.unseal(memoryview(sealer.seal(b"small"))) == b"small"


def test_what_is_sealed_does_not_show() -> None:
    record = Sealer(KEY).seal(b"a secret word")
    assert b"secret" not in record
    assert Sealer(KEY).seal(b"a secret word") == record, "the nonce is the number of the record"
    sealer = Sealer(KEY)
    assert sealer.seal(b"a secret word") != sealer.seal(b"a secret word")


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_record_that_was_changed_anywhere_opens_nowhere(said: bytes, data: st.DataObject) -> None:
    sealer, unsealer = ends()
    record = bytearray(sealer.seal(said))
    record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SealError, match="was not sealed by the other end"):
        unsealer.unseal(memoryview(record))


def test_a_record_that_was_left_out_said_again_or_moved_is_noticed() -> None:
    sealer, _ = ends()
    first, second = memoryview(sealer.seal(b"1")), memoryview(sealer.seal(b"2"))
    for before, record in (([], second), ([first], first), ([first, second], first)):
        unsealer = Unsealer(KEY)
        for one in before:
            unsealer.unseal(one)
        with pytest.raises(SealError):
            unsealer.unseal(record)


def test_who_has_another_key_opens_nothing() -> None:
    record = Sealer(KEY).seal(b"x")
    with pytest.raises(SealError):
        Unsealer(bytes(KEY_BYTES)).unseal(memoryview(record))


@pytest.mark.parametrize("head", [0, 1 << 31, RECORD + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_head_of_no_record_is_refused(head: int) -> None:
    with pytest.raises(SealError, match="no record has"):
        head_at(head.to_bytes(HEAD, "big"), 0)


def test_a_key_of_another_size_is_refused() -> None:
    for make in (Sealer, Unsealer):
        with pytest.raises(ValueError, match="a key has 32 bytes, and not 16"):
            make(bytes(16))
