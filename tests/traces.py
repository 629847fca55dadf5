"""Reads a Perfetto trace with Perfetto's own classes, and checks that it holds together."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass
class TraceSlice:
    """A slice, with the names of its process and track."""

    process: str
    track: str
    name: str
    begin_ns: int
    end_ns: int = 0
    flows: tuple[int, ...] = ()
    last_flows: tuple[int, ...] = ()


@dataclass
class Trace:
    """What a trace has. `instants`: process, track, name and time."""

    all_slices: list[TraceSlice] = field(default_factory=list[TraceSlice])
    instants: list[tuple[str, str, str, int]] = field(
        default_factory=list[tuple[str, str, str, int]]
    )

    @property
    def of_the_program(self) -> list[TraceSlice]:
        """All but runs of the garbage collector, which may come at any time."""
        return [one for one in self.all_slices if one.track != "spans of garbage collector"]

    def slices(self, process: str, track: str) -> list[TraceSlice]:
        """Those of one track, or of several of the same name."""
        return [one for one in self.all_slices if (one.process, one.track) == (process, track)]


def read(data: bytes) -> Trace:
    """Read a trace; AssertionError if its tracks are not declared or its slices do not match."""
    pb: Any = import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    parsed = pb.Trace.FromString(data)
    parsed.DiscardUnknownFields()
    assert parsed.ByteSize() == len(data), "it has a field that Perfetto does not know"
    processes: dict[int, str] = {}
    tracks: dict[int, tuple[str, str]] = {}
    pids: set[int] = set()
    found = Trace()
    opened: dict[int, list[TraceSlice]] = {}
    last: dict[int, int] = {}
    sequences = {packet.trusted_packet_sequence_id for packet in parsed.packet}
    assert sequences == {1}
    for packet in parsed.packet:
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            assert described.uuid not in processes | tracks, "a track is declared twice"
            if described.HasField("process"):
                assert described.process.pid not in pids
                pids.add(described.process.pid)
                processes[described.uuid] = described.process.process_name
            else:
                tracks[described.uuid] = (processes[described.parent_uuid], described.name)
        elif packet.HasField("track_event"):
            event, uuid = packet.track_event, packet.track_event.track_uuid
            process, track = tracks[uuid]
            assert packet.timestamp >= last.get(uuid, 0), "a track goes back in time"
            last[uuid] = packet.timestamp
            stack = opened.setdefault(uuid, [])
            if event.type == event.TYPE_SLICE_BEGIN:
                one = TraceSlice(
                    process, track, event.name, packet.timestamp, flows=tuple(event.flow_ids),
                    last_flows=tuple(event.terminating_flow_ids),
                )  # fmt: skip
                stack.append(one)
                found.all_slices.append(one)
            elif event.type == event.TYPE_SLICE_END:
                stack.pop().end_ns = packet.timestamp
            else:
                found.instants.append((process, track, event.name, packet.timestamp))
    assert not any(opened.values()), "a slice has no end"
    return found
