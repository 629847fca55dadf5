"""Rows of spans and instruments of user programs, summed over processes.

Runs in: any process, any thread. `telemetry.endpoint_rows` reads the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Literal, TypeAlias

from monarch._src.actor.state.endpoint_metrics import mean_ns, merged, percentile_ns
from monarch._src.actor.state.program_metrics import TELEMETRY, merged_measures, quantile
from monarch._src.wire.process_codec import Counted, Figures, Key, MeasureFigures, MeasureKey


@dataclass(frozen=True)
class Process:
    """A process that counted, with its rank and point in its proc mesh; a client has no rank."""

    mesh: str
    rank: int | None
    point: dict[str, int]


Told: TypeAlias = tuple[Process, Figures]
Measured: TypeAlias = tuple[Process, MeasureFigures]


@dataclass(frozen=True)
class SpanMetrics:
    """Counts of one span within one parent, summed over processes.

    Attributes:
        mesh, mesh_uid: the proc mesh that it was measured on; `client` for the client.
        actor_class, actor: the actors; both `client` in the client, empty on threads that belong to
            no actor.
        endpoint: the endpoint that ran; None outside endpoints.
        name: the name of the span; `(others)` sums the spans beyond the limit of a process.
        parent: the enclosing span, or else the endpoint; None if there is neither.
        processes: the number of processes that counted.
        count: the number of times the span began.
        errors: the number of times an exception left it.
        running: the number of times it has not ended.
        total_s: seconds of all ended runs, with the spans inside them.
        mean_s, p50_s, p90_s, p99_s, max_s: seconds per run; None if none has ended. Percentiles are
            less than 20 % off, the others are exact.
        slowest: the process with the longest mean, and that mean in seconds.
    """

    mesh: str
    mesh_uid: str
    actor_class: str
    actor: str
    endpoint: str | None
    name: str
    parent: str | None
    processes: int
    count: int
    errors: int
    running: int
    total_s: float
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    max_s: float | None
    slowest: tuple[Process, float] | None


@dataclass(frozen=True)
class InstrumentMetrics:
    """Values of one instrument with one set of attributes, summed over processes.

    Attributes:
        mesh, mesh_uid, actor_class, actor: see `SpanMetrics`.
        name, kind, unit, description: as created; the name `(others)` sums the instruments of that
            kind beyond the limit of a process.
        attributes: names and values, as strings.
        count: the number of values.
        not_finite: the number of infinite or NaN values; the fields below exclude them.
        total: the sum of the values; of a gauge, of the last value of each process.
        mean, p50, p90, p99, min, max: of a histogram with values, otherwise None. Percentiles are
            less than 20 % off, the others are exact.
        by_process: the sum, or the last value, of each process.
    """

    mesh: str
    mesh_uid: str
    actor_class: str
    actor: str
    name: str
    kind: Literal["counter", "up_down_counter", "histogram", "gauge"]
    unit: str
    description: str
    attributes: dict[str, str]
    count: int
    not_finite: int
    total: float
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    min: float | None
    max: float | None
    by_process: tuple[tuple[Process, float], ...]


def measured_here() -> Counted:
    """The spans and instruments of a process without a session."""
    return Counted(tuple(TELEMETRY.spans(monotonic_ns())), tuple(TELEMETRY.measures()))


def span_row(key: Key, told: Sequence[Told]) -> SpanMetrics:
    """The row of one span."""
    total = merged([figures for _, figures in told])
    return SpanMetrics(
        mesh=key.mesh_name,
        mesh_uid=f"{key.mesh:x}",
        actor_class=key.actor_class,
        actor=key.actor,
        endpoint=key.endpoint or None,
        name=key.span,
        parent=key.parent or None,
        processes=len(told),
        count=total.calls,
        errors=total.errors,
        running=total.in_flight,
        total_s=total.total_ns / 1e9,
        mean_s=seconds(mean_ns(total)),
        p50_s=seconds(percentile_ns(total, 0.5)),
        p90_s=seconds(percentile_ns(total, 0.9)),
        p99_s=seconds(percentile_ns(total, 0.99)),
        max_s=total.max_ns / 1e9 if total.timed else None,
        slowest=slowest_of(told),
    )


def instrument_row(key: MeasureKey, told: Sequence[Measured]) -> InstrumentMetrics:
    """The row of one instrument with one set of attributes."""
    total = merged_measures([figures for _, figures in told])
    finite = total.count - total.not_finite
    has_values = key.kind == "histogram" and finite > 0
    return InstrumentMetrics(
        mesh=key.mesh_name,
        mesh_uid=f"{key.mesh:x}",
        actor_class=key.actor_class,
        actor=key.actor,
        name=key.name,
        kind=key.kind,
        unit=key.unit,
        description=key.description,
        attributes=dict(key.attributes),
        count=total.count,
        not_finite=total.not_finite,
        total=total.total,
        mean=total.total / finite if has_values else None,
        p50=quantile(total, 0.5),
        p90=quantile(total, 0.9),
        p99=quantile(total, 0.99),
        min=total.low if has_values else None,
        max=total.high if has_values else None,
        by_process=tuple((process, figures.total) for process, figures in told),
    )


def slowest_of(told: Sequence[Told]) -> tuple[Process, float] | None:
    """The process with the longest mean, and that mean in seconds."""
    means = [(process, mean / 1e9) for process, f in told if (mean := mean_ns(f)) is not None]
    return max(means, key=lambda pair: pair[1], default=None)


def seconds(nanoseconds: float | None) -> float | None:
    """Convert nanoseconds to seconds; None stays None."""
    return None if nanoseconds is None else nanoseconds / 1e9
