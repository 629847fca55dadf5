"""The reader's side of weight sync: plans the copies, and carries them out.

Runs in: any process. The calling thread makes the plan, from the handles only. A pull may wait for
a version, so it runs on a thread of its own, with the help of the threads that move bytes.
Owns: memory for parts that cannot be read directly into their tensors.
Invariants: no byte is moved before the whole plan is known to fit. A pull is over, successful or
not, only when no thread touches the memory any more.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, cast

import msgspec

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime
from monarch._src.errors import (
    RDMAOwnerLostError,
    RDMATimeoutError,
    StateDictMismatchError,
    StateDictVersionError,
)
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.rdma import arrays
from monarch._src.rdma.buffer import TIMEOUT_S, seconds_of
from monarch._src.rdma.memory import Memory, is_in_place
from monarch._src.rdma.plane import DataPlane, plane_of
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transfer import Op
from monarch._src.rdma.weights.layout import (
    Box,
    ElementRuns,
    Entry,
    Facts,
    TensorSlice,
    check_slices,
    covered,
    runs_of,
)
from monarch._src.rdma.weights.progress import UNDER_WAY, ProgressReporter, PullProgress
from monarch._src.rdma.weights.publish import StateDictHandle
from monarch._src.rdma.weights.snapshot import (
    Done,
    Found,
    Past,
    Reading,
    Take,
    Wait,
    Wanted,
    place_of,
    stamps_of,
)
from monarch._src.system import shared_memory

SHORTEST_RUN = 2048  # bytes: several shorter runs are read together with the gaps between them
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02
FIRST_LOOK_S = 1.0


class PulledStateDict(dict[str, Any]):
    """A state dict as it was at one version: tensors or arrays by name.

    version: that version. bytes_read: how many bytes were moved. seconds: the time that it took,
    including waits. torn: how many attempts failed because a version was replaced meanwhile.
    """

    version: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    torn: int = 0


class _Read(msgspec.Struct, frozen=True):
    """`size` bytes, from an offset in a slot of publisher number `source`, to local memory."""

    source: int
    offset: int
    memory: Memory
    size: int


class _Stage(msgspec.Struct, frozen=True):
    """Bytes that are read into memory of this process, then copied to their tensor."""

    room: memoryview
    target: Any
    places: tuple[slice, ...]
    facts: Facts
    strides: tuple[int, ...]

    def finish(self) -> None:
        """Copy the bytes, which have arrived, to their tensor."""
        elements = arrays.strided(self.room, self.facts, self.strides)
        arrays.assign(self.target[self.places], elements, self.facts.kind)


class StateDictReader:
    """A planned pull, for repeated use: which parts of which publishers go to which tensors.

    The constructor takes the arguments of `get_state_dict`, and raises the same errors at the call.
    """

    def __init__(
        self,
        sources: StateDictHandle | Iterable[StateDictHandle],
        user_state_dict: Mapping[str, Any] | None = None,
        *,
        slices: Mapping[str, TensorSlice] | None = None,
        strict: bool = True,
    ) -> None:
        """See `get_state_dict`."""
        self._sources = _handles(sources)
        check_slices(slices or {})
        if user_state_dict is not None:
            arrays.named(user_state_dict, "a pull")
        self._reads: list[_Read] = []
        self._stages: list[_Stage] = []
        self._state_dict: dict[str, Any] = {}
        self._targets: list[Memory] = []  # of given tensors that bytes are read into directly
        self._headers = [bytearray(place_of(handle.buffers)) for handle in self._sources]
        self._ops: dict[tuple[int, ...], list[Op]] = {}
        self._busy = threading.Lock()
        self._plan(user_state_dict, slices or {}, strict)
        self.size = sum(read.size for read in self._reads)

    # --- the plan ---------------------------------------------------------------------------------

    def _plan(
        self, given: Mapping[str, Any] | None, slices: Mapping[str, TensorSlice], strict: bool
    ) -> None:
        held: dict[str, list[tuple[int, Entry]]] = {}
        for number, handle in enumerate(self._sources):
            for entry in handle.layout.entries:
                held.setdefault(entry.name, []).append((number, entry))
        asked = held if given is None else given
        missing = [name for name in {**asked, **slices} if name not in held]
        missing += [name for name in slices if given is not None and name not in given]
        unexpected = [name for name in held if name not in asked]
        wrong: dict[str, str] = {}
        for name, places in held.items():
            if name in asked:
                value = None if given is None else given[name]
                text = self._plan_one(name, value, slices.get(name), places)
                if text:
                    wrong[name] = text
        if not strict:
            missing = [name for name in missing if name in slices]
            unexpected = []
        if missing or unexpected or wrong:
            raise StateDictMismatchError(
                "the published tensors differ from the requested ones", missing, unexpected, wrong
            )
        if given is not None:
            self._state_dict = {n: self._state_dict[n] for n in given if n in self._state_dict}

    def _plan_one(
        self, name: str, value: Any, part: TensorSlice | None, places: list[tuple[int, Entry]]
    ) -> str:
        """Plan the reads of one tensor. Returns the reason why it does not fit, or nothing."""
        first = places[0][1]
        whole = first.part.global_shape
        for _, entry in places:
            if (entry.dtype, entry.part.global_shape) != (first.dtype, whole):
                return (
                    f"publishers differ: {first.dtype} of {whole}, and {entry.dtype} of "
                    f"{entry.part.global_shape}"
                )
        part = part or TensorSlice.whole(whole)
        if part.global_shape != whole:
            return f"the slice {part} is requested, but the tensor was published as {whole}"
        if value is None:
            value = arrays.empty(first.kind, first.dtype, part.local_shape)
        facts = arrays.facts_of(name, value)
        if facts.dtype != first.dtype:
            return f"published as {first.dtype}, to be pulled into {facts.dtype}"
        if facts.shape != part.local_shape:
            return f"{part} is to be pulled into a tensor of shape {facts.shape}"
        if arrays.is_readonly(value, facts.kind):
            return "the array to pull into is read-only"
        if not arrays.has_room(value, facts.kind):
            return "elements of the tensor to pull into share memory (`expand`)"
        boxes, left = covered(
            part, [entry.part for _, entry in places], zlib.crc32(name.encode()) % len(places)
        )
        if left:
            return f"no given publisher has the elements {', '.join(map(str, left[:3]))}"
        self._state_dict[name] = value
        memory = arrays.memory_in_a_row(value, facts.kind) if boxes else None
        if memory is not None:
            self._targets.append(memory)
        for number, box in boxes:
            source, entry = places[number]
            self._plan_box(source, entry, box, runs_of(box, entry.part, part), facts, value, memory)
        return ""

    def _plan_box(
        self, source: int, entry: Entry, box: Box, runs: ElementRuns, facts: Facts, value: Any,
        memory: Memory | None,
    ) -> None:  # fmt: skip
        size = runs.length * facts.itemsize
        if memory is not None and (runs.count == 1 or size >= SHORTEST_RUN):
            for start, target in runs:
                place = Memory(memory.address + target * facts.itemsize, size, False, memory)
                self._reads.append(
                    _Read(source, entry.offset + start * facts.itemsize, place, size)
                )
            return
        span = (runs.stop - runs.start) * facts.itemsize
        room = memoryview(bytearray(span))
        self._reads.append(
            _Read(source, entry.offset + runs.start * facts.itemsize, memory_of(room), span)
        )
        piece = msgspec.structs.replace(facts, shape=box.shape)
        self._stages.append(_Stage(room, value, runs.places, piece, runs.strides))

    # --- the pull ---------------------------------------------------------------------------------

    def pull(
        self,
        *,
        version: int | None = None,
        newer_than: int | None = None,
        on_progress: Callable[[PullProgress], object] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Future[PulledStateDict]:
        """Pull a version. See `get_state_dict`.

        Raises:
            RuntimeError: the previous pull, into the same memory, is not over.
            ValueError: a tensor to pull into was resized since the plan was made.
        """
        version = None if version is None else index(version)
        if version is not None and (version < 0 or newer_than is not None):
            raise ValueError("give a version of at least 0, or `newer_than`, or neither")
        wanted = Wanted(version, -1 if newer_than is None else index(newer_than))
        timeout = seconds_of(timeout)
        if not all(map(is_in_place, self._targets)):
            raise ValueError(
                "a tensor to pull into was resized, and its memory has moved: make a new "
                "StateDictReader"
            )
        run = runtime()
        plane = plane_of(run)
        with uninterrupted():  # or it could stay busy
            if not self._busy.acquire(blocking=False):
                raise RuntimeError(
                    "a pull into the same memory is running: wait for its future first"
                )
            future: Future[PulledStateDict] = run.new_future()
            pull = _Pull(self, plane, wanted, timeout, on_progress)

            def work() -> None:
                UNDER_WAY[id(pull)] = pull.progress
                try:
                    pulled = pull.run()
                except Exception as error:
                    over()
                    future.fail(error)
                else:
                    over()
                    future.settle(lambda: pulled)

            def over() -> None:
                del UNDER_WAY[id(pull)]
                self._busy.release()

            if not plane.waits.submit(work):
                self._busy.release()
                future.fail(RDMAOwnerLostError("the session of this process has ended"))
        return future

    @property
    def sources(self) -> Sequence[StateDictHandle]:
        """The publishers that it pulls from."""
        return tuple(self._sources)

    def ops(self, slots: tuple[int, ...]) -> list[Op]:
        """For the runtime: all reads, from these slots of the publishers."""
        found = self._ops.get(slots)
        if found is None:
            starts = [h.offset(slot) for h, slot in zip(self._sources, slots, strict=True)]
            handles = [handle.buffer.handle() for handle in self._sources]
            found = self._ops[slots] = [
                Op("read", handles[r.source], r.memory, r.size, starts[r.source] + r.offset)
                for r in self._reads
            ]
        return found

    def stamp_reads(self) -> list[Op]:
        """For the runtime: reads of all stamps."""
        return [
            Op("read", handle.buffer.handle(), memory_of(header), len(header))
            for handle, header in zip(self._sources, self._headers, strict=True)
        ]

    def found(self) -> Found:
        """For the runtime: the stamps that were read most recently."""
        pairs = zip(self._sources, self._headers, strict=True)
        return [stamps_of(header, handle.buffers) for handle, header in pairs]

    def finish(self) -> PulledStateDict:
        """For the runtime: copy staged bytes to their tensors."""
        for stage in self._stages:
            stage.finish()
        return PulledStateDict(self._state_dict)


def _handles(sources: object) -> list[StateDictHandle]:
    """The given handles, one or several. Raises TypeError, ValueError."""
    several = isinstance(sources, Iterable)
    found = list(cast("Iterable[object]", sources)) if several else [sources]
    for handle in found:
        if not isinstance(handle, StateDictHandle):
            raise TypeError(
                f"a publisher is named by its StateDictHandle (`.handle` of the StateDictSource), "
                f"not by a {type(handle).__qualname__}"
            )
    if not found:
        raise ValueError("no publisher was given: pass the handle of one, or those of all")
    return cast("list[StateDictHandle]", found)


class _Pull:
    """One pull, on its thread."""

    def __init__(
        self, reader: StateDictReader, plane: DataPlane, wanted: Wanted, timeout_s: float,
        on_progress: Callable[[PullProgress], object] | None,
    ) -> None:  # fmt: skip
        self._reader = reader
        self._plane = plane
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s
        self._names = [handle.buffer.handle().actor for handle in reader.sources]
        self._reading = Reading(wanted, self._names)
        self._progress = ProgressReporter(on_progress, self._began)
        self._why = ""  # why the last look found no version

    def progress(self) -> tuple[str, PullProgress]:
        """The publishers' names, and the progress. Any thread."""
        return ", ".join(dict.fromkeys(self._names)), self._progress.now()

    def run(self) -> PulledStateDict:
        """Run until there is a version, or an error."""
        reader, reading = self._reader, self._reading
        looks = reader.stamp_reads()
        pause = FIRST_PAUSE_S
        while True:
            shared_memory.fence()
            self._look(looks)
            shared_memory.fence()
            match reading.stamps_read(reader.found()):
                case Take(version=version, slots=slots):
                    self._progress.begin(version, reader.size, reading.torn)
                    self._move(reader.ops(slots), self._progress.moved)
                    self._progress.check()
                    reading.copied()
                    pause = FIRST_PAUSE_S
                case Done(version=version):
                    pulled = reader.finish()
                    pulled.version, pulled.torn = version, reading.torn
                    pulled.bytes_read = reader.size
                    pulled.seconds = time.monotonic() - self._began
                    return pulled
                case Past(source=source, newest=newest):
                    raise self._past(source, newest)
                case Wait(why=why):
                    self._why = why
                    self._rest(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_S)

    def _look(self, looks: Sequence[Op]) -> None:
        first = not self._why and not self._reading.torn
        try:
            # Even with a time-out of 0, the error says which versions there are.
            self._move(looks, grace=FIRST_LOOK_S if first else 0)
        except RDMATimeoutError:
            if not self._why:
                raise
            raise RDMATimeoutError(
                f"{self._wanted} was not available within {self._timeout_s:g} s: {self._why}",
                *self._about(0),
            ) from None

    def _move(
        self, ops: Sequence[Op], progress: Callable[[int], None] | None = None, grace: float = 0
    ) -> None:
        try:
            self._plane.run(ops, self._deadline + grace, self._timeout_s + grace, progress)
        except RDMATimeoutError as error:
            if not self._reading.torn:
                raise
            raise RDMATimeoutError(
                f"{error}; {self._reading.torn} times a version was replaced while it was read: "
                "publish less often than a pull takes, or keep more versions (`buffers`)",
                error.buffer, error.owner, error.size, error.bytes_done, error.transport,
            ) from error  # fmt: skip

    def _rest(self, pause: float) -> None:
        left = max(self._deadline - time.monotonic(), 0)
        if self._plane.ended.wait(min(pause, left)):
            raise RDMAOwnerLostError("the session of this process has ended")

    def _past(self, source: int, newest: int) -> StateDictVersionError:
        version = self._wanted.version
        assert version is not None
        kept = self._reader.sources[source].buffers
        return StateDictVersionError(
            f"version {version} of the state dict of {self._names[source]} is gone: it is at "
            f"version {newest}, and keeps {kept}. Pull a newer one, or publish with more `buffers`",
            *self._about(source), self._reader.size, 0, None, version, newest,
        )  # fmt: skip

    def _about(self, source: int) -> tuple[str, str]:
        handle = self._reader.sources[source].buffer.handle()
        return handle.text, handle.actor_id


def get_state_dict(
    sources: StateDictHandle | Iterable[StateDictHandle],
    user_state_dict: Mapping[str, Any] | None = None,
    *,
    slices: Mapping[str, TensorSlice] | None = None,
    strict: bool = True,
    version: int | None = None,
    newer_than: int | None = None,
    on_progress: Callable[[PullProgress], object] | None = None,
    timeout: float = TIMEOUT_S,
) -> Future[PulledStateDict]:
    """Pull a published state dict, as it was at one version, while its owner works on.

        pulled = await get_state_dict(handle, self.model.state_dict())
        self.version = pulled.version

    Args:
        sources: the handle of a publisher, or those of several that each have a part. All parts
            are taken from one version, which all of the publishers have.
        user_state_dict: tensors or arrays to pull into, in place. None: new ones for all published
            tensors, of the publisher's kind.
        slices: by name, the part of the whole that each tensor is; others are whole. The
            publishers' parts may be cut differently.
        strict: whether both sides must have the same names.
        version: pull exactly this version; waits for it.
        newer_than: pull a version greater than this one; waits for it. By default the newest one.
        on_progress: called at intervals, on another thread, and when all bytes have arrived. It may
            be `port.send` of a Port with a remote receiver. If it raises, the pull fails.
        timeout: seconds for the whole pull.

    Returns:
        A future of the names and tensors. If it fails, your memory is no longer touched, and may be
        partly overwritten. Cancelling an `await` does not end the pull.

    Raises:
        StateDictMismatchError: at the call, with everything that does not fit: names, types,
            shapes, elements that no publisher has.
        StateDictVersionError: by the future: that version is no longer kept.
        RDMATimeoutError: by the future: there was no such version in time; it names those found.
        RDMAOwnerLostError, RDMAHandleError: by the future: a publisher has ended or dropped it.
    """
    reader = StateDictReader(sources, user_state_dict, slices=slices, strict=strict)
    return reader.pull(
        version=version, newer_than=newer_than, on_progress=on_progress, timeout=timeout
    )
