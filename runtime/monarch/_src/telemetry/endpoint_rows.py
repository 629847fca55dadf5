"""What was counted of endpoints, and by programs, added up over the processes that counted.

Runs in: any process, mostly the client; any thread but the one that handles messages. Asks procs
themselves, which answer without user code; reading costs them some microseconds an endpoint, and
calls cost the same whether anybody reads or not.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from monarch._src.actor.endpoint import Actor
from monarch._src.actor.inspect.ask_procs import ProcQuery, ask_procs
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.actor.state.endpoint_metrics import bounds_ns, mean_ns, merged, percentile_ns
from monarch._src.mesh.actor_mesh import ActorMesh, call_target_of
from monarch._src.mesh.proc_mesh import ProcMesh, owned_meshes
from monarch._src.observe.meshes import RankRow, snapshot
from monarch._src.shape import Region
from monarch._src.telemetry.program_rows import (
    InstrumentMetrics,
    Measured,
    Process,
    SpanMetrics,
    Told,
    instrument_row,
    measured_here,
    seconds,
    slowest_of,
    span_row,
)
from monarch._src.wire.messages import ReadMetrics
from monarch._src.wire.metrics_codec import Counted, Key, MeasureKey, unpacked
from monarch._src.wire.msgpack_text import UNREADABLE

Side = Literal["caller", "callee"]


@dataclass(frozen=True)
class MissingProcess:
    """One process whose figures are not in, and why not."""

    process: Process
    reason: str


@dataclass(frozen=True)
class EndpointMetrics:
    """What all processes asked have counted of one endpoint since its first call there.

    The callee is who runs the endpoint: each rank that was called counts a call, from when it
    begins (before its arguments are unpickled) to when it returns or raises. The caller is who
    called it: the call of any number of ranks is one call, from when the adverb is used (before
    arguments are pickled) until its last rank has answered; each `adverb` is counted by itself.
    Nobody waits for a `broadcast` or a `send`: these are in flight at no time, and not timed.

    Attributes:
        mesh, mesh_uid: the proc mesh that the actors live on; `client` and `0` for controllers.
        actor_class, actor, endpoint: of which actors, by the name given at spawn.
        side: which of the two this row is.
        adverb: `call`, `call_one`, `choose`, `stream`, `broadcast` or `send`; None for the callee.
        processes: how many have counted.
        calls: how many were begun.
        errors: how many of those failed; for a caller, in at least one rank.
        in_flight: how many have not ended.
        bytes_in, bytes_out: pickled arguments and answers, failures included. What a caller sends
            counts once for each rank called, what it gets as ranks sent it.
        calls_per_s: `calls` over `observed_s`.
        observed_s: seconds since the first call, of the process where that is longest ago.
        total_s: seconds that all calls took that have ended and been timed.
        mean_s, p50_s, p90_s, p99_s, max_s: seconds a call took; None if none was timed. Percentiles
            are less than a fifth off, the others are exact.
        waited_s: mean seconds that a call waited at the callee before it began; None for a caller.
        slowest: the process where calls took longest on average, and how long (seconds); None
            if none was timed.
        histogram: pairs of an upper bound (seconds, excluded) and the calls that took less than it
            and not less than the bound before; only those where there are any.
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
    """Figures of endpoints, and the processes whose figures are not among them.

    And what programs have measured of themselves: `spans`, and `instruments` of `get_meter`.
    """

    endpoints: tuple[EndpointMetrics, ...]
    missing: tuple[MissingProcess, ...]
    spans: tuple[SpanMetrics, ...] = ()
    instruments: tuple[InstrumentMetrics, ...] = ()


def metrics(mesh: ProcMesh | Actor | None = None, timeout: float = 1.0) -> Metrics:
    """What was counted of endpoints, since each was first called, by callers and by callees.

    Takes a millisecond or so, longer for hundreds of procs; figures only grow, so who reads twice
    has those of the time between by subtraction. A proc that is not up has counted nothing. One
    that does not answer, because it is dead or because something in it holds the global interpreter
    lock, is listed as missing.

    Args:
        mesh: of the actors on these procs, or of these actors, alone; None: of everything that
            this process and the proc meshes it owns have called and run. A slice has the callees'
            side only, since callers do not count by rank.
        timeout: seconds to wait for procs.

    Raises:
        TypeError: `mesh` is no proc mesh and no actor mesh.
        MeshStoppedError: `mesh` has been stopped.
        ValueError: a negative, infinite or NaN time-out.
    """
    if not 0 <= timeout < inf:  # NaN is neither
        raise ValueError(f"timeout={timeout}: give seconds, at least 0 and not for ever")
    wanted = _Wanted(mesh)
    run = runtime_or_none()
    if run is None:
        return _rows([(_CLIENT, measured_here())], (), wanted)
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
    """Whose figures were asked for."""

    def __init__(self, mesh: Any) -> None:
        self.whole = True
        self._place: tuple[ProcsRef, Region] | None = None
        self._actor: tuple[str, str] | None = None
        if isinstance(mesh, ProcMesh):
            mesh._check_usable()  # pyright: ignore[reportPrivateUsage]
            procs, region = mesh._procs, mesh._region  # pyright: ignore[reportPrivateUsage]
            self._place = (procs.ref, region)
            self.whole = len(region) == len(procs.region)
        elif isinstance(mesh, ActorMesh):
            whom = call_target_of(mesh)
            whom.check_usable()
            self._place = (whom.procs, whom.region)
            self._actor = (whom.class_name, whom.name)
            actors = mesh._actors  # pyright: ignore[reportPrivateUsage]
            self.whole = len(whom.region) == len(actors.region)
        elif mesh is not None:
            raise TypeError(f"metrics are of a proc mesh or an actor mesh, not of {mesh!r}")

    def questions(self) -> list[ProcQuery]:
        """Whom to ask: those who run it and, for the whole of it, those who may call it."""
        owned = [mesh._procs for mesh in owned_meshes()]  # pyright: ignore[reportPrivateUsage]
        asked: dict[int, ProcQuery] = {}
        if self._place is not None:
            ref, region = self._place
            ready = next((procs.ready for procs in owned if procs.ref.uid == ref.uid), None)
            asked[ref.uid] = ProcQuery(ReadMetrics, ref, region, ready)
        for procs in owned if self.whole else ():
            asked[procs.ref.uid] = ProcQuery(ReadMetrics, procs.ref, procs.region, procs.ready)
        return list(asked.values())

    def includes(self, key: Key | MeasureKey) -> bool:
        """Whether that was asked for, and an endpoint from this side."""
        if self._place is not None and self._place[0].uid != key.mesh:
            return False
        if self._actor is not None and self._actor != (key.actor_class, key.actor):
            return False
        return self.whole or isinstance(key, MeasureKey) or not key.adverb


def _is_here(run: Runtime, question: ProcQuery) -> bool:
    """Whether this process has asked itself."""
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
    """What the ranks that have answered have counted; one that was not up, nothing."""
    found: dict[int, Counted] = {}
    for rank, payload in sorted(question.answers.items()):
        try:
            found[rank] = unpacked(payload) if payload.body else Counted()
        except UNREADABLE as error:
            question.failures[rank] = f"its answer could not be understood: {error}"
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
    """What the host agent sees the ranks of a mesh do, if it is a mesh of ours."""
    try:
        seen = next((seen for seen in snapshot() if seen.uid == f"{mesh:x}"), None)
    except TimeoutError:
        return {}
    return {} if seen is None else {row.rank: _state(row) for row in seen.rows}


def _state(row: RankRow) -> str:
    if row.state != "busy" or not row.endpoint:
        return row.state
    what = f"{row.actor}.{row.endpoint}" if row.actor else row.endpoint
    return f"busy in {what} for {row.since_s:.1f} s"


def _rows(
    told: Sequence[tuple[Process, Counted]], missing: Sequence[MissingProcess], wanted: _Wanted
) -> Metrics:
    groups: dict[Key, list[Told]] = {}
    measured: dict[MeasureKey, list[Measured]] = {}
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

    # Spans of one endpoint stay as they first began, an outer one before those within it.
    keys = sorted(groups, key=place)
    return Metrics(
        tuple(_row(key, groups[key]) for key in keys if not key.span),
        tuple(missing),
        tuple(span_row(key, groups[key]) for key in keys if key.span),
        tuple(instrument_row(k, measured[k]) for k in sorted(measured, key=measured_place)),
    )


def _row(key: Key, told: Sequence[Told]) -> EndpointMetrics:
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
        mean_s=seconds(mean_ns(total)),
        p50_s=seconds(percentile_ns(total, 0.5)),
        p90_s=seconds(percentile_ns(total, 0.9)),
        p99_s=seconds(percentile_ns(total, 0.99)),
        max_s=total.max_ns / 1e9 if total.timed else None,
        waited_s=None if key.adverb else total.waited_ns / 1e9 / total.calls,
        slowest=slowest_of(told),
        histogram=tuple((bounds_ns(n)[1] / 1e9, count) for n, count in total.buckets),
    )
