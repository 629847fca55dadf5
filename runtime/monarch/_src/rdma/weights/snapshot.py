"""Versions in slots: how a reader, for which no publisher waits, sees all of one version or none.

No I/O. A publisher has a ring of slots, each as large as the state dict, and a *stamp* for each
slot. It changes a slot's bytes only while the stamp says `writing`; each stamp has a number that is
never reused. A reader reads the stamps, copies a slot that is `complete`, and reads the stamps
again. If the slot still has the same stamp, the publisher did not begin to change it before the
copy was over, and the copy is that version. Otherwise the reader discards the copy, and begins anew
with the stamps that it has just read. So a publisher never waits for a reader, and a reader never
gets a mixture of two versions. (This is a seqlock for each slot, whose sequence numbers are
versions.)

A stamp may be read while it is written. It ends with a checksum, so that halves of two stamps are
not valid; such a slot counts as being written.

With several publishers (shards) a reader takes one version that all of them have; it reads the
stamps of all before the first copy and after the last.

The memory has to be ordered: earlier stores are seen before later ones, on both sides (the driver's
fences).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

MAGIC = b"MONARCHW"
STAMP_BYTES = 64
MOST_SLOTS = 32
HEADER_BYTES = 4096
_STAMP = struct.Struct("<QQQI")
assert len(MAGIC) + (MOST_SLOTS + 1) * STAMP_BYTES <= HEADER_BYTES

State = Literal["empty", "writing", "complete"]
_STATES: tuple[State, ...] = ("empty", "writing", "complete")


class Stamp(msgspec.Struct, frozen=True):
    """The state of a slot. `number`: identifies the change that led to it; never reused."""

    state: State
    version: int
    number: int


def place_of(slot: int) -> int:
    """The offset of a slot's stamp in the header."""
    return (slot + 1) * STAMP_BYTES


def packed(stamp: Stamp) -> bytes:
    """The bytes of a stamp."""
    facts = struct.pack("<QQQ", _STATES.index(stamp.state), stamp.version, stamp.number)
    return facts + zlib.crc32(facts).to_bytes(4, "little")


def stamps_of(header: bytes | bytearray | memoryview, slots: int) -> list[Stamp | None]:
    """The stamps in a header; None for one that is being changed.

    Raises:
        ValueError: this is not a header.
    """
    if bytes(header[: len(MAGIC)]) != MAGIC:
        raise ValueError("there is no published state dict in this memory")
    found: list[Stamp | None] = []
    for slot in range(slots):
        raw = bytes(header[place_of(slot) : place_of(slot) + _STAMP.size])
        state, version, number, check = _STAMP.unpack(raw)
        if zlib.crc32(raw[:-4]) == check and state < len(_STATES):
            found.append(Stamp(_STATES[int(state)], version, number))
        else:
            found.append(None)
    return found


class Ring:
    """The publisher's side: chooses the slot for each version, and its stamps.

    Invariants: at most one slot is being written; with more than one slot, a version that was
    complete stays so until a newer one is; numbers grow with each change.
    """

    def __init__(self, slots: int) -> None:
        self.stamps = [Stamp("empty", 0, n) for n in range(slots)]
        self.writing: int | None = None
        self.version: int | None = None  # the newest one that was completed
        self._next = slots

    def begin(self, version: int | None) -> tuple[int, Stamp]:
        """Take a slot for a version (None: the next one); returns the slot and its new stamp.

        Raises:
            RuntimeError: a version is being written.
            ValueError: the version is not greater than all published ones.
        """
        if self.writing is not None:
            raise RuntimeError(
                f"version {self.stamps[self.writing].version} is being written: one at a time"
            )
        newest = -1 if self.version is None else self.version
        version = newest + 1 if version is None else version
        if not newest < version < 1 << 63:
            raise ValueError(
                f"version {version} after version {self.version}: versions have to grow"
                if self.version is not None
                else f"version {version}: give an int of at least 0"
            )
        slot = min(range(len(self.stamps)), key=self._age)
        self.writing = slot
        return slot, self._change("writing", version)

    def _age(self, slot: int) -> int:
        stamp = self.stamps[slot]
        return stamp.version if stamp.state == "complete" else -1

    def commit(self) -> tuple[int, Stamp]:
        """Complete the version that is being written; returns its slot and new stamp."""
        slot = self._written()
        stamp = self._change("complete", self.stamps[slot].version)
        self.version, self.writing = stamp.version, None
        return slot, stamp

    def abort(self) -> tuple[int, Stamp]:
        """Give up the version that is being written: its slot becomes empty."""
        slot = self._written()
        stamp = self._change("empty", 0)
        self.writing = None
        return slot, stamp

    def _written(self) -> int:
        if self.writing is None:
            raise RuntimeError("no version is being written")
        return self.writing

    def _change(self, state: State, version: int) -> Stamp:
        slot = self._written()
        stamp = self.stamps[slot] = Stamp(state, version, self._next)
        self._next += 1
        return stamp

    def validate(self) -> None:
        """Raise AssertionError if the stamps contradict each other."""
        assert [n for n, s in enumerate(self.stamps) if s.state == "writing"] == (
            [] if self.writing is None else [self.writing]
        )
        versions = [s.version for s in self.stamps if s.state == "complete"]
        assert len(set(versions)) == len(versions)
        assert len({s.number for s in self.stamps}) == len(self.stamps)
        assert all(s.number < self._next for s in self.stamps)
        if self.version is not None and len(self.stamps) > 1:
            assert max(versions) == self.version
        if self.writing is not None and self.version is not None:
            assert self.stamps[self.writing].version > self.version


# --- the reader's side ----------------------------------------------------------------------------


class Wanted(msgspec.Struct, frozen=True):
    """The version to pull: exactly `version`, or the newest one above `newer_than`."""

    version: int | None = None
    newer_than: int = -1

    def __str__(self) -> str:
        if self.version is not None:
            return f"version {self.version}"
        return f"a version above {self.newer_than}" if self.newer_than >= 0 else "a version"


class Take(msgspec.Struct, frozen=True):
    """Copy that version: the given slot of each publisher."""

    version: int
    slots: tuple[int, ...]


class Wait(msgspec.Struct, frozen=True):
    """There is no suitable version now: look again later. `why` has the reason."""

    why: str


class Past(msgspec.Struct, frozen=True):
    """The version is gone: publisher number `source` is already at `newest`."""

    source: int
    newest: int


class Done(msgspec.Struct, frozen=True):
    """The copy is all of that version."""

    version: int


Found = list[list["Stamp | None"]]  # by publisher, by slot
Action = Take | Wait | Past | Done


class Reading:
    """The state of one pull: which version is copied, and whether the copy is valid.

    Transitions:

        looking   stamps_read: Take -> copying | Wait -> looking | Past -> over
        copying   copied -> checking
        checking  stamps_read: same stamps -> over (Done) | others -> as in looking, one more torn
        over

    The stamps of several slots are not read at one moment: during a look, a version may be
    completed in a slot that was already read, and a newer one begun in the next. So a version
    counts as gone only if it is missing in a look that *began* after a newer one was seen.
    """

    def __init__(self, wanted: Wanted, names: Sequence[str]) -> None:
        self._wanted = wanted
        self._names = names
        self.state: Literal["looking", "copying", "checking", "over"] = "looking"
        self.torn = 0  # how often a version was replaced during the copy
        self._take: Take | None = None
        self._stamps: list[Stamp | None] = []
        self._newest = [-1] * len(names)  # the newest version of each publisher in earlier looks

    def stamps_read(self, found: Found) -> Action:
        """The stamps of all publishers, read just now."""
        assert self.state in ("looking", "checking")
        if self.state == "checking":
            assert self._take is not None
            if _at(found, self._take) == self._stamps:
                self.state = "over"
                return Done(self._take.version)
            self.torn += 1
        action = self._chosen(found)
        self._newest = [
            max(newest, *(s.version for s in stamps if s is not None and s.state != "empty"), -1)
            for newest, stamps in zip(self._newest, found, strict=True)
        ]
        self.state = "looking"
        if isinstance(action, Take):
            self.state, self._take = "copying", action
            self._stamps = _at(found, action)
        elif isinstance(action, Past):
            self.state = "over"
        return action

    def _chosen(self, found: Found) -> Take | Wait | Past:
        complete = [
            {s.version: n for n, s in enumerate(stamps) if s is not None and s.state == "complete"}
            for stamps in found
        ]
        common = set(complete[0]).intersection(*complete[1:])
        version = self._wanted.version
        if version is None:
            fits = [v for v in common if v > self._wanted.newer_than]
        else:
            for source, versions in enumerate(complete):
                if version not in versions and self._newest[source] > version:
                    return Past(source, self._newest[source])
            fits = [version] if version in common else []
        if fits:
            newest = max(fits)
            return Take(newest, tuple(versions[newest] for versions in complete))
        has = (f"{name} has {_named(v)}" for name, v in zip(self._names, complete, strict=True))
        return Wait("; ".join(has))

    def copied(self) -> None:
        """All slots were copied."""
        assert self.state == "copying"
        self.state = "checking"


def _at(found: Found, take: Take) -> list[Stamp | None]:
    return [stamps[slot] for stamps, slot in zip(found, take.slots, strict=True)]


def _named(versions: Iterable[int]) -> str:
    texts = [str(version) for version in sorted(versions)]
    if not texts:
        return "none that is complete"
    return f"version{'s' if len(texts) > 1 else ''} {', '.join(texts)}"
