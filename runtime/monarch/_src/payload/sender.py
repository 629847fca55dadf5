"""The sender's side of payloads in segments: fills segments, lends them and takes them back.

Runs in: any process that sends large payloads; on the sending thread, and on the one that tidies.
Owns: an anonymous file for each segment (`payload.state.leases` decides which exist). However this
process ends, the kernel frees the memory once the last receiver has unmapped it.
A segment begins with a header: its key, the number of messages that were in it, then one word for
each receiver of the message. A receiver writes its word when it has mapped the segment, and again
when it no longer needs it. So a loan is returned by a store into memory, without a message.
Invariants: fresh memory is first written to by the kernel, so that a lack of memory is an error and
not a signal; a file's size is sealed. Finalizers only record the end of their object.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from secrets import randbits
from typing import Any, cast

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.state.leases import LENT, MOST_LOANS, Free, Lending, Use
from monarch._src.system import shared_memory
from monarch._src.system.last_reference import on_last_reference_dropped
from monarch._src.wire.frames import Buffer, Payload, Placed
from monarch._src.wire.memory_copies import copied
from monarch._src.wire.messages import Message, PayloadTaken
from monarch._src.wire.raw_memory import address_of
from monarch._src.wire.segment_refs import SEGMENT_FROM, InSegment, Span

HEADER = 1 << 14
USE_WORD = 2  # follows the key; see `InSegment.use`
FIRST_WORD = 16  # the words of the receivers begin here
ALIGNED = 64
NOT_MAPPED = "its receiver could not map the segment"
assert HEADER == 4 * (FIRST_WORD + MOST_LOANS)

# The receivers of a message that is sent to a node: that node, or all nodes it is passed on to.
# None: the message goes over the socket.
ReceiversOf = Callable[[str, Message], Sequence[str] | None]


class Mapped:
    """A mapping of memory, which lives as long as this object or a view made by `over`.

    `here`: forks of this process do not inherit the mapping.
    """

    __slots__ = ("_token", "address", "size")

    def __init__(self, address: int, size: int, *, here: bool = False) -> None:
        self.address = address
        self.size = size
        pid = os.getpid() if here else 0
        if here:
            shared_memory.keep_from_forks(address, size)

        def unmap(getpid: Callable[[], int] = os.getpid) -> None:
            if not pid or getpid() == pid:
                shared_memory.unmap(address, size)

        self._token = on_last_reference_dropped(unmap)

    def over(self, *, readonly: bool = False) -> memoryview:
        """A view of all of it, which keeps the mapping alive."""
        root: Any = array_type(self.size).from_address(self.address)
        root.mapped = self._token
        view = memoryview(root).cast("B")
        return view.toreadonly() if readonly else view


_types: dict[int, Any] = {}


def array_type(size: int) -> Any:
    """The ctypes array of that many bytes. Cached, since segments have few sizes."""
    found = _types.get(size)
    if found is None:
        found = _types[size] = ctypes.c_ubyte * size
    return found


@cache
def host_number() -> int:
    """A number that two processes share if and only if they run under one kernel."""
    digest = blake2b(shared_memory.this_host().encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def aligned(size: int) -> int:
    """The space that a part of that size takes in a segment."""
    return -(-size // ALIGNED) * ALIGNED


def parts_of(payload: Payload) -> tuple[Sequence[Buffer], bool, bool]:
    """The large parts of a payload, whether its body is the first, whether all are read-only."""
    buffers = cast("Sequence[Buffer]", payload.buffers)
    body = len(payload.body) >= SEGMENT_FROM
    readonly = all(isinstance(b, bytes) or memoryview(b).readonly for b in buffers)
    return [payload.body, *buffers] if body else buffers, body, readonly


class _File:
    """A segment: its file, its header and, from its second message on, a mapping of all of it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity + HEADER
        self.fd = shared_memory.sealed_file("payload", self.capacity)
        try:
            self.file = os.fstat(self.fd).st_ino
            self.header = self._map(HEADER)
        except BaseException:
            os.close(self.fd)
            raise
        self.words = self.header.over().cast("I")
        self.key = randbits(62)
        self.words[:2] = memoryview(self.key.to_bytes(8, "little")).cast("I")
        self.use = 0
        self.filled = HEADER  # memory has been allocated up to here
        self.used_words = 0
        self.mapped: Mapped | None = None

    def _map(self, size: int) -> Mapped:
        return Mapped(shared_memory.map_shared(self.fd, size, writable=True), size, here=True)

    def lay_out(self, sizes: Sequence[int]) -> tuple[Span, ...]:
        """Begin a new message: the places of parts of these sizes."""
        if self.filled > HEADER and self.mapped is None:
            self.mapped = self._map(self.capacity)
            shared_memory.populate(self.mapped.address + HEADER, self.filled - HEADER)
        spans: list[Span] = []
        at = HEADER
        for size in sizes:
            spans.append((at, size))
            at += aligned(size)
        for word in range(FIRST_WORD, FIRST_WORD + self.used_words):
            self.words[word] = LENT
        self.used_words = 0
        # The server of another host that still reads the last message sees this first.
        self.use = (self.use + 1) % (1 << 32)
        self.words[USE_WORD] = self.use
        shared_memory.fence()
        return tuple(spans)

    def put(self, at: int, data: Buffer) -> None:
        """Write at that place, in ascending order of places.

        Raises:
            OSError: there is not enough memory.
        """
        source, size = address_of(data), len(data)
        there = 0 if self.mapped is None else max(0, min(size, self.filled - at))
        if there and self.mapped is not None:
            shared_memory.copy(self.mapped.address + at, source, there)
        if size > there:
            shared_memory.write_at(self.fd, source + there, size - there, at + there)
            if at <= self.filled:  # otherwise there is a gap before it
                self.filled = max(self.filled, at + size)

    def room(self, at: int, size: int) -> memoryview | None:
        """Allocated memory at that place; None if there is none yet: call `write`. Any thread."""
        mapped = self.mapped
        if mapped is None or at + size > self.filled:
            return None
        return mapped.over()[at : at + size]

    def write(self, at: int, data: Buffer) -> None:
        """Write where no memory has been allocated, in any order. Any thread.

        Unlike a page fault, the kernel does not clear new memory before it copies to it.

        Raises:
            OSError: there is not enough memory.
        """
        shared_memory.write_at(self.fd, address_of(data), len(data), at)

    def over(self) -> memoryview:
        """A read-only view of all of it, which keeps the mapping alive."""
        if self.mapped is None:
            self.mapped = self._map(self.capacity)
        return self.mapped.over(readonly=True)

    def close(self, *, shared: bool) -> None:
        if not shared:
            shared_memory.free_pages(self.fd, self.capacity)
        os.close(self.fd)


class InOwnSegment(Placed):
    """The large parts of a payload of this process. The object holds the segment."""

    __slots__ = ("_file", "_lender", "_use", "body", "number", "readonly", "sole", "spans")

    def __init__(
        self,
        lender: PayloadSender,
        number: int,
        file: _File,
        *,
        body: bool,
        readonly: bool,
        sole: bool,
    ) -> None:
        self._lender = lender
        self._file = file
        self.number = number
        self._use = 0
        self.spans: tuple[Span, ...] = ()
        self.body = body
        self.readonly = readonly
        self.sole = sole

    def __len__(self) -> int:
        return sum(length for _, length in self.spans)

    def laid_out(self, sizes: Sequence[int]) -> None:
        """Give its parts these sizes. Raises OSError if the segment cannot be mapped."""
        self.spans = self._file.lay_out(sizes)
        self._use = self._file.use

    def lend(self, node: str, message: Message) -> InSegment | None:
        """See `Placed`."""
        word = self._lender.lend(self.number, node, message)
        return None if word is None else self._in_segment(word)

    def lend_to(self, node: str) -> InSegment | None:
        """Lend the parts to that node alone; None if that fails."""
        word = self._lender.lend_to(self.number, (node,))
        return None if word is None else self._in_segment(word)

    def _in_segment(self, word: int) -> InSegment:
        file = self._file
        return InSegment(
            host_number(), os.getpid(), file.fd, file.file, file.key, self.number, file.capacity,
            word, self.sole, self.readonly, self.body, self.spans, self._use,
        )  # fmt: skip

    def serve(self, node: str, site: str) -> InSegment:
        """See `Placed`."""
        return self._in_segment(self._lender.served.add(node, site, self._file.key, self.parts()))

    def unserve(self, lent: InSegment) -> None:
        """See `Placed`."""
        self._lender.served.taken(lent.key, lent.word)

    def put(self, part: int, at: int, data: Buffer) -> None:
        """Write a piece of a part, in the order of the pieces.

        Raises:
            OSError: there is not enough memory.
        """
        self._file.put(self.spans[part][0] + at, data)

    def room(self, part: int, at: int, size: int) -> memoryview | None:
        """Memory for a piece of a part, valid while the caller refers to it; None: call `write`.

        Any thread. As with `write`, pieces may come in any order until `is_filled`.
        """
        return self._file.room(self.spans[part][0] + at, size)

    def write(self, part: int, at: int, data: Buffer) -> None:
        """Write bytes of a part. Any thread.

        Raises:
            OSError: there is not enough memory.
        """
        self._file.write(self.spans[part][0] + at, data)

    def is_filled(self) -> None:
        """All pieces have been written."""
        at, size = self.spans[-1]
        self._file.filled = max(self._file.filled, at + size)

    def unsent(self, lent: InSegment, node: str, message: Message) -> None:
        """See `Placed`."""
        self._lender.unsent(self.number, lent.word, node, message)

    def carried(self, payload: Payload) -> Payload:
        """See `Placed`. The views keep the segment alive."""
        views = self.parts()
        return Payload(views[0], views[1:]) if self.body else Payload(payload.body, views)

    def parts(self) -> list[memoryview]:
        """Read-only views of all parts; they keep the segment alive."""
        root = self._file.over()
        # Each view refers to `root`, and `root` to this object, which holds the segment.
        cast(Any, root.obj).placed = self
        return [root[at : at + length] for at, length in self.spans]

    def __del__(self) -> None:
        self._lender.dropped.append(self.number)


class PayloadSender:
    """All segments of this process."""

    def __init__(self, receivers_of: ReceiversOf) -> None:
        self._receivers_of = receivers_of
        self._core = Lending()
        self._files: dict[int, _File] = {}
        self._lock = GuardedLock()
        self._closed = False
        self._freed: deque[tuple[_File, bool]] = deque()  # to be closed
        self.served = OutgoingPayloads()
        self.dropped: deque[int] = deque()  # segments whose message is no longer sent
        self.placed = self.placed_bytes = self.made = self.reused = 0
        self.carried: Counter[str] = Counter()  # payloads that used a socket instead, by reason

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return len(self._core.segments)

    @property
    def pooled_bytes(self) -> int:
        """Bytes of segments that wait for another message."""
        return self._core.pooled_bytes

    def place(self, payload: Payload, *, sole: bool) -> Payload | None:
        """Put the large parts of a payload into a segment; None: send it without a segment.

        `sole`: the message will be sent once, to one process.
        """
        parts, body, readonly = parts_of(payload)
        sizes = [len(part) for part in parts]
        placed = self.reserve(sizes, body=body, readonly=readonly, sole=sole)
        if placed is None:
            return None
        try:
            for at, part in enumerate(parts):
                placed.put(at, 0, part)
        except OSError as error:
            self.failed(placed, f"there was no memory for it ({error.strerror})")
            return None
        except BaseException:
            self.failed(placed, "")
            raise
        self.placed += 1
        self.placed_bytes += sum(sizes)
        return Payload(b"" if body else payload.body, (placed,))

    def reserve(
        self, sizes: Sequence[int], *, body: bool, readonly: bool, sole: bool
    ) -> InOwnSegment | None:
        """A segment for parts of these sizes, to be filled by the caller; None: there is none."""
        try:
            number, file = self._find(sum(map(aligned, sizes)))
        except LookupError as why:
            self.carried[str(why)] += 1
            return None
        placed = InOwnSegment(self, number, file, body=body, readonly=readonly, sole=sole)
        try:
            placed.laid_out(sizes)
        except OSError as error:
            self.failed(placed, f"it could not be mapped ({error.strerror})")
            return None
        return placed

    def _find(self, size: int) -> tuple[int, _File]:
        """An unused segment of at least that size. Raises LookupError with the reason."""
        if not shared_memory.PRESENT:
            raise LookupError("this system has no memfd_create (Linux has)")
        with self._lock:
            if self._closed:
                raise LookupError("this process has left its session")
            self._take_back()
            use, freed = self._core.wanted(size)
            self._free(freed)
        self._close_freed()
        if use is None:
            raise LookupError("too many segments in use")
        if not use.new:
            self.reused += 1
            return use.segment, self._files[use.segment]
        return use.segment, self._made(use)

    def _made(self, use: Use) -> _File:
        try:
            file = _File(use.capacity)
        except OSError as error:
            self._failed(use.segment, "")
            raise LookupError(f"no segment could be made ({error.strerror})") from error
        self._files[use.segment] = file
        self.made += 1
        return file

    def failed(self, placed: InOwnSegment, why: str) -> None:
        """The parts could not be written: free the segment."""
        self._failed(placed.number, why)

    def _failed(self, number: int, why: str) -> None:
        if why:
            self.carried[why] += 1
        with self._lock:
            self._free(self._core.failed(number))

    # --- loans ------------------------------------------------------------------------------------

    def lend(self, number: int, node: str, message: Message) -> int | None:
        """The word of the first receiver of that message; None if the words do not suffice."""
        nodes = self._receivers_of(node, message)
        if nodes is None:
            self.carried[NOT_MAPPED] += 1
            return None
        return self.lend_to(number, nodes)

    def lend_to(self, number: int, nodes: Sequence[str]) -> int | None:
        """The word of the first of these nodes; None if the words do not suffice."""
        with self._lock:
            if self._closed:
                return None
            word = self._core.lent(number, nodes)
            if word is None:
                self.carried["too many receivers"] += 1
                return None
            file = self._files[number]
            file.used_words = max(file.used_words, word + len(nodes))
            # An empty name stands for a receiver that is known to have ended.
            self._free(
                self._core.unsent(
                    number, [word + at for at, name in enumerate(nodes) if not name], _now()
                )
            )
        return word

    def unsent(self, number: int, word: int, node: str, message: Message) -> None:
        """That message was not sent: end its loans."""
        self._end(number, word, len(self._receivers_of(node, message) or ()))

    def _end(self, number: int, word: int, count: int) -> None:
        with self._lock:
            self._free(self._core.unsent(number, range(word, word + count), _now()))

    def node_gone(self, node: str) -> None:
        """That node has ended: it can return no loans."""
        self.served.gone(node)
        with self._lock:
            self._take_back()
            self._free(self._core.node_gone(node))
        self._close_freed()

    def taken(self, message: PayloadTaken) -> None:
        """Another host has received its payload."""
        if message.why:
            self.carried[message.why] += 1
        self.served.taken(message.key, message.word, message.bulk)

    def renamed(self, old: str, new: str) -> None:
        """A receiver is known by another name now."""
        self.served.renamed(old, new)
        with self._lock:
            self._core.renamed(old, new)

    def copied_for(self, lent: InSegment, word: int) -> Payload | None:
        """A copy for a receiver that cannot map the segment; ends its loan. None: it is gone."""
        with self._lock:
            file = self._files.get(lent.number)
            if file is None or file.key != lent.key:
                return None
        root = file.over()
        parts = [copied(root[at : at + length]) for at, length in lent.spans]
        self.carried[NOT_MAPPED] += 1
        self._end(lent.number, word, 1)
        return Payload(memoryview(parts[0]), parts[1:]) if lent.body else Payload(b"", parts)

    def tidy(self, now: float) -> bool:
        """Take back returned loans and free old segments; False if no segment is left."""
        with self._lock:
            self._take_back()
            self._free(self._core.time_passed(now))
        self._close_freed()
        return bool(self._core or self._freed)

    def all_taken(self) -> bool:
        """Whether every living receiver has mapped or received its payload."""
        if self.served:
            return False
        with self._lock:
            self._take_back()
            for number in self._core.lent_out():
                words = self._files[number].words
                loans = self._core.segments[number].loans
                if any(words[FIRST_WORD + word] == LENT for word in loans):
                    return False
        return True

    def close(self) -> None:
        """Free all segments; receivers keep their mappings. Idempotent."""
        with self._lock:
            self._closed = True
            self.served.clear()
            self._take_back()
            self._free(self._core.closed())
        self._close_freed()

    def forked(self) -> None:
        """In a fork of this process, which sends nothing: drop all segments. Takes no lock."""
        self._closed = True
        for file in list(self._files.values()):
            os.close(file.fd)
        self._files.clear()

    def _close_freed(self) -> None:
        # Not under the lock: the kernel takes a tenth of a second to free a gibibyte.
        while True:
            try:
                file, shared = self._freed.popleft()
            except IndexError:
                return
            file.close(shared=shared)

    # --- under the lock ---------------------------------------------------------------------------

    def _take_back(self) -> None:
        now = _now()
        while self.dropped:
            self._free(self._core.let_go(self.dropped.popleft(), now))
        for number in self._core.lent_out():
            words = self._files[number].words[FIRST_WORD:]
            self._free(self._core.read(number, words, now))

    def _free(self, freed: list[Free]) -> None:
        for one in freed:
            file = self._files.pop(one.segment, None)
            if file is not None:
                self._freed.append((file, one.shared))


_now = time.monotonic
