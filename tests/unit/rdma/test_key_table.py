"""The table of live keys: what a reader finds, and that it never finds another's region."""

from __future__ import annotations

import itertools
import secrets

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monarch._src.rdma.key_table import Entry, Header, KeyTable, KeyView, bytes_for, range_of

CAPACITY = 6


def table(capacity: int = CAPACITY) -> tuple[KeyTable, KeyView]:
    memory = memoryview(bytearray(bytes_for(capacity)))
    made = KeyTable(memory, Header(secrets.token_bytes(16), capacity, 4096, 7, 99))
    return made, KeyView(memory.toreadonly())


def entry(size: int = 10) -> Entry:
    return Entry(secrets.token_bytes(16), False, 1 << 40, size, 5, 1 << 50, 3)


def test_a_reader_finds_what_was_entered() -> None:
    made, view = table()
    there = entry()
    slot = made.enter(there)
    found = view.find(slot, there.key, there.size)
    assert found is not None
    assert found[0] == there


def test_a_header_says_whose_table_it_is() -> None:
    memory = memoryview(bytearray(bytes_for(1)))
    header = Header(b"i" * 16, 1, 12345, 6, 7)
    KeyTable(memory, header)
    assert KeyView(memory).header == header


@pytest.mark.parametrize("size", [bytes_for(CAPACITY) - 64, bytes_for(0)])
def test_a_table_that_is_cut_off_is_none(size: int) -> None:
    memory = memoryview(bytearray(bytes_for(CAPACITY)))
    KeyTable(memory, Header(bytes(16), CAPACITY, 0, 0, 0))
    with pytest.raises(ValueError, match="not a table of keys"):
        KeyView(memory[:size])
    with pytest.raises(ValueError, match="not a table of keys"):
        KeyView(memoryview(bytes(len(memory))))


def test_nothing_is_found_by_a_wrong_key_size_or_slot() -> None:
    made, view = table()
    there = entry()
    slot = made.enter(there)
    assert view.find(slot, secrets.token_bytes(16), there.size) is None
    assert view.find(slot, there.key, there.size + 1) is None
    assert view.find(slot + 1, there.key, there.size) is None
    assert view.find(-1, there.key, there.size) is None
    assert view.find(CAPACITY, there.key, there.size) is None
    assert view.find(1 << 60, there.key, there.size) is None


def test_a_full_table_says_what_to_do_and_has_room_again_after_a_drop() -> None:
    made, _ = table(2)
    made.enter(entry())
    slot = made.enter(entry())
    with pytest.raises(RuntimeError, match=r"2 RDMABuffers .* `drop\(\)` those"):
        made.enter(entry())
    made.retire(slot)
    made.free(slot)
    assert made.enter(entry()) == slot


def test_the_ranges_that_writers_lock_do_not_meet() -> None:
    places = [range_of(slot) for slot in range(CAPACITY)]
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(places))


class Registry(RuleBasedStateMachine):
    """Regions come and go; a reader that looks before and after is never wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.view = table()
        self.live: dict[int, Entry] = {}
        self.dead: list[tuple[int, Entry]] = []
        self.reading: list[tuple[int, Entry, bytes, bool]] = []

    @rule(size=st.integers(1, 3))
    def enter(self, size: int) -> None:
        if len(self.live) < CAPACITY:
            there = entry(size)
            self.live[self.table.enter(there)] = there

    @rule(pick=st.integers(0, CAPACITY))
    def drop(self, pick: int) -> None:
        if self.live:
            slot = list(self.live)[pick % len(self.live)]
            self.dead.append((slot, self.live.pop(slot)))
            self.table.retire(slot)
            self.reading = [(s, e, r, lost or s == slot) for s, e, r, lost in self.reading]
            self.table.free(slot)

    @rule(pick=st.integers(0, CAPACITY))
    def begin_to_read(self, pick: int) -> None:
        if self.live:
            slot = list(self.live)[pick % len(self.live)]
            there = self.live[slot]
            found = self.view.find(slot, there.key, there.size)
            assert found is not None
            self.reading.append((slot, there, found[1], False))

    @rule()
    def end_reading(self) -> None:
        for slot, _, raw, lost in self.reading:
            assert (self.view.raw(slot) == raw) is not lost
        self.reading = []

    @invariant()
    def live_ones_are_found_and_dead_ones_never(self) -> None:
        for slot, there in self.live.items():
            found = self.view.find(slot, there.key, there.size)
            assert found is not None
            assert found[0] == there
        for slot, there in self.dead:
            assert self.view.find(slot, there.key, there.size) is None


TestRegistry = Registry.TestCase
