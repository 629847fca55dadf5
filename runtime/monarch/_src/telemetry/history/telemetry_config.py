"""`TelemetryConfig`: the history that a job's programs keep."""

from __future__ import annotations

from dataclasses import dataclass

from monarch._src.actor.state.history import MOST_ROWS
from monarch._src.telemetry.history.record import RETENTION_S, checked_order, record
from monarch._src.telemetry.sql.missing_rows import MissingRows

WITHOUT_END_S = 999_999_999.0
"""Longer than a job runs, and accepted by `record`."""


@dataclass(frozen=True)
class TelemetryConfig:
    """The history that the processes of a job keep, for queries.

    The fields of Monarch's class of that name, and `rows`. `snapshot_interval_secs` has no effect:
    a query takes its own snapshot, when it runs.

    Attributes:
        retention_secs: how long rows are kept, in seconds; 0: until newer rows need their place, as
            in Monarch. `monarch.observe.record(0)` switches the history off.
        include_dashboard: also start the admin server with the web page; see
            `JobState.dashboard_url`. dashboard_port: its port on 127.0.0.1; 0: a free one.
        rows: the maximal number of rows of each kind in a process.

    Raises:
        ValueError, TypeError: as `monarch.observe.record`, or no port.
    """

    retention_secs: float = RETENTION_S
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0
    rows: int = MOST_ROWS

    def __post_init__(self) -> None:
        checked_order(self.retention_secs, self.rows)
        if not isinstance(self.dashboard_port, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"dashboard_port={self.dashboard_port!r}: give a number")
        if not 0 <= self.dashboard_port <= 65535:
            raise ValueError(f"dashboard_port={self.dashboard_port}: give 0 to 65535")

    def apply(self) -> tuple[MissingRows, ...]:
        """Keep that history from now on; returns the processes that did not confirm in time."""
        return record(self.retention_secs or WITHOUT_END_S, self.rows)
