"""A trace made of the rows of a query: which tracks and slices it has. No I/O, no clock.

Each process has a track, with tracks below it: its calls, the queues and endpoints of its actors,
its spans by thread, its log records. Perfetto requires that slices of one track nest; slices that
overlap otherwise, as those of concurrent endpoints, go to further tracks of the same name. An arrow
leads from a call to each endpoint that it runs.

Times are those of the clock of the process that asks; times of hosts whose clocks differ are
corrected by the offsets that it has measured. Slices outside the time of the trace are left out,
others are cut to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from monarch._src.telemetry.perfetto.state import packets
from monarch._src.telemetry.perfetto.state.clock_offset import ClockOffset
from monarch._src.telemetry.perfetto.state.packets import Value

RowDict: TypeAlias = "Mapping[str, Any]"
TABLES = ("messages", "sent_messages", "spans", "events", "torch_events")
"""The tables that a trace is made of; their rows have `session`, `host`, `mesh_id`, `rank` too."""
CLIENT = "client"
CLOCK = "clock"
"""The track that says by how much the times of a process were corrected."""
_NS_PER_US = 1000
_NS_PER_S = 1_000_000_000


class Process(NamedTuple):
    """The process of a row."""

    session: str
    host: str
    mesh_id: int
    rank: int


class Slice(NamedTuple):
    """Something that took time, in nanoseconds since the epoch."""

    begin_ns: int
    end_ns: int
    name: str
    category: str
    values: dict[str, Value]
    flows: tuple[int, ...] = ()
    last_flows: tuple[int, ...] = ()


class Instant(NamedTuple):
    """Something that happened at a time."""

    time_ns: int
    name: str
    category: str
    values: dict[str, Value]


@dataclass
class Tracks:
    """The slices of one process, by the name of their track, in the order of the tracks.

    `ahead_ns`: how far the clock of its host is ahead; times are corrected by it.
    """

    process: Process
    mesh: str
    ahead_ns: int = 0
    slices: dict[str, list[Slice]] = field(default_factory=dict[str, "list[Slice]"])
    instants: dict[str, list[Instant]] = field(default_factory=dict[str, "list[Instant]"])

    @property
    def name(self) -> str:
        """`workers[1]`, or `client`."""
        return self.mesh if self.mesh == CLIENT else f"{self.mesh}[{self.process.rank}]"

    def add(self, track: str, one: Slice, begin_ns: int, end_ns: int) -> None:
        """Add a slice, cut to that time; not one that lies outside it."""
        one = one._replace(begin_ns=one.begin_ns - self.ahead_ns, end_ns=one.end_ns - self.ahead_ns)
        if one.end_ns >= begin_ns and one.begin_ns <= end_ns:
            cut = one._replace(begin_ns=max(one.begin_ns, begin_ns), end_ns=min(one.end_ns, end_ns))
            self.slices.setdefault(track, []).append(cut)


def lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices of one kind on as few tracks as a simple rule finds, so that those of a track nest."""
    found: list[list[Slice]] = []
    ends: list[list[int]] = []  # of the slices that are open on each track, the outermost first
    for one in sorted(slices, key=lambda one: (one.begin_ns, -one.end_ns)):
        place = next((at for at, opened in enumerate(ends) if _nests(one, opened)), len(found))
        if place == len(found):
            found.append([])
            ends.append([])
        found[place].append(one)
        ends[place].append(one.end_ns)
    return found


def _nests(one: Slice, opened: list[int]) -> bool:
    """Whether a slice fits on a track with slices that are open until then."""
    while opened and opened[-1] <= one.begin_ns:
        opened.pop()
    return not opened or opened[-1] >= one.end_ns


def tracks_of(
    tables: Mapping[str, Sequence[RowDict]],
    begin_ns: int,
    end_ns: int,
    clocks: Mapping[str, ClockOffset] = MappingProxyType({}),
) -> list[Tracks]:
    """The tracks of each process in that time, from rows of `TABLES`; those of the client first.

    `clocks`: the offsets of other hosts.
    """
    processes: dict[Process, Tracks] = {}

    def of(row: RowDict) -> Tracks:
        key = Process(row["session"], row["host"], row["mesh_id"], row["rank"])
        if key not in processes:
            processes[key] = found = Tracks(key, row["mesh"])
            offset = clocks.get(key.host)
            if offset is not None and offset.correction_ns:
                found.ahead_ns = offset.correction_ns
                said = Instant(begin_ns, f"corrected: was {offset}", CLOCK, {})
                found.instants[CLOCK] = [said]
        return processes[key]

    for row in tables.get("sent_messages", ()):
        found = of(row)
        found.add("calls", _sent(row, end_ns + found.ahead_ns), begin_ns, end_ns)
    for row in tables.get("messages", ()):
        found = of(row)
        for track, one in _handled(row, end_ns + found.ahead_ns):
            found.add(track, one, begin_ns, end_ns)
    for row in tables.get("spans", ()):
        found, track = of(row), f"spans of {row['thread_name']}"
        found.add(track, _span(row, end_ns + found.ahead_ns), begin_ns, end_ns)
    for row in tables.get("torch_events", ()):
        of(row).add(_torch_track(row), _torch_event(row), begin_ns, end_ns)
    for row in tables.get("events", ()):
        found, one = of(row), _log_record(row)
        one = one._replace(time_ns=one.time_ns - found.ahead_ns)
        if begin_ns <= one.time_ns <= end_ns:
            found.instants.setdefault("log records", []).append(one)
    return sorted(processes.values(), key=lambda one: (one.mesh != CLIENT, one.process))


def trace(processes: Iterable[Tracks]) -> bytes:
    """The trace with these tracks."""
    return b"".join([packets.start(), *_encoded(processes)])


def _encoded(processes: Iterable[Tracks]) -> Iterable[bytes]:
    uuids = itertools.count(1)
    for pid, tracks in enumerate(processes, 1):
        process = next(uuids)
        yield packets.process_track(process, pid, f"{tracks.name} on {tracks.process.host}")
        for name, slices in sorted(tracks.slices.items()):
            for lane in lanes(slices):
                uuid = next(uuids)
                yield packets.track(uuid, process, name)
                yield from _lane(uuid, lane)
        for name, instants in sorted(tracks.instants.items()):
            uuid = next(uuids)
            yield packets.track(uuid, process, name)
            for one in sorted(instants, key=lambda one: one.time_ns):
                yield packets.instant(one.time_ns, uuid, one.name, one.category, one.values)


def _lane(uuid: int, lane: Sequence[Slice]) -> Iterable[bytes]:
    """Begins and ends in the order of time; an end before a begin of the same time."""
    opened: list[int] = []
    for one in lane:
        while opened and opened[-1] <= one.begin_ns:
            yield packets.slice_end(opened.pop(), uuid)
        yield packets.slice_begin(
            one.begin_ns, uuid, one.name, one.category, one.values, one.flows, one.last_flows
        )
        opened.append(one.end_ns)
    while opened:
        yield packets.slice_end(opened.pop(), uuid)


# --- slices of rows -------------------------------------------------------------------------------


def _flow(actor_id: int | None, call: int | None) -> tuple[int, ...]:
    """The number of the arrow from a call to the endpoints that it runs."""
    if actor_id is None or call is None:
        return ()
    return ((actor_id ^ call * 0x9E3779B97F4A7C15) & ((1 << 64) - 1),)


def _sent(row: RowDict, end_ns: int) -> Slice:
    begin_ns = row["timestamp_us"] * _NS_PER_US
    ended = row["ended_us"]
    values: dict[str, Value] = {
        "ranks": row["ranks"], "failed": bool(row["failed"]), "answered": ended is not None,
    }  # fmt: skip
    return Slice(
        begin_ns, end_ns if ended is None else ended * _NS_PER_US,
        f"{row['actor']}.{row['endpoint']}", "call", values,
        flows=_flow(row["sender_actor_id"], row["call"]),
    )  # fmt: skip


def _handled(row: RowDict, end_ns: int) -> Iterable[tuple[str, Slice]]:
    """The time of a message in the queue, and that of its endpoint."""
    arrived_ns = row["timestamp_us"] * _NS_PER_US
    name, actor = f"{row['actor']}.{row['endpoint']}", row["actor"]
    waited, ran = row["waited_s"], row["ran_s"]
    begun_ns = end_ns if waited is None else arrived_ns + int(waited * _NS_PER_S)
    flow = _flow(row["from_actor_id"], row["call"])
    if begun_ns > arrived_ns:
        yield f"queue of {actor}", Slice(arrived_ns, begun_ns, name, "queue", {})
    if waited is None:
        return
    ended_ns = end_ns if ran is None else begun_ns + int(ran * _NS_PER_S)
    values: dict[str, Value] = {"status": row["status"], "sender": row["sender"] or ""}
    yield (
        f"endpoints of {actor}",
        Slice(begun_ns, max(begun_ns, ended_ns), name, "endpoint", values, last_flows=flow),
    )


def _span(row: RowDict, end_ns: int) -> Slice:
    begin_ns, took = row["timestamp_us"] * _NS_PER_US, row["duration_us"]
    values: dict[str, Value] = {"failed": bool(row["failed"]), "endpoint": row["endpoint"] or ""}
    ended_ns = max(begin_ns, end_ns) if took is None else begin_ns + took * _NS_PER_US
    return Slice(begin_ns, ended_ns, row["name"], "span", values)


def _torch_track(row: RowDict) -> str:
    if row["device"] == "cpu":
        return f"torch on {row['thread_name']}"
    return f"torch on {row['device']}, {row['thread_name']}"


def _torch_event(row: RowDict) -> Slice:
    begin_ns, values = row["begin_ns"], {"kind": row["kind"]}
    return Slice(begin_ns, begin_ns + row["duration_ns"], row["name"], "torch", values)


def _log_record(row: RowDict) -> Instant:
    text: str = row["text"]
    return Instant(
        row["timestamp_us"] * _NS_PER_US, text.partition("\n")[0][:80], "log",
        {"level": row["level"], "logger": row["target"], "text": text},
    )  # fmt: skip
