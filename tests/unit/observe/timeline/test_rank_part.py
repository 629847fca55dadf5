"""Recording begins with a reader, ends without one, and is not there in between."""

from __future__ import annotations

from monarch._src.host.status_board import Slot
from monarch._src.observe.timeline.rank_part import KEEP_S, CallRecorder
from monarch._src.wire.process_codec import CallsRecorded, packed_calls, unpacked_calls


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Process:
    """The part of a runtime that has the slot."""

    def __init__(self) -> None:
        self.slot = Slot(None, 0)

    def call(self, endpoint: bytes) -> None:
        self.slot.end(self.slot.begin(b"Trainer", endpoint))


def test_a_call_runs_the_slots_own_methods_until_a_reader_asks() -> None:
    process = Process()
    slot, recorder = process.slot, CallRecorder(process)
    process.call(b"before")
    assert process.slot is slot
    assert recorder.read(0, 10).calls == ()
    process.call(b"step")
    process.slot.failed()
    running = process.slot.begin(b"Trainer", b"save")
    read: CallsRecorded = recorder.read(0, 10)
    assert read.names == (("Trainer", "step"), ("Trainer", "save"))
    assert [(one.failed, one.took_ns is None) for one in read.calls] == [
        (True, False),
        (False, True),
    ]
    process.slot.end(running)
    recorder.stop()
    recorder.stop()
    assert process.slot is slot


def test_a_call_that_runs_when_recording_begins_is_recorded_when_it_ends() -> None:
    process = Process()
    running = process.slot.begin(b"Trainer", b"step")
    recorder = CallRecorder(process)
    (before,) = recorder.read(0, 10).calls
    process.slot.end(running)
    (after,) = recorder.read(0, 10).calls
    assert (before.took_ns, after.took_ns is None) == (None, False)
    assert process.slot.under_way() == []


def test_recording_ends_with_the_first_call_long_after_the_last_request() -> None:
    process, clock = Process(), Clock()
    slot, recorder = process.slot, CallRecorder(process, clock)
    recorder.read(0, 10)
    clock.now += int(KEEP_S * 1e9)
    process.call(b"step")
    assert recorder.is_recording
    clock.now += 1
    process.call(b"step")
    assert not recorder.is_recording
    assert process.slot is slot
    assert recorder.read(0, 10).calls == ()


def test_recorded_calls_travel() -> None:
    process = Process()
    recorder = CallRecorder(process)
    recorder.read(0, 10)
    process.call(b"step")
    read = recorder.read(0, 10)
    assert unpacked_calls(packed_calls(read)) == read
