"""The one thread that tells browsers what meshes do, and what values are.

Runs in: the kernel. `connect`, `disconnect`, `sync` and `wake` may be called from any thread, comm
handlers included: they note what is wanted and return. Everything else, polling and sending
included, happens on the publisher's own thread.
Owns: that thread, from the first connect until `close`.
Invariants: of each stream, it polls only while somebody is connected; between two messages of one
sink lie at least `INTERVAL` seconds; nothing is sent when nothing changed, but for a few snapshots
to a sink whose page has not been heard yet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from monarch_jupyter.protocol.messages import Debugged, MeshTable, StreamMessage

if TYPE_CHECKING:
    from monarch.observe import MeshSnapshot

logger = logging.getLogger("monarch.jupyter.publisher")

INTERVAL = 0.1  # seconds between two looks at a mesh at work: ten updates a second at most
SLOWEST = 1.0  # seconds between two looks while nothing happens
FIRST_REPEAT = 0.3  # seconds until an unheard page is sent another snapshot, then twice as long...
REPEATS = 6  # ... so many times

Sink = Callable[[StreamMessage], None]


class Pace:
    """How long to wait until the next look: short while things happen, longer while not."""

    def __init__(self) -> None:
        self._delay = INTERVAL

    def next_delay(self, changed: bool) -> float:
        """Seconds to wait after a look that did or did not find a change."""
        self._delay = INTERVAL if changed else min(SLOWEST, self._delay * 1.25)
        return self._delay

    def reset(self) -> None:
        """Something is about to happen: a cell starts or has ended."""
        self._delay = INTERVAL


class Stream(Protocol):
    """What sinks are told of. Both are called on the publisher's thread only."""

    def delta(self) -> StreamMessage | None:
        """Look; the message that takes readers of the ones before it to what is there now."""
        ...

    def snapshot(self) -> StreamMessage:
        """All that was there at the last look, under the number of the last message."""
        ...


class MeshStream:
    """All meshes of this kernel."""

    def __init__(
        self, read_meshes: Callable[[], Sequence[MeshSnapshot]], debugged: Callable[[], Debugged]
    ) -> None:
        self._read_meshes = read_meshes
        self._debugged = debugged
        self._table = MeshTable()

    def delta(self) -> StreamMessage | None:
        return self._table.update(self._read_meshes(), self._debugged())

    def snapshot(self) -> StreamMessage:
        return self._table.snapshot()


class Publisher:
    """Looks at streams and sends each sink a snapshot first, then what changed."""

    def __init__(
        self,
        read_meshes: Callable[[], Sequence[MeshSnapshot]],
        clock: Callable[[], float] = time.monotonic,
        debugged: Callable[[], Debugged] = dict,
    ) -> None:
        self._meshes = MeshStream(read_meshes, debugged)
        self._clock = clock
        self._pace = Pace()
        # Guarded by _wanted: all and only the sinks connected, each with its stream; those of them
        # that lack a snapshot; and those whose page has not been heard, with when to send the next
        # one and how many more.
        self._condition = threading.Condition()
        self._sinks: dict[Sink, Stream] = {}
        self._needs_snapshot: list[Sink] = []
        self._unconfirmed: dict[Sink, tuple[float, int]] = {}
        self._closed = False
        self._wake_requested = False
        self._failing = False  # the last look failed
        self._thread: threading.Thread | None = None

    def connect(self, sink: Sink, stream: Stream | None = None, *, repeat: bool = False) -> None:
        """Send `sink` a snapshot and from then on what changes, until it is disconnected.

        Of all meshes, or of another `stream`. What is sent while a page still loads is lost, and a
        page's question may wait behind a cell that runs. So with `repeat` the snapshot is sent a
        few more times until the first `sync`.
        """
        with self._condition:
            if self._closed:
                return
            if repeat:
                self._unconfirmed[sink] = (self._clock() + FIRST_REPEAT, REPEATS)
            self._sinks.setdefault(sink, self._meshes if stream is None else stream)
            self._ask_snapshot(sink)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="monarch-publisher", daemon=True
                )
                self._thread.start()

    def sync(self, sink: Sink, stream: Stream | None = None) -> None:
        """Send `sink` a snapshot, because its page asks; connects it if it isn't."""
        with self._condition:
            self._unconfirmed.pop(sink, None)
        self.connect(sink, stream)

    def disconnect(self, sink: Sink) -> None:
        """Send `sink` nothing more; one that isn't connected is no error."""
        with self._condition:
            self._sinks.pop(sink, None)
            self._needs_snapshot = [other for other in self._needs_snapshot if other != sink]
            self._unconfirmed.pop(sink, None)

    def wake(self) -> None:
        """Look soon: something is about to change."""
        with self._condition:
            self._wake_requested = True
            self._pace.reset()
            self._condition.notify()

    def close(self) -> None:
        """End the thread and wait for it. Idempotent."""
        with self._condition:
            self._closed = True
            self._sinks, self._needs_snapshot = {}, []
            self._condition.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def publish(self) -> bool:
        """Look once and send what follows from it; returns whether anything had changed."""
        with self._condition:
            self._queue_repeats()
            needs_snapshot, sinks = list(self._needs_snapshot), dict(self._sinks)
        changed = False
        streams = {id(stream): stream for stream in (sinks.values() or (self._meshes,))}
        for stream in streams.values():
            try:
                message = stream.delta()
            except Exception as error:
                # Its agent is slow, say; the next look may find it well again.
                if not self._failing:
                    logger.warning("views stand still: the meshes can't be seen: %r", error)
                    logger.debug("where the look failed", exc_info=True)
                self._failing = True
                continue
            self._failing = False
            changed = changed or message is not None
            for sink in [sink for sink, its in sinks.items() if its is stream]:
                if sink in needs_snapshot:
                    self._send(sink, stream.snapshot(), caught_up=True)
                elif message is not None:
                    self._send(sink, message)
        return changed

    def _queue_repeats(self) -> None:
        now = self._clock()
        for sink, (due, left) in list(self._unconfirmed.items()):
            if now < due:
                continue
            if sink not in self._needs_snapshot:
                self._needs_snapshot.append(sink)
            if left == 1:
                del self._unconfirmed[sink]
            else:
                again = FIRST_REPEAT * 2 ** (REPEATS - left + 1)
                self._unconfirmed[sink] = (now + again, left - 1)

    def _ask_snapshot(self, sink: Sink) -> None:
        if sink not in self._needs_snapshot:
            self._needs_snapshot.append(sink)
        self._wake_requested = True
        self._condition.notify()

    def _send(self, sink: Sink, message: StreamMessage, *, caught_up: bool = False) -> None:
        with self._condition:
            if sink not in self._sinks:
                return  # It left while we looked.
            if caught_up:
                self._needs_snapshot = [other for other in self._needs_snapshot if other != sink]
        try:
            sink(message)
        except Exception:
            # A page that went away must not take the others' updates with it.
            logger.warning("a mesh view was disconnected, because sending failed", exc_info=True)
            self.disconnect(sink)

    def _run(self) -> None:
        delay = 0.0
        while True:
            with self._condition:
                # The pause that keeps the rate, then the longer one that only news cuts short.
                self._condition.wait_for(lambda: self._closed, timeout=min(delay, INTERVAL))
                self._condition.wait_for(
                    lambda: self._closed or (self._wake_requested and bool(self._sinks)),
                    timeout=max(0.0, delay - INTERVAL) if self._sinks else None,
                )
                if self._closed:
                    return
                self._wake_requested = False
            delay = self._pace.next_delay(self.publish())
