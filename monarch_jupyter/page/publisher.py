"""The thread that sends the state of meshes and values to pages.

Runs in: the kernel. `connect`, `disconnect`, `sync` and `wake` may be called from any thread, comm
handlers included: they record the request and return. The publisher's own thread polls and sends.
Owns: that thread, from the first connect until `close`.
Invariants: the publisher polls a stream only while it has a sink; it sends a sink at most one
message in `INTERVAL` seconds, and only changes, except for repeated snapshots to a sink whose page
has not answered yet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from monarch_jupyter.page.usage import UsageRecorder
from monarch_jupyter.protocol.messages import Debugged, MeshTable, StreamMessage

if TYPE_CHECKING:
    from monarch.observe import MeshSnapshot

logger = logging.getLogger("monarch.jupyter.publisher")

INTERVAL = 0.1  # seconds between two polls while meshes change: ten updates a second at most
SLOWEST = 1.0  # seconds between two polls while nothing changes
FIRST_REPEAT = 0.3  # seconds until a silent page is sent another snapshot, then twice as long...
REPEATS = 6  # ... so many times

Sink = Callable[[StreamMessage], None]


class Pace:
    """The delay until the next poll: short while meshes change, longer otherwise."""

    def __init__(self) -> None:
        self._delay = INTERVAL

    def next_delay(self, changed: bool) -> float:
        """Seconds to wait after a poll that did or did not find a change."""
        self._delay = INTERVAL if changed else min(SLOWEST, self._delay * 1.25)
        return self._delay

    def reset(self) -> None:
        """Return to the shortest delay: a cell starts or has ended."""
        self._delay = INTERVAL


class Stream(Protocol):
    """A source of messages for sinks. Only the publisher's thread calls it."""

    def delta(self) -> StreamMessage | None:
        """Poll, and return the message that brings readers up to date; None if nothing changed."""
        ...

    def snapshot(self) -> StreamMessage:
        """Everything as of the last poll, under the number of the last message."""
        ...


class MeshStream:
    """All meshes of this kernel."""

    def __init__(
        self,
        read_meshes: Callable[[], Sequence[MeshSnapshot]],
        debugged: Callable[[], Debugged],
        usage: UsageRecorder,
    ) -> None:
        self._read_meshes = read_meshes
        self._debugged = debugged
        self._usage = usage
        self._table = MeshTable()

    def delta(self) -> StreamMessage | None:
        meshes = self._read_meshes()
        self._usage.take(meshes)
        return self._table.update(meshes, self._debugged())

    def snapshot(self) -> StreamMessage:
        return self._table.snapshot()


class Publisher:
    """Polls streams and sends each sink a snapshot first, then changes."""

    def __init__(
        self,
        read_meshes: Callable[[], Sequence[MeshSnapshot]],
        clock: Callable[[], float] = time.monotonic,
        debugged: Callable[[], Debugged] = dict,
        usage: UsageRecorder | None = None,
    ) -> None:
        """`usage` takes the figures of each poll."""
        self._meshes = MeshStream(read_meshes, debugged, usage or UsageRecorder(clock))
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
        self._failing = False  # the last poll failed
        self._thread: threading.Thread | None = None

    def connect(self, sink: Sink, stream: Stream | None = None, *, repeat: bool = False) -> None:
        """Send `sink` a snapshot and then every change, until it is disconnected.

        `stream` is all meshes by default. A page that still loads loses messages, and its request
        for a snapshot may wait behind a running cell. So with `repeat` the publisher sends the
        snapshot a few more times until the first `sync`.
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
        """Send `sink` nothing more. A sink that is not connected is ignored."""
        with self._condition:
            self._sinks.pop(sink, None)
            self._needs_snapshot = [other for other in self._needs_snapshot if other != sink]
            self._unconfirmed.pop(sink, None)

    def wake(self) -> None:
        """Poll soon, since a change is likely."""
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
        """Poll once and send the resulting messages; return whether anything had changed."""
        with self._condition:
            self._queue_repeats()
            needs_snapshot, sinks = list(self._needs_snapshot), dict(self._sinks)
        changed = False
        streams = {id(stream): stream for stream in (sinks.values() or (self._meshes,))}
        for stream in streams.values():
            try:
                message = stream.delta()
            except Exception as error:
                # The host agent may be slow; the next poll may succeed.
                if not self._failing:
                    logger.warning(
                        "views are not updated, because polling the meshes failed: %r", error
                    )
                    logger.debug("the poll that failed", exc_info=True)
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
                return  # disconnected during the poll
            if caught_up:
                self._needs_snapshot = [other for other in self._needs_snapshot if other != sink]
        try:
            sink(message)
        except Exception:
            # One closed page must not stop the updates of the others.
            logger.warning("a mesh view was disconnected, because sending failed", exc_info=True)
            self.disconnect(sink)

    def _run(self) -> None:
        delay = 0.0
        while True:
            with self._condition:
                # First the pause that bounds the rate, then the rest of the delay, which a request
                # ends.
                self._condition.wait_for(lambda: self._closed, timeout=min(delay, INTERVAL))
                self._condition.wait_for(
                    lambda: self._closed or (self._wake_requested and bool(self._sinks)),
                    timeout=max(0.0, delay - INTERVAL) if self._sinks else None,
                )
                if self._closed:
                    return
                self._wake_requested = False
            delay = self._pace.next_delay(self.publish())
