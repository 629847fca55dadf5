"""A reader sees a version whole or not at all, whatever order reader and publishers go in."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.rdma.weights.snapshot import (
    HEADER_BYTES,
    MAGIC,
    STAMP_BYTES,
    Done,
    Found,
    Past,
    Reading,
    Ring,
    Stamp,
    Take,
    Wait,
    Wanted,
    packed,
    place_of,
    stamps_of,
)

WORDS = 3


class Memory:
    """Of one publisher: what it writes and a reader sees, a few bytes at a time."""

    def __init__(self, slots: int) -> None:
        self.ring = Ring(slots)
        self.header = bytearray(MAGIC.ljust(HEADER_BYTES, b"\0"))
        for slot, stamp in enumerate(self.ring.stamps):
            self.header[place_of(slot) : place_of(slot) + len(packed(stamp))] = packed(stamp)
        self.data = [[-1] * WORDS for _ in range(slots)]

    def _write(self, slot: int, stamp: Stamp) -> Iterator[None]:
        raw = packed(stamp)
        for at in range(0, len(raw), 4):  # a stamp is not written in one moment
            start = place_of(slot) + at
            self.header[start : start + 4] = raw[at : at + 4]
            yield

    def publish(self, version: int, fails: bool = False) -> Iterator[None]:
        yield from self._write(*self.ring.begin(version))
        self.ring.validate()
        slot = self.ring.writing
        assert slot is not None
        for word in range(WORDS):
            self.data[slot][word] = version
            yield
        yield from self._write(*(self.ring.abort() if fails else self.ring.commit()))
        self.ring.validate()

    def look(self) -> Generator[None, None, list[Stamp | None]]:
        seen = bytearray(HEADER_BYTES)
        seen[: len(MAGIC)] = self.header[: len(MAGIC)]
        slots = len(self.ring.stamps)
        for at in range(STAMP_BYTES, (slots + 1) * STAMP_BYTES, 8):
            seen[at : at + 8] = self.header[at : at + 8]
            if any(self.header[at : at + 8]):
                yield
        return stamps_of(seen, slots)

    def copy(self, slot: int) -> Generator[None, None, list[int]]:
        words: list[int] = []
        for word in range(WORDS):
            words.append(self.data[slot][word])
            yield
        return words


def look_at(memories: list[Memory]) -> Generator[None, None, Found]:
    found: Found = []
    for memory in memories:
        stamps = yield from memory.look()
        found.append(stamps)
    return found


def pull(
    memories: list[Memory], wanted: Wanted, found: list[Done | Past]
) -> Generator[None, None, None]:
    """What the driver does, with a pause after each step; Done only for what is whole."""
    reading = Reading(wanted, [str(n) for n in range(len(memories))])
    words: list[int] = []
    while True:
        match reading.stamps_read((yield from look_at(memories))):
            case Take(slots=slots):
                words = []
                for memory, slot in zip(memories, slots, strict=True):
                    words += yield from memory.copy(slot)
                reading.copied()
            case Done() as done:
                assert set(words) == {done.version}, "a torn read"
                assert wanted.version in (None, done.version)
                assert done.version > wanted.newer_than
                found.append(done)
                return
            case Past() as past:
                assert wanted.version is not None
                assert wanted.version not in [
                    s.version for s in memories[past.source].ring.stamps if s.state == "complete"
                ], "it is still there"
                found.append(past)
                return
            case Wait():
                yield


def publishing(memory: Memory, plan: list[tuple[int, bool]]) -> Iterator[None]:
    version = -1
    for step, fails in plan:
        version += step
        yield from memory.publish(version, fails)


PLANS = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from([False, False, False, True])),
    min_size=3,
    max_size=8,
)
WANTED = st.one_of(
    st.builds(Wanted, st.integers(0, 6)), st.builds(Wanted, st.none(), st.integers(-1, 4))
)


@given(
    st.lists(st.tuples(st.integers(1, 3), PLANS), min_size=1, max_size=2),
    WANTED,
    st.integers(0, 1 << 32),
)
def test_in_every_order_of_steps_what_is_read_is_one_version_whole(
    publishers: list[tuple[int, list[tuple[int, bool]]]], wanted: Wanted, seed: int
) -> None:
    chance = random.Random(seed)
    memories = [Memory(slots) for slots, _ in publishers]
    writers = [publishing(m, plan) for m, (_, plan) in zip(memories, publishers, strict=True)]
    found: list[Done | Past] = []
    reader = pull(memories, wanted, found)
    while writers:
        one = chance.choice([*writers, reader])
        if next(one, StopIteration) is StopIteration:
            if one is reader:
                reader = pull(memories, wanted, found)
            else:
                writers.remove(one)
    # Nobody writes any more: a reader is done at once, or has nothing to read.
    for _ in range(200):
        if next(reader, StopIteration) is StopIteration:
            return
    fits = {
        s.version for s in memories[0].ring.stamps
        if s.state == "complete" and s.version > wanted.newer_than
        and wanted.version in (None, s.version)
    }  # fmt: skip
    for memory in memories[1:]:
        fits &= {s.version for s in memory.ring.stamps if s.state == "complete"}
    assert not fits, "it waits for what is there"


def test_every_interleaving_of_one_read_and_two_publications_is_whole() -> None:
    """All orders there are of steps such as: change a stamp, copy half of the data."""
    # Where the other side may come in: after this many of the smallest steps.
    writes, reads = (7, 2, 8), (4, 2, 2)
    orders = 0
    for rest in itertools.combinations(range(12), 6):  # which of 12 turns are the writer's
        memory = Memory(1)
        for _ in memory.publish(0):
            pass
        found: list[Done | Past] = []
        writer = itertools.chain(memory.publish(1), memory.publish(2))
        reader = pull([memory], Wanted(), found)
        turns = {True: itertools.cycle(writes), False: itertools.cycle(reads)}
        for turn in range(12):
            mine = turn in rest
            for _ in range(next(turns[mine])):
                if next(writer if mine else reader, StopIteration) is StopIteration:
                    break
        for _ in writer:
            pass
        for _ in reader:
            pass
        assert len(found) == 1
        orders += 1
    assert orders == 924


def test_a_version_that_was_complete_stays_until_a_newer_one_is() -> None:
    memory = Memory(2)
    for version in range(6):
        for _ in memory.publish(version):
            complete = [s.version for s in memory.ring.stamps if s.state == "complete"]
            assert not version or max(complete) in (version - 1, version)


def test_what_was_not_completed_is_no_version() -> None:
    memory = Memory(1)
    for _ in memory.publish(0, fails=True):
        pass
    reading = Reading(Wanted(), ["trainer"])
    action = reading.stamps_read([stamps_of(memory.header, 1)])
    assert action == Wait("trainer has none that is complete")


def test_versions_have_to_grow() -> None:
    ring = Ring(2)
    ring.begin(3)
    with pytest.raises(RuntimeError, match="version 3 is being written: one at a time"):
        ring.begin(4)
    ring.commit()
    with pytest.raises(ValueError, match="version 3 after version 3: versions have to grow"):
        ring.begin(3)
    with pytest.raises(ValueError, match="give an int of at least 0"):
        Ring(1).begin(-1)
    with pytest.raises(RuntimeError, match="no version is being written"):
        ring.commit()


def test_a_version_that_was_passed_is_told_with_the_newest() -> None:
    memory = Memory(2)
    for version in (1, 2, 5):
        for _ in memory.publish(version):
            pass
    stamps = [stamps_of(memory.header, 2)]
    for gone in (1, 3):
        reading = Reading(Wanted(gone), ["trainer"])
        assert isinstance(reading.stamps_read(stamps), Wait)  # the look may have missed it
        assert reading.stamps_read(stamps) == Past(0, 5)
        assert reading.state == "over"
    assert Reading(Wanted(2), ["trainer"]).stamps_read(stamps) == Take(2, (1,))
    assert isinstance(Reading(Wanted(6), ["trainer"]).stamps_read(stamps), Wait)


def test_shards_are_taken_at_the_newest_version_that_all_have() -> None:
    ahead, behind = Memory(2), Memory(2)
    for memory, versions in ((ahead, (4, 5)), (behind, (3, 4))):
        for version in versions:
            for _ in memory.publish(version):
                pass
    found = [stamps_of(memory.header, 2) for memory in (ahead, behind)]
    assert Reading(Wanted(), ["a", "b"]).stamps_read(found) == Take(4, (0, 1))
    action = Reading(Wanted(newer_than=4), ["a", "b"]).stamps_read(found)
    assert action == Wait("a has versions 4, 5; b has versions 3, 4")


def test_half_of_one_stamp_and_half_of_another_is_none() -> None:
    one, other = packed(Stamp("complete", 255, 7)), packed(Stamp("writing", 256, 8))
    for at in range(1, len(one)):
        header = bytearray(HEADER_BYTES)
        header[: len(MAGIC)] = MAGIC
        mixed = one[:at] + other[at:]
        header[place_of(0) : place_of(0) + len(mixed)] = mixed
        assert stamps_of(header, 1)[0] in (
            None,
            Stamp("complete", 255, 7),
            Stamp("writing", 256, 8),
        )
        if mixed not in (one, other):
            assert stamps_of(header, 1) == [None]


def test_other_memory_is_not_taken_for_a_state_dict() -> None:
    with pytest.raises(ValueError, match="no published state dict in this memory"):
        stamps_of(bytes(HEADER_BYTES), 1)
