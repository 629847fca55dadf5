"""The history of one process: its last calls, messages, spans, log records. No I/O, no clock.

A process keeps it while it is switched on (`telemetry.history`), in rings: the oldest rows make
room for new ones, and their number is kept. Events of actors are kept always, since they are rare.

On the path of a call this costs one tuple on each side, appended to a deque: 0.3 us. Adding takes
no lock, for the reason given in `actor.state.endpoint_metrics`. Times are nanoseconds of the
monotonic clock; the first of each row is when it was added, by which rows expire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from monarch._src.wire.ids import UidSource

MOST_ROWS = 1024
"""The number of rows of each ring, unless another one is set.

Rings of so many rows take less than 2 MiB of a process together, but for events of torch.
"""
TEXT_BYTES = 256
"""The maximal size of the texts of a ring of texts, for each row that the ring may have."""
ACTOR_EVENTS = 1024
"""The number of kept changes of the states of actors."""
MOST_OPEN = 4096
"""The maximal number of spans that run and are remembered."""
LONGEST_NAME = 200
LONGEST_TEXT = 4096
"""The numbers of characters that are kept of one name, and of one text."""

TORCH_EVENTS_PER_ROW = 8
"""The ring of events of torch has that many times the rows of another: a step has thousands."""

R = TypeVar("R", bound="tuple[Any, ...]")


class Handled(NamedTuple):
    """A message that an actor has finished.

    `caller` is the node that called, `sent_by` the uid of the actor there (0: none, or not known),
    `call` its number (0: no caller waits). `ran_ns` -1: it has not run.
    """

    ended_ns: int
    actor: int
    caller: str
    sent_by: int
    call: int
    endpoint: str
    arrived_ns: int
    ran_ns: int
    failed: bool


class Sent(NamedTuple):
    """A call that has been answered by all its ranks, or a message without an answer.

    `call` 0: no answer. `sent_by` is the uid of the sending actor; 0: none. `region` has the ranks
    of the proc mesh `procs` that were called.
    """

    ended_ns: int
    begun_ns: int
    call: int
    sent_by: int
    actors: int
    procs: int
    name: str
    region: Any
    endpoint: str
    failed: bool


class ActorEvent(NamedTuple):
    """A new state of an actor; `mesh` is the uid of its actor mesh.

    `point` are its coordinates as people see them, `labels` and `sizes` the dims of the mesh.
    """

    time_ns: int
    mesh: int
    rank: int
    name: str
    class_name: str
    status: str
    reason: str
    point: dict[str, int]
    labels: list[str]
    sizes: list[int]


class EndedSpan(NamedTuple):
    """A run of a span. `parent` 0: none."""

    ended_ns: int
    id: int
    parent: int
    name: str
    place: Any  # a actor.attribution.Attribution
    begun_ns: int
    thread: int
    thread_name: str
    failed: bool


class TorchEvent(NamedTuple):
    """An operation, a kernel or an annotation that torch's profiler has seen.

    `kind` is the name of the profiler's activity, `thread_name` the thread, or the stream of a
    device.
    """

    ended_ns: int
    begun_ns: int
    name: str
    kind: str
    device: str
    thread_name: str


class LogRecord(NamedTuple):
    """A record of Python's `logging`, with its text."""

    time_ns: int
    logger: str
    level: int
    text: str
    span: int
    thread: int
    thread_name: str
    module: str
    file: str
    line: int
    actor: str


class Ring(Generic[R]):
    """The last rows of one kind."""

    __slots__ = ("_outdated", "added", "expired", "rows")

    def __init__(self, most: int) -> None:
        self.rows: deque[Any] = deque(maxlen=most)  # rows, or plain tuples of their fields
        self.added = 0
        self.expired = 0
        self._outdated = 0  # dropped rows that are older than one that has expired

    def add(self, row: Any) -> None:
        """Add a row, a tuple of the ring's kind or a plain one. Any thread."""
        self.rows.append(row)
        self.added += 1

    @property
    def dropped(self) -> int:
        """The number of rows that made room for others before they expired."""
        return max(0, self.added - self.expired - len(self.rows))

    @property
    def lost(self) -> int:
        """The number of dropped rows that would not have expired since."""
        return self.dropped - self._outdated

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest row was added; None without rows. Any thread."""
        try:
            return self.rows[0][0]
        except IndexError:
            return None

    @property
    def nbytes(self) -> int:
        """The size of texts, if that is bounded."""
        return 0

    def expire(self, before_ns: int) -> None:
        """Drop rows that were added before that time."""
        rows = self.rows
        expired = 0
        while rows and rows[0][0] < before_ns:
            self._drop_first()
            expired += 1
        if expired:
            self.expired += expired
            self._outdated = self.dropped

    def resize(self, most: int) -> None:
        """Change the maximal number of rows; the last ones stay."""
        while len(self.rows) > most:
            self._drop_first()
        self.rows = deque(self.rows.copy(), maxlen=most)

    def _drop_first(self) -> None:
        try:
            self.rows.popleft()
        except IndexError:
            pass  # another thread has dropped it

    def all(self) -> list[R]:
        """All rows, oldest first. Any thread."""
        return list(self.rows.copy())


class TextRing(Ring[R]):
    """A ring whose rows also have texts of a bounded total size.

    That is `text_bytes` for each row that the ring may have: fewer long texts, or more short ones.
    """

    __slots__ = ("_sizes", "_text_bytes", "_total")

    def __init__(self, most: int, text_bytes: int = TEXT_BYTES) -> None:
        super().__init__(most)
        self._text_bytes = text_bytes
        self._sizes: deque[int] = deque()
        self._total = 0

    def add_text(self, row: R, nbytes: int) -> None:
        """Add a row with texts of that size. One thread at a time."""
        most = self.rows.maxlen or 0
        if len(self.rows) == most:
            self._drop_first()
        self._sizes.append(nbytes)
        self._total += nbytes
        self.add(row)
        while self._total > most * self._text_bytes and len(self.rows) > 1:
            self._drop_first()

    @property
    def nbytes(self) -> int:
        """The size of the texts."""
        return self._total

    def _drop_first(self) -> None:
        super()._drop_first()
        self._total -= self._sizes.popleft()


AnyRing: TypeAlias = "Ring[Any]"


class History:
    """The rows that a process remembers. A ring is None while it is switched off."""

    __slots__ = (
        "actors",
        "events",
        "handled",
        "new_span_id",
        "open_spans",
        "retention_ns",
        "sent",
        "spans",
        "torch_events",
        "torch_problem",
    )

    def __init__(self) -> None:
        self.retention_ns = 0
        self.actors: Ring[ActorEvent] = Ring(ACTOR_EVENTS)
        self.handled: Ring[Handled] | None = None
        self.sent: Ring[Sent] | None = None
        self.spans: Ring[EndedSpan] | None = None
        self.events: TextRing[LogRecord] | None = None
        self.torch_events: Ring[TorchEvent] | None = None
        self.torch_problem = ""  # why the last profile got no events of torch
        self.open_spans: dict[int, Any] = {}
        self.new_span_id: Callable[[], int] = UidSource(0)

    def switch_on(self, retention_ns: int, rows: int) -> None:
        """Keep rows for that long, and so many of each kind; rows that exist stay."""
        self.retention_ns = retention_ns
        if self.handled is None:
            self.new_span_id = UidSource()
            self.handled, self.sent, self.spans = Ring(rows), Ring(rows), Ring(rows)
            self.events = TextRing(rows)
            self.torch_events = Ring(rows * TORCH_EVENTS_PER_ROW)
        elif self.handled.rows.maxlen != rows:
            for ring in (self.handled, self.sent, self.spans, self.events):
                if ring is not None:
                    ring.resize(rows)
            if self.torch_events is not None:
                self.torch_events.resize(rows * TORCH_EVENTS_PER_ROW)

    def switch_off(self) -> None:
        """Forget everything but the events of actors."""
        self.retention_ns = 0
        self.handled = self.sent = self.spans = self.events = self.torch_events = None
        self.torch_problem = ""
        self.open_spans.clear()

    def clear(self) -> None:
        """Forget everything: a fork inherits the history of its parent."""
        self.switch_off()
        self.actors = Ring(ACTOR_EVENTS)

    def add_span(
        self, name: str, place: Any, begun_ns: int, ended_ns: int, track: str, *,
        failed: bool = False,
    ) -> None:  # fmt: skip
        """Add a span of the runtime that has ended, if spans are kept. Any thread.

        `track` names the group of such spans, in the place of a thread.
        """
        spans = self.spans
        if spans is not None:
            number = self.new_span_id()
            spans.add((ended_ns, number, 0, name, place, begun_ns, 0, track, failed))

    def rings(self) -> dict[str, AnyRing]:
        """The rings that are switched on, by the name of their table."""
        named: dict[str, AnyRing | None] = {
            "messages": self.handled, "sent_messages": self.sent, "spans": self.spans,
            "events": self.events, "torch_events": self.torch_events,
            "actor_status_events": self.actors,
        }  # fmt: skip
        return {name: ring for name, ring in named.items() if ring is not None}

    def expire(self, now_ns: int) -> None:
        """Drop rows that are older than the retention, except events of actors."""
        for ring in self.rings().values():
            if ring is not self.actors:
                ring.expire(now_ns - self.retention_ns)


HISTORY = History()
"""The history of this process. It exists before the runtime, and in a client across sessions."""
