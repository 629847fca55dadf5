"""The publisher's side of weight sync: a state dict in memory that others read, version by version.

Runs in: any process, on the calling thread.
Owns: one segment of shared memory, registered once: a header of stamps, and slots that each contain
the whole state dict. It is freed with the StateDictSource.
Invariants: those of `snapshot`: bytes of a slot change only while its stamp says so. No other
process can write to it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from operator import index
from typing import Any

import msgspec

from monarch._src.actor.future import Future
from monarch._src.errors import StateDictMismatchError
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.rdma import arrays
from monarch._src.rdma.buffer import TIMEOUT_S, RDMABuffer
from monarch._src.rdma.shared_segments import shared_empty
from monarch._src.rdma.weights.layout import Entry, Facts, Layout, TensorSlice, laid_out
from monarch._src.rdma.weights.snapshot import (
    HEADER_BYTES,
    MAGIC,
    MOST_SLOTS,
    Ring,
    Stamp,
    packed,
    place_of,
)
from monarch._src.system import shared_memory

_PAGE = 4096
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Layout)


class StateDictHandle:
    """A published state dict, as seen by other processes: pass it to any actor, once.

    It lists the tensors (names, types, shapes, parts), and leads to the bytes of the version that
    is current when it is used. See `get_state_dict`.
    """

    __slots__ = ("buffer", "buffers", "layout")

    def __init__(self, buffer: RDMABuffer, buffers: int, layout: Layout) -> None:
        """For the runtime. Raises ValueError if the arguments contradict each other."""
        layout.validate()
        if not 1 <= buffers <= MOST_SLOTS or buffer.size() < _offset(layout, buffers):
            raise ValueError("this is not a handle of a state dict: it exceeds its memory")
        self.buffer = buffer
        self.buffers = buffers
        self.layout = layout

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tensors, in the order of publication."""
        return tuple(entry.name for entry in self.layout.entries)

    @property
    def slices(self) -> dict[str, TensorSlice]:
        """The part of each tensor that it has."""
        return {entry.name: entry.part for entry in self.layout.entries}

    @property
    def owner(self) -> str:
        """The id of the actor that published it."""
        return self.buffer.owner

    def size(self) -> int:
        """The bytes of one version."""
        return self.layout.size

    def offset(self, slot: int) -> int:
        """For the runtime: the offset of a slot in the buffer."""
        return _offset(self.layout, slot)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_parts, (self.buffer, self.buffers, _encoder.encode(self.layout))

    def __repr__(self) -> str:
        return (
            f"<StateDictHandle: {len(self.layout.entries):,} tensors, {self.size():,} bytes, of "
            f"{self.buffer.handle().actor}>"
        )


def _offset(layout: Layout, slot: int) -> int:
    return HEADER_BYTES + slot * (-(-layout.slot_size // _PAGE) * _PAGE)


def _from_parts(buffer: RDMABuffer, buffers: int, layout: bytes) -> StateDictHandle:
    return StateDictHandle(buffer, buffers, _decoder.decode(layout))


class StateDictSource:
    """A state dict of this process that others pull, version by version: see `put_state_dict`.

    Only one thread at a time may use it. It exists as long as this object, or until `drop`.
    """

    def __init__(
        self,
        state_dict: Mapping[str, Any],
        slices: Mapping[str, TensorSlice],
        buffers: int,
        transfer_dtype: Any,
    ) -> None:
        """For `put_state_dict`. Copies nothing yet."""
        state_dict = arrays.named(state_dict, "put_state_dict")
        facts = {name: arrays.facts_of(name, value) for name, value in state_dict.items()}
        buffers = index(buffers)
        if not facts:
            raise ValueError("an empty state dict: there is nothing to publish")
        if not 1 <= buffers <= MOST_SLOTS:
            raise ValueError(f"buffers={buffers}: give a number from 1 to {MOST_SLOTS}")
        self._given = facts
        kept = {name: arrays.transferred(fact, transfer_dtype) for name, fact in facts.items()}
        self._layout = layout = laid_out(kept, slices)
        self._state_dict = state_dict
        self._ring = Ring(buffers)
        self._writing = GuardedLock()
        size = _offset(layout, buffers)
        # On systems without such memory, readers are served by other transports.
        self._memory = shared_empty(size) if shared_memory.PRESENT else memoryview(bytearray(size))
        self._memory[: len(MAGIC)] = MAGIC
        for slot, stamp in enumerate(self._ring.stamps):
            self._stamp(slot, stamp)
        self._views: dict[int, dict[str, Any]] = {}
        self.handle = StateDictHandle(RDMABuffer(self._memory.toreadonly()), buffers, layout)

    @property
    def version(self) -> int | None:
        """The newest version that others can pull; None if none is complete."""
        return self._ring.version

    def size(self) -> int:
        """The bytes of one version."""
        return self._layout.size

    def refresh(
        self, state_dict: Mapping[str, Any] | None = None, *, version: int | None = None
    ) -> int:
        """Publish a new version: copy all tensors, from any device, then announce them.

        A reader that copies an older version meanwhile gets all of that version, or this one.

        Args:
            state_dict: the same names and shapes as at first; None: the tensors given then.
            version: greater than all before; None: the next one.

        Returns:
            The version.

        Raises:
            StateDictMismatchError: names, types or shapes differ from those of the first.
            ValueError: the version is not greater than the last.
            RDMAHandleError: the state dict was dropped.
        """
        self.handle.buffer.handle()
        if state_dict is None:
            state_dict = self._state_dict
        else:
            self._check(state_dict)
        with self.update(version=version) as views:
            for entry in self._layout.entries:
                arrays.assign(views[entry.name], state_dict[entry.name], entry.kind)
        assert self.version is not None
        return self.version

    @contextmanager
    def update(self, *, version: int | None = None) -> Generator[dict[str, Any]]:
        """A block that writes the next version in place: yields its tensors, in shared memory.

        They contain the values that were last written to them, `buffers` versions ago. When the
        block ends they are the newest version; if it raises, that version does not exist. With
        `buffers=1` they are the same tensors each time: a model that uses them as its parameters is
        published without a copy, and readers wait for the end of the block.

            with source.update() as weights:
                optimizer.step()
        """
        with self._writing:
            slot, stamp = self._ring.begin(None if version is None else index(version))
            self._stamp(slot, stamp)
            shared_memory.fence()
        try:
            yield dict(self._tensors(slot))
        except BaseException:
            shared_memory.fence()
            self._stamp(*self._ring.abort())
            raise
        shared_memory.fence()
        self._stamp(*self._ring.commit())

    def drop(self, *, timeout: float = TIMEOUT_S) -> Future[None]:
        """Revoke the state dict; see `RDMABuffer.drop`."""
        return self.handle.buffer.drop(timeout=timeout)

    def _stamp(self, slot: int, stamp: Stamp) -> None:
        raw = packed(stamp)
        at = place_of(slot)
        self._memory[at : at + len(raw)] = raw

    def _tensors(self, slot: int) -> dict[str, Any]:
        found = self._views.get(slot)
        if found is None:
            start = self.handle.offset(slot)
            found = self._views[slot] = {
                e.name: self._view(e, start + e.offset) for e in self._layout.entries
            }
        return found

    def _view(self, entry: Entry, at: int) -> Any:
        memory = self._memory[at : at + max(entry.size, 1)]
        return arrays.view(memory, entry.kind, entry.dtype, entry.shape)

    def _check(self, state_dict: Mapping[str, Any]) -> None:
        state_dict = arrays.named(state_dict, "refresh")
        facts = {name: arrays.facts_of(name, value) for name, value in state_dict.items()}
        if facts != self._given:
            raise StateDictMismatchError(
                "this state dict differs from the one that was published first; call "
                "put_state_dict for a new one",
                [name for name in self._given if name not in facts],
                [name for name in facts if name not in self._given],
                {
                    name: f"{_text(facts[name])}, it was {_text(fact)}"
                    for name, fact in self._given.items()
                    if name in facts and facts[name] != fact
                },
            )

    def __repr__(self) -> str:
        return (
            f"<StateDictSource: {len(self._layout.entries):,} tensors, {self.size():,} bytes, "
            f"version {self.version}>"
        )


def _text(facts: Facts) -> str:
    return f"{facts.kind} {facts.dtype} {facts.shape}"


def put_state_dict(
    state_dict: Mapping[str, Any],
    *,
    slices: Mapping[str, TensorSlice] | None = None,
    version: int | None = None,
    buffers: int = 2,
    transfer_dtype: Any = None,
) -> StateDictSource:
    """Publish a state dict: copy it to shared memory, from which others pull it, one-sided.

        class Trainer(Actor):
            def __init__(self):
                self.model = ...
                self.weights = put_state_dict(self.model.state_dict())

            @endpoint
            def handle(self) -> StateDictHandle:
                return self.weights.handle

            @endpoint
            def train(self):
                ...
                self.weights.refresh()  # the next version

    Args:
        state_dict: torch tensors or numpy arrays by name, on any device, of any strides.
        slices: for tensors that are shards, the part of the whole that each is.
        version: the first version; 0 by default.
        buffers: how many versions are kept. With 2, the publication of the next version does not
            disturb a running pull; only that of the version after it makes the reader begin anew.
            With more, slow readers keep up with a fast publisher.
        transfer_dtype: publish floating-point tensors as this type of torch or numpy.

    Raises:
        TypeError: a value is neither a tensor nor an array, or has no plain elements; a name is not
            a str.
        ValueError: it is empty; a slice does not fit; `buffers` or `version` is out of range.
        OSError: there is not enough shared memory.
    """
    source = StateDictSource(state_dict, slices or {}, buffers, transfer_dtype)
    source.refresh(version=version)
    return source
