"""Records the calls of this process while a reader asks for them.

Runs in: a proc, loaded with the first request. `read` runs on the receiving thread; calls end on
the threads of their actors.
Owns: the log, and the place of the status slot in the runtime while it records.
Invariants: without a reader a call runs the slot's own methods, as in a process that was never
asked. Recording ends with the first call that ends `KEEP_S` seconds after the last request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from monarch._src.host.status_board import Running, Slot
from monarch._src.observe.timeline.state.call_log import CallLog
from monarch._src.wire.messages import OK, ReadCalls, Reply
from monarch._src.wire.process_codec import CallsRecorded, packed_calls

if TYPE_CHECKING:
    from mmap import mmap

    from monarch._src.actor.runtime import Runtime

KEEP_S = 60.0


class HasSlot(Protocol):
    """The used part of a runtime."""

    slot: Slot


class RecordingSlot(Slot):
    """Stands in for a slot, which does the work, and logs the calls that end."""

    def __init__(self, slot: Slot, log: CallLog, on_end: Callable[[], None]) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.replaced = slot
        self._log = log
        self._on_end = on_end

    def forked(self) -> None:
        self.replaced.forked()

    def reads(self) -> tuple[mmap, int] | None:
        return self.replaced.reads()

    def idle(self) -> None:
        self.replaced.idle()

    def begin(self, actor: bytes, endpoint: bytes, messages: int = 1) -> Running:
        return self.replaced.begin(actor, endpoint, messages)

    def end(self, running: Running) -> int:
        took = self.replaced.end(running)
        self._log.add(running, took)
        self._on_end()
        return took

    def under_way(self) -> list[Running]:
        return self.replaced.under_way()

    def failed(self) -> None:
        self.replaced.failed()
        self._log.mark_failed()

    def leave(self) -> None:
        self.replaced.leave()


class CallRecorder:
    """Records the calls that run on the slot of one process."""

    def __init__(self, run: HasSlot, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._run = run
        self._clock = clock
        self._log: CallLog | None = None
        self._asked_at = 0

    @property
    def is_recording(self) -> bool:
        """Whether calls are recorded."""
        return self._log is not None

    def read(self, after_ns: int, most: int) -> CallsRecorded:
        """The calls that ended after that time, in nanoseconds since 1970; begins to record."""
        now = self._asked_at = self._clock()
        offset = time.time_ns() - now
        log = self._log
        if log is None:
            log = self._log = CallLog()
            self._run.slot = RecordingSlot(self._run.slot, log, self._on_end)
        return log.read(self._run.slot.under_way(), after_ns - offset, most, offset)

    def _on_end(self) -> None:
        if self._clock() - self._asked_at > KEEP_S * 1e9:
            self.stop()

    def stop(self) -> None:
        """End the recording, and forget its calls. Idempotent."""
        slot = self._run.slot
        if isinstance(slot, RecordingSlot):
            self._run.slot = slot.replaced
        self._log = None


_recorder: CallRecorder | None = None


def read_calls(run: Runtime, peer: str, message: ReadCalls) -> None:
    """Answer a request for the calls of this process."""
    global _recorder
    if _recorder is None:
        _recorder = CallRecorder(run)
    recorded = _recorder.read(message.after_ns, message.most)
    run.node.send(peer, Reply(message.call, message.rank, OK), packed_calls(recorded))
