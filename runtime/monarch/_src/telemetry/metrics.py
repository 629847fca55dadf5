"""Metrics of endpoints and programs, summed over processes.

Runs in: any process, mostly the client; any thread except the receiving thread. Requests the counts
from procs, which answer without running user code. A read costs each proc some microseconds per
endpoint; calls cost the same whether metrics are read or not.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic_ns
from typing import Any, Literal, TypeAlias

from monarch._src.actor.endpoint import Actor
from monarch._src.actor.inspect.ask_procs import ProcQuery, ask_procs
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.actor.state.endpoint_metrics import bounds_ns, mean_ns, merged, percentile_ns
from monarch._src.actor.state.program_metrics import TELEMETRY, merged_measures, quantile
from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.mesh.actor_mesh import ActorMesh, call_target_of
from monarch._src.mesh.meshes import ProcMesh, owned_meshes, shared_procs
from monarch._src.observe.meshes import RankRow, snapshot
from monarch._src.shape import Region
from monarch._src.wire.messages import ReadMetrics
from monarch._src.wire.msgpack_text import UNREADABLE
from monarch._src.wire.process_codec import (
    Counted,
    Figures,
    Key,
    MeasureFigures,
    MeasureKey,
    unpacked_metrics,
)

Side = Literal["caller", "callee"]


@dataclass(frozen=True)
class Process:
    """A process that counted, with its rank and point in its proc mesh; a client has no rank."""

    mesh: str
    rank: int | None
    point: dict[str, int]


_Told: TypeAlias = tuple[Process, Figures]
_Measured: TypeAlias = tuple[Process, MeasureFigures]


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


@dataclass(frozen=True)
class MissingProcess:
    """A process whose metrics are missing, and why."""

    process: Process
    reason: str


@dataclass(frozen=True)
class EndpointMetrics:
    """Counts of one endpoint since its first call, summed over processes.

    On the callee side, each called rank counts one call, from its start (before arguments are
    unpickled) until it returns or raises. On the caller side, a call of any number of ranks is one
    call, from the use of the adverb (before arguments are pickled) until the last rank has
    answered; each `adverb` has its own row. A `broadcast` or `send` has no answer, so it is never
    in flight and is not timed.

    Attributes:
        mesh, mesh_uid: the proc mesh of the actors; `client` and `0` for controllers.
        actor_class, actor, endpoint: the class, the name given at spawn, and the endpoint.
        side: `caller` or `callee`.
        adverb: `call`, `call_one`, `choose`, `stream`, `broadcast` or `send`; None for the callee.
        processes: the number of processes that counted.
        calls: the number of calls begun.
        errors: the number of failed calls; for a caller, of calls that failed on at least one rank.
        in_flight: the number of calls that have not ended.
        bytes_in, bytes_out: bytes of pickled arguments and answers, failures included. A caller
            counts the arguments once for each rank called.
        calls_per_s: `calls` over `observed_s`.
        observed_s: seconds since the first call in any of the processes.
        total_s: seconds of all calls that have ended and were timed.
        mean_s, p50_s, p90_s, p99_s, max_s: seconds per call; None if none was timed. Percentiles
            are less than 20 % off, the others are exact.
        waited_s: mean seconds that a call waited at the callee before it began; None for a caller.
        slowest: the process with the longest mean, and that mean in seconds; None if no call was
            timed.
        histogram: pairs of an upper bound (seconds, excluded) and the number of calls between the
            bound before and this one; empty buckets are omitted.
    """

    mesh: str
    mesh_uid: str
    actor_class: str
    actor: str
    endpoint: str
    side: Side
    adverb: str | None
    processes: int
    calls: int
    errors: int
    in_flight: int
    bytes_in: int
    bytes_out: int
    calls_per_s: float
    observed_s: float
    total_s: float
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    max_s: float | None
    waited_s: float | None
    slowest: tuple[Process, float] | None
    histogram: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Metrics:
    """Metrics of endpoints, spans and instruments (`get_meter`).

    `missing` lists the processes that are not included.
    """

    endpoints: tuple[EndpointMetrics, ...]
    missing: tuple[MissingProcess, ...]
    spans: tuple[SpanMetrics, ...] = ()
    instruments: tuple[InstrumentMetrics, ...] = ()


def metrics(mesh: ProcMesh | Actor | None = None, timeout: float = 1.0) -> Metrics:
    """Read the metrics of endpoints since their first calls, on the caller and callee sides.

    The call takes about a millisecond, longer for hundreds of procs. Counts only grow, so the
    difference of two reads gives the time between them. A proc that has not started yet has counted
    nothing. A proc that does not answer, because it is dead or code in it holds the GIL, is listed
    as missing.

    Args:
        mesh: only the actors on these procs, or only these actors; None: all calls made and run by
            this process and the proc meshes that it owns. A slice has the callee side only, since
            callers do not count by rank.
        timeout: seconds to wait for procs.

    Raises:
        TypeError: `mesh` is neither a proc mesh nor an actor mesh.
        MeshStoppedError: `mesh` has been stopped.
        ValueError: a negative, infinite or NaN time-out.
    """
    if not 0 <= timeout < inf:  # NaN is neither
        raise ValueError(f"timeout={timeout}: give seconds, at least 0 and finite")
    wanted = _Wanted(mesh)
    run = runtime_or_none()
    if run is None:
        return _rows([(_CLIENT, _measured_here())], (), wanted)
    questions = wanted.questions()
    ask_procs(run, questions, timeout)
    told: list[tuple[Process, Counted]] = []
    missing: list[MissingProcess] = []
    if wanted.whole and not any(_is_here(run, question) for question in questions):
        told.append((_here(run), run.inspect_handlers.counted()))
    for question in questions:
        answers = _counted(question)
        told += [(_process(question.ref, rank), counted) for rank, counted in answers.items()]
        missing += _missing(question, answers, timeout)
    return _rows(told, missing, wanted)


_CLIENT = Process("client", None, {})


class _Wanted:
    """The processes and actors whose metrics were requested."""

    def __init__(self, mesh: Any) -> None:
        self.whole = True
        self._place: tuple[ProcsRef, Region] | None = None
        self._actor: tuple[str, str] | None = None
        if isinstance(mesh, ProcMesh):
            mesh._check_usable()  # pyright: ignore[reportPrivateUsage]
            procs, region = shared_procs(mesh), mesh._region  # pyright: ignore[reportPrivateUsage]
            self._place = (procs.ref, region)
            self.whole = len(region) == len(procs.region)
        elif isinstance(mesh, ActorMesh):
            target = call_target_of(mesh)
            target.check_usable()
            self._place = (target.procs, target.region)
            self._actor = (target.class_name, target.name)
            actors = mesh._actors  # pyright: ignore[reportPrivateUsage]
            self.whole = len(target.region) == len(actors.region)
        elif mesh is not None:
            raise TypeError(f"give a proc mesh or an actor mesh, not {mesh!r}")

    def questions(self) -> list[ProcQuery]:
        """The queries: to the callees and, for a whole mesh, to possible callers."""
        owned = [shared_procs(mesh) for mesh in owned_meshes()]
        asked: dict[int, ProcQuery] = {}
        if self._place is not None:
            ref, region = self._place
            ready = next((procs.ready for procs in owned if procs.ref.uid == ref.uid), None)
            asked[ref.uid] = ProcQuery(ReadMetrics, ref, region, ready)
        for procs in owned if self.whole else ():
            asked[procs.ref.uid] = ProcQuery(ReadMetrics, procs.ref, procs.region, procs.ready)
        return list(asked.values())

    def includes(self, key: Key | MeasureKey) -> bool:
        """Whether the row was requested."""
        if self._place is not None and self._place[0].uid != key.mesh:
            return False
        if self._actor is not None and self._actor != (key.actor_class, key.actor):
            return False
        return self.whole or isinstance(key, MeasureKey) or not key.adverb


def _is_here(run: Runtime, question: ProcQuery) -> bool:
    """Whether the query includes this process."""
    ref = run.client_ref if run.proc_ref is None else run.proc_ref
    rank = 0 if run.proc_ref is None else run.rank
    return ref is not None and ref.uid == question.ref.uid and rank in question.region


def _here(run: Runtime) -> Process:
    return _CLIENT if run.proc_ref is None else _process(run.proc_ref, run.rank)


def _process(ref: ProcsRef, rank: int) -> Process:
    if ref.nodes:
        return Process(ref.name, None, {})
    return Process(ref.name, rank, dict(ref.extent.point_of_rank(rank)))


def _counted(question: ProcQuery) -> dict[int, Counted]:
    """The counts of the ranks that answered; empty for a rank that has not started."""
    found: dict[int, Counted] = {}
    for rank, payload in sorted(question.answers.items()):
        try:
            found[rank] = unpacked_metrics(payload) if payload.body else Counted()
        except UNREADABLE as error:
            question.failures[rank] = f"its answer could not be read: {error}"
    return found


def _missing(
    question: ProcQuery, answers: Container[int], timeout_s: float
) -> list[MissingProcess]:
    ranks = [rank for rank in question.region.ranks() if rank not in answers]
    silent = [rank for rank in ranks if rank not in question.failures]
    doing = _doing(question.ref.uid) if silent else {}
    why = f"no answer within {timeout_s:g} s"
    found: list[MissingProcess] = []
    for rank in ranks:
        reason = question.failures.get(rank)
        if reason is None:
            reason = f"{doing[rank]}; {why}" if rank in doing else why
        found.append(MissingProcess(_process(question.ref, rank), reason))
    return found


def _doing(mesh: int) -> dict[int, str]:
    """The state of each rank, from the host agent; empty if the mesh is not known here."""
    try:
        seen = next((seen for seen in snapshot() if seen.uid == f"{mesh:x}"), None)
    except TimeoutError:
        return {}
    return {} if seen is None else {row.rank: _state(row) for row in seen.rows}


def _state(row: RankRow) -> str:
    if row.state not in ("busy", "suspended") or not row.endpoint:
        return row.state
    name = endpoint_text(row.actor or "", row.endpoint)
    return f"{row.state} in {name} for {row.since_s:.1f} s"


def _rows(
    told: Sequence[tuple[Process, Counted]], missing: Sequence[MissingProcess], wanted: _Wanted
) -> Metrics:
    groups: dict[Key, list[_Told]] = {}
    measured: dict[MeasureKey, list[_Measured]] = {}
    for process, counted in told:
        for figures in counted.figures:
            if wanted.includes(figures.key):
                groups.setdefault(figures.key, []).append((process, figures))
        for measure in counted.measures:
            if wanted.includes(measure.key):
                measured.setdefault(measure.key, []).append((process, measure))
    meshes = list(dict.fromkeys(key.mesh for key in (*groups, *measured)))

    def place(key: Key) -> tuple[Any, ...]:
        where = meshes.index(key.mesh)
        return where, key.actor, key.actor_class, key.endpoint, bool(key.adverb), key.adverb

    def measured_place(key: MeasureKey) -> tuple[Any, ...]:
        where = meshes.index(key.mesh)
        return where, key.name, key.kind, key.attributes, key.actor, key.actor_class

    # Spans of one endpoint stay in the order of their first start: outer before inner.
    keys = sorted(groups, key=place)
    return Metrics(
        tuple(_row(key, groups[key]) for key in keys if not key.span),
        tuple(missing),
        tuple(_span_row(key, groups[key]) for key in keys if key.span),
        tuple(_instrument_row(k, measured[k]) for k in sorted(measured, key=measured_place)),
    )


def _row(key: Key, told: Sequence[_Told]) -> EndpointMetrics:
    total = merged([figures for _, figures in told])
    observed_s = total.observed_ns / 1e9
    return EndpointMetrics(
        mesh=key.mesh_name,
        mesh_uid=f"{key.mesh:x}",
        actor_class=key.actor_class,
        actor=key.actor,
        endpoint=key.endpoint,
        side="caller" if key.adverb else "callee",
        adverb=key.adverb or None,
        processes=len(told),
        calls=total.calls,
        errors=total.errors,
        in_flight=total.in_flight,
        bytes_in=total.bytes_in,
        bytes_out=total.bytes_out,
        calls_per_s=total.calls / observed_s if observed_s else 0.0,
        observed_s=observed_s,
        total_s=total.total_ns / 1e9,
        mean_s=_seconds(mean_ns(total)),
        p50_s=_seconds(percentile_ns(total, 0.5)),
        p90_s=_seconds(percentile_ns(total, 0.9)),
        p99_s=_seconds(percentile_ns(total, 0.99)),
        max_s=total.max_ns / 1e9 if total.timed else None,
        waited_s=None if key.adverb else total.waited_ns / 1e9 / total.calls,
        slowest=_slowest_of(told),
        histogram=tuple((bounds_ns(n)[1] / 1e9, count) for n, count in total.buckets),
    )


# --- rows of spans and instruments ----------------------------------------------------------------


def _measured_here() -> Counted:
    """The spans and instruments of a process without a session."""
    return Counted(tuple(TELEMETRY.spans(monotonic_ns())), tuple(TELEMETRY.measures()))


def _span_row(key: Key, told: Sequence[_Told]) -> SpanMetrics:
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
        mean_s=_seconds(mean_ns(total)),
        p50_s=_seconds(percentile_ns(total, 0.5)),
        p90_s=_seconds(percentile_ns(total, 0.9)),
        p99_s=_seconds(percentile_ns(total, 0.99)),
        max_s=total.max_ns / 1e9 if total.timed else None,
        slowest=_slowest_of(told),
    )


def _instrument_row(key: MeasureKey, told: Sequence[_Measured]) -> InstrumentMetrics:
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


def _slowest_of(told: Sequence[_Told]) -> tuple[Process, float] | None:
    """The process with the longest mean, and that mean in seconds."""
    means = [(process, mean / 1e9) for process, f in told if (mean := mean_ns(f)) is not None]
    return max(means, key=lambda pair: pair[1], default=None)


def _seconds(nanoseconds: float | None) -> float | None:
    """Convert nanoseconds to seconds; None stays None."""
    return None if nanoseconds is None else nanoseconds / 1e9
