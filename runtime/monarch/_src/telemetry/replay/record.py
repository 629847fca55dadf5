"""`record_to`: keep the tables of this session over time, in a file.

Runs in: a client, on a thread of its own; or an observer, for `monarch query --record`.
Owns: the file, until `stop`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from monarch._src.actor.runtime import runtime_or_none
from monarch._src.actor.state.history import MOST_ROWS
from monarch._src.telemetry.history.record import (
    RETENTION_S,
    checked_order,
    order_from,
    order_here,
)
from monarch._src.telemetry.replay.file import RecordingFile
from monarch._src.telemetry.replay.state.layout import needs
from monarch._src.telemetry.sql.collect import Collected, collect_from, collect_here
from monarch._src.telemetry.sql.state.pushdown import Need

INTERVAL_S = 2.0
MOST_FILE_ROWS = 2_000_000
_LEASE_S = 60.0
Collect: TypeAlias = "Callable[[Mapping[str, Need]], Collected]"


class Recording:
    """A recording that runs until `stop`, or the end of its `with` block.

    Attributes:
        path: the file.
        samples: the number of samples that were written.
        error: the reason why the recording ended early; None if it did not.
    """

    def __init__(
        self,
        path: Path,
        interval_s: float,
        collect: Collect,
        renew: Callable[[bool], None],
        retention_s: float,
        most_rows: int,
    ) -> None:
        self.path = path
        self.samples = 0
        self.error: BaseException | None = None
        self._interval_s = interval_s
        self._collect = collect
        self._renew = renew
        self._file = RecordingFile(path, int(retention_s * 1e6), most_rows)
        self._stopping = threading.Event()
        self._sampled = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="monarch-recording", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            renewed = -inf
            while True:
                if time.monotonic() > renewed + _LEASE_S / 3:
                    renewed = time.monotonic()
                    self._renew(True)
                is_last = self._stopping.is_set()
                self._file.add(
                    self._collect(needs(self._file.watermarks())), time.time_ns() // 1000
                )
                with self._sampled:
                    self.samples += 1
                    self._sampled.notify_all()
                if is_last:
                    break
                self._stopping.wait(self._interval_s)
            self._renew(False)
        except Exception as error:
            self.error = error
        finally:
            self._file.close()
            with self._sampled:
                self._sampled.notify_all()

    def wait_for(self, samples: int, timeout: float) -> bool:
        """Wait until that many samples are written; returns whether they are."""
        with self._sampled:
            self._sampled.wait_for(
                lambda: self.samples >= samples or self.error is not None, timeout
            )
        return self.samples >= samples

    def join(self, timeout: float | None = None) -> None:
        """Wait until the recording ends by an error, or for that many seconds."""
        self._thread.join(timeout)

    def stop(self) -> None:
        """Write a last sample and close the file. Idempotent.

        Raises:
            The exception that ended the recording early, for example as the disk was full.
        """
        self._stopping.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.stop()


def record_to(
    path: str | Path,
    interval: float = INTERVAL_S,
    *,
    retention_secs: float = RETENTION_S,
    rows: int = MOST_ROWS,
    most_rows: int = MOST_FILE_ROWS,
) -> Recording:
    """Record this session into a DuckDB file until `stop`, or for a `with` block.

    Every `interval` seconds a thread collects all tables but stacks. Events (calls, messages,
    spans, lines) are kept once, the others as samples. Processes keep history meanwhile; rows that
    they drop between two samples are lost. `query_file` and `monarch query --from` read the file
    when it is closed.

    Args:
        path: the file, which must not exist.
        interval: seconds from one sample to the next.
        retention_secs: how many seconds the file reaches back.
        rows: the maximal number of rows of each kind of history in a process.
        most_rows: the maximal number of rows of each table in the file.

    Raises:
        QueryError: DuckDB is not installed.
        ValueError: an interval, a time or a number of rows that makes no sense.
        FileExistsError: there is such a file.
    """
    order = checked_order(RETENTION_S, rows, _LEASE_S)
    check_recording(interval, retention_secs, most_rows)

    def collect(wanted: Mapping[str, Need]) -> Collected:
        return collect_here(runtime_or_none(), wanted, None)

    def renew(goes_on: bool) -> None:
        run = runtime_or_none()
        if run is not None:
            order_here(run, order if goes_on else checked_order(0.0, rows, -1.0), None)

    return Recording(Path(path), interval, collect, renew, retention_secs, most_rows)


def record_sessions(
    sessions: Sequence[tuple[str, Path]], path: Path, interval: float, timeout_s: float | None
) -> Recording:
    """Record sessions of this machine, as an observer. Raises as `record_to`."""
    check_recording(interval, RETENTION_S, MOST_FILE_ROWS)

    def collect(wanted: Mapping[str, Need]) -> Collected:
        return collect_from(sessions, wanted, timeout_s)

    def renew(goes_on: bool) -> None:
        for_s = _LEASE_S if goes_on else -1.0
        order_from(sessions, checked_order(RETENTION_S, MOST_ROWS, for_s), timeout_s)

    return Recording(path, interval, collect, renew, RETENTION_S, MOST_FILE_ROWS)


def check_recording(interval: float, retention_secs: float, most_rows: int) -> None:
    """Check the options of a recording.

    Raises:
        ValueError: one of them makes no sense.
    """
    if not 0.01 <= interval < 1e6:  # NaN is neither
        raise ValueError(f"interval={interval}: give seconds, from 0.01 on")
    if not 0 < retention_secs < 1e9:
        raise ValueError(f"retention_secs={retention_secs}: give seconds, more than 0, below 1e9")
    if most_rows < 1:
        raise ValueError(f"most_rows={most_rows}: give at least 1")
