"""`profile`: a trace of a session for Perfetto.

Runs in: a client or a rank, on the calling thread; or an observer, for `monarch profile`. While a
profile runs, processes keep history. The clocks of hosts are compared with that of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.errors import QueryError
from monarch._src.telemetry.history.record import (
    RETENTION_S,
    checked_order,
    order_from,
    order_here,
)
from monarch._src.telemetry.perfetto.state.clock_offset import ClockOffset, OffsetBounds
from monarch._src.telemetry.perfetto.state.summary import (
    ProfileLine,
    ProfileTable,
    summary,
    summary_table,
    summary_text,
)
from monarch._src.telemetry.perfetto.state.trace import TABLES, Tracks, trace, tracks_of
from monarch._src.telemetry.sql.collect import (
    STATE_S,
    Collected,
    MissingRows,
    Pending,
    collect_from,
    collect_here,
    host_of,
)
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.telemetry.sql.state.schema import TABLES as SCHEMA
from monarch._src.telemetry.sql.state.schema import column_names
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import ReadTable, SetHistory
from monarch._src.wire.table_codec import unpacked

ROWS = 16_384
"""The number of rows of each kind that a process keeps while a profile runs."""
LONGEST_S = 86_400.0
RECORDINGS, TORCH = "recordings", "torch_events"
DEFAULT_PATH = "monarch.perfetto"


class Profile:
    """A context manager that records a trace of its block. It can be used once.

    After the block, `print(profile)` shows where the time went.

    Attributes:
        missing: the rows that the trace lacks, because a host or a rank did not answer, or had more
            than it keeps.
        seconds: the length of the block.
        clocks: by how much the clock of each other host is ahead, as measured at the end.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        on_trace_ready: Callable[[Profile], object] | None = None,
        torch: bool = False,
        rows: int = ROWS,
        timeout: float | None = None,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._on_trace_ready = on_trace_ready
        self._torch = torch
        self._keep = checked_order(RETENTION_S, rows, LONGEST_S)
        self._end = checked_order(0.0, rows, -1.0)
        self._timeout = timeout
        self._begun_ns = 0
        self._tracks: list[Tracks] | None = None
        self.missing: tuple[MissingRows, ...] = ()
        self.clocks: dict[str, ClockOffset] = {}
        self.seconds = 0.0

    def __enter__(self) -> Profile:
        if self._begun_ns:
            raise RuntimeError("profile context cannot be reused; call profile() again")
        self._begun_ns = time.time_ns()
        run = runtime_or_none()
        if run is not None:
            order_here(run, _with_torch(self._keep, self._torch), self._timeout)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        ended_ns = time.time_ns()
        run = runtime_or_none()
        collected = Collected()
        if run is not None:
            if self._torch:
                order_here(run, self._keep, self._timeout)  # torch's profiler ends
            self.clocks = host_clocks(run, STATE_S if self._timeout is None else self._timeout)
            collected = collect_here(run, NEEDS, self._timeout)
            order_here(run, self._end, self._timeout)
        self.missing = (*collected.missing, *dropped_events(collected.tables))
        tables = rows_of(collected.tables)
        self._tracks = tracks_of(tables, self._begun_ns, ended_ns, self.clocks)
        self.seconds = (ended_ns - self._begun_ns) / 1e9
        if self._path is not None:
            self.export_perfetto_trace(self._path)
        if self._on_trace_ready is not None and kind is None:
            self._on_trace_ready(self)

    def export_perfetto_trace(self, output: str | Path | None = None) -> Path:
        """Write the trace, by default to `monarch.perfetto`; returns the path.

        Raises:
            RuntimeError: the block has not ended. OSError: the file cannot be written.
        """
        tracks = self._ended("export it")
        path = Path(DEFAULT_PATH if output is None else output)
        path.write_bytes(trace(tracks))
        return path

    def summary(self) -> list[ProfileLine]:
        """Where the time went: a line for each endpoint, call, span and operation of torch.

        Raises:
            RuntimeError: the block has not ended.
        """
        return summary(self._ended("look at it"))

    def table(self) -> ProfileTable:
        """The first lines of the summary of each kind, as words for people.

        Raises:
            RuntimeError: the block has not ended.
        """
        return summary_table(self.summary())

    @property
    def ended(self) -> bool:
        """Whether its block has ended."""
        return self._tracks is not None

    def __str__(self) -> str:
        """The summary as a table, and what the profile lacks; a notebook shows the same."""
        if self._tracks is None:
            return "profile that has not ended"
        missing = [f"missing rows of {one}" for one in self.missing]
        return "\n".join([summary_text(self.summary(), self.seconds), *missing])

    def _ended(self, what: str) -> list[Tracks]:
        if self._tracks is None:
            raise RuntimeError(f"the profile has not ended; {what} after its `with` block")
        return self._tracks


def profile(
    path: str | Path | None = None,
    *,
    on_trace_ready: Callable[[Profile], object] | None = None,
    torch: bool = False,
    rows: int = ROWS,
    timeout: float | None = None,
) -> Profile:
    """Record a trace of a block for https://ui.perfetto.dev: `with profile("run.perfetto"): ...`.

    It has the calls, the queues and endpoints of actors, the spans and the log records of all
    processes of this session. Processes keep history while the block runs. Times are those of this
    host's clock; those of other hosts are corrected, see `Profile.clocks`.

    Args:
        path: the file to write; None: none, see `Profile.export_perfetto_trace`.
        on_trace_ready: called with the profile after the block, unless it raised.
        torch: also record what torch's profiler sees, on all threads and devices of the processes
            that have imported torch before the block. It slows torch's operations.
        rows: the maximal number of rows of each kind in a process; the oldest are dropped. Of torch
            it is eight times as many.
        timeout: seconds to wait for processes; None: 2.

    Raises:
        ValueError: not 1 to 1,000,000 rows.
        RuntimeError: the profile is used a second time.
    """
    return Profile(
        path, on_trace_ready=on_trace_ready, torch=torch, rows=rows, timeout=timeout
    )  # fmt: skip


def profile_at(
    telemetry_url: str | None, *, on_trace_ready: Callable[[Profile], object] | None = None
) -> Profile:
    """The same with the signature of Monarch's `distributed_telemetry.profiler.profile`.

    Args:
        telemetry_url: that of the job of this program, as `JobState.telemetry_url` has it. The
            processes of the session answer themselves, so the server there is not asked.
        on_trace_ready: called with the profile after the block, unless it raised.

    Raises:
        TypeError: `telemetry_url` is no text.
    """
    if not isinstance(telemetry_url, str) and telemetry_url is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"telemetry_url is text, not {telemetry_url!r}; see JobState.telemetry_url")
    return profile(on_trace_ready=on_trace_ready)


NEEDS: Mapping[str, Need] = {
    name: Need(("session", "host", *column_names(SCHEMA[name].sent)))
    for name in (*TABLES, RECORDINGS)
}


def _with_torch(order: SetHistory, torch: bool) -> SetHistory:
    return msgspec.structs.replace(order, torch=torch)


def dropped_events(tables: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[MissingRows]:
    """The events of torch that processes had no room for."""
    return [
        MissingRows(TORCH, f"{row['mesh']}[{row['rank']}] on {row['host']}",
                    f"{row['dropped']} events were dropped; record a shorter time, or set rows=")
        for row in rows_of(tables).get(RECORDINGS, ())
        if row["name"] == TORCH and row["dropped"]
    ]  # fmt: skip


def rows_of(tables: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Columns as rows."""
    return {
        name: [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for name, columns in tables.items()
    }


def profile_sessions(
    sessions: Sequence[tuple[str, Path]],
    wait: Callable[[], object],
    for_s: float,
    timeout_s: float | None,
    torch: bool = False,
) -> tuple[bytes, str, list[MissingRows]]:
    """The trace of sessions of this machine while `wait` runs, at most `for_s` seconds.

    Returns the trace, the summary as a table, and the rows that are missing.

    Raises:
        QueryError: no session has answered.
    """
    seconds = STATE_S if timeout_s is None else timeout_s
    begun_ns = time.time_ns()
    order = checked_order(RETENTION_S, ROWS, for_s + 10 * (seconds + 1))
    unreached = order_from(sessions, _with_torch(order, torch), timeout_s).missing
    if sessions and len(unreached) >= len(sessions):
        raise QueryError("; ".join(map(str, unreached)))
    try:
        wait()
        ended_ns = time.time_ns()
        if torch:
            order_from(sessions, order, timeout_s)  # torch's profiler ends
        collected = collect_from(sessions, NEEDS, timeout_s)
    finally:
        order_from(sessions, checked_order(0.0, ROWS, -1.0), timeout_s)
    missing = [*collected.missing, *dropped_events(collected.tables)]
    tracks = tracks_of(rows_of(collected.tables), begun_ns, ended_ns)
    return trace(tracks), summary_text(summary(tracks), (ended_ns - begun_ns) / 1e9), missing


READINGS = 8
"""More readings hardly narrow the bounds: the fastest of them counts."""
TABLE, COLUMN = "hosts", "timestamp_us"  # answered by the host agent itself, at once


class _Reading(Pending):
    """The answer of one agent, with the times at which it was asked for and came."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent, TABLE)
        self.asked_ns = time.time_ns()
        self.answered_ns = 0

    def settle(self, decode: Callable[[], Any]) -> None:
        self.answered_ns = time.time_ns()
        super().settle(decode)


def host_clocks(run: Runtime, timeout_s: float) -> dict[str, ClockOffset]:
    """The offset of each other host that answers in time; those that do not are left out."""
    deadline = time.monotonic() + timeout_s
    agents = [agent for agent in run.agent.agents if agent != AGENT]
    bounds = {agent: OffsetBounds() for agent in agents}
    for _ in range(READINGS):
        _read(run, bounds, deadline)
    offsets = {agent: bounds[agent].offset() for agent in agents}
    return {host_of(run, agent): found for agent, found in offsets.items() if found is not None}


def _read(run: Runtime, bounds: dict[str, OffsetBounds], deadline: float) -> None:
    """One reading of each host, all at the same time."""
    question = ReadTable(0, TABLE, [COLUMN], [], 1, max(0.0, deadline - time.monotonic()))
    readings: list[_Reading] = []
    for agent in bounds:
        one = _Reading(agent)
        one.drop = run.agent.read_table(agent, question, one)
        readings.append(one)
    for one in readings:
        run.node.wait(one, max(0.0, deadline - time.monotonic()))
        one.drop()
        if one.answer is not None and one.answer.count == 1:
            ((read_us,),) = unpacked(one.answer.columns, 1, 1)
            bounds[one.agent].add(one.asked_ns, int(read_us or 0), one.answered_ns)
