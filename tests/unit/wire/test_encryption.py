"""Records that only who has the key can write, and each only in its place."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.wire.encryption import (
    HEAD,
    KEY_BYTES,
    RECORD,
    TAG,
    Sealer,
    SealError,
    Unsealer,
    sealed_size,
)

KEY = bytes(range(KEY_BYTES))


def ends() -> tuple[Sealer, Unsealer]:
    return Sealer(KEY), Unsealer(KEY)


def sealed(sealer: Sealer, data: bytes) -> bytes:
    return bytes(sealer.seal_into(data, memoryview(bytearray(HEAD + len(data) + TAG))))


@given(st.lists(st.binary(min_size=1, max_size=500), max_size=20))
def test_what_is_sealed_is_what_is_unsealed_in_order(said: list[bytes]) -> None:
    sealer, unsealer = ends()
    for data in said:
        record = sealed(sealer, data)
        assert sealed_size(record) == len(data)
        assert len(record) == HEAD + len(data) + TAG
        assert unsealer.unseal(memoryview(record)) == data


@pytest.mark.parametrize("size", [1, 70_000, RECORD])
def test_large_and_small_records_may_follow_each_other(size: int) -> None:
    sealer, unsealer = ends()
    large = os.urandom(size)
    for _ in range(3):
        into = memoryview(bytearray(size))
        unsealer.unseal_into(memoryview(sealed(sealer, large)), into)
        assert into == large
        assert unsealer.unseal(memoryview(sealed(sealer, b"small"))) == b"small"


def test_what_is_sealed_does_not_show() -> None:
    said = b"a secret word"
    record = sealed(Sealer(KEY), said)
    assert b"secret" not in record
    assert sealed(Sealer(KEY), said) == record, "the nonce is the number of the record"
    sealer = Sealer(KEY)
    assert sealed(sealer, said) != sealed(sealer, said)


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_record_that_was_changed_anywhere_opens_nowhere(said: bytes, data: st.DataObject) -> None:
    sealer, unsealer = ends()
    record = bytearray(sealed(sealer, said))
    record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SealError, match="the other end did not encrypt"):
        unsealer.unseal(memoryview(record))


def test_a_record_that_was_left_out_said_again_or_moved_is_noticed() -> None:
    sealer, _ = ends()
    first, second = memoryview(sealed(sealer, b"1")), memoryview(sealed(sealer, b"2"))
    for before, record in (([], second), ([first], first), ([first, second], first)):
        unsealer = Unsealer(KEY)
        for one in before:
            unsealer.unseal(one)
        with pytest.raises(SealError):
            unsealer.unseal(record)


def test_who_has_another_key_opens_nothing() -> None:
    record = sealed(Sealer(KEY), b"x")
    with pytest.raises(SealError):
        Unsealer(bytes(KEY_BYTES)).unseal(memoryview(record))


@pytest.mark.parametrize("head", [0, 1 << 31, RECORD + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_head_of_no_record_is_refused(head: int) -> None:
    with pytest.raises(SealError, match="a record cannot have"):
        sealed_size(head.to_bytes(HEAD, "big"))


def test_a_key_of_another_size_is_refused() -> None:
    for make in (Sealer, Unsealer):
        with pytest.raises(ValueError, match="a key has 32 bytes, and not 16"):
            make(bytes(16))
