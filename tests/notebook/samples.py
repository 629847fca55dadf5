"""Records as the runtime reports them, for tests that need no runtime."""

from __future__ import annotations

from typing import Any

from monarch.actor import Death, Frame, RankFailure
from monarch.observe import (
    EndpointMetrics,
    InstrumentMetrics,
    MeshSnapshot,
    OutputLine,
    Process,
    RankRow,
    SpanMetrics,
)
from tests.rank_failures import failed


def row(rank: int, **changes: Any) -> RankRow:
    """An idle rank of an 8-gpu mesh."""
    known: dict[str, Any] = {
        "rank": rank,
        "point": {"gpus": rank},
        "pid": 1000 + rank,
        "state": "idle",
        "actor": None,
        "endpoint": None,
        "since_s": 1.0,
        "messages": 0,
        "rss_mib": 30.0,
        "failure": None,
    }
    return RankRow(**{**known, **changes})


def mesh(rows: list[RankRow] | None = None, **changes: Any) -> MeshSnapshot:
    """A mesh `workers {gpus: 8}`, every rank idle unless rows say otherwise."""
    known: dict[str, Any] = {
        "uid": "u1",
        "name": "workers",
        "host": "here",
        "state": "ready",
        "sizes": {"gpus": 8},
        "actors": (),
        "rows": tuple(rows if rows is not None else [row(rank) for rank in range(8)]),
        "age_s": 12.0,
    }
    return MeshSnapshot(**{**known, **changes})


def process(rank: int | None) -> Process:
    """A rank of `workers`, or the client."""
    return Process("client", None, {}) if rank is None else Process("workers", rank, {"gpus": rank})


def counted(endpoint: str = "step", adverb: str | None = None, **changes: Any) -> EndpointMetrics:
    """`Trainer.endpoint` of `workers`: 100 calls that its 8 ranks ran, or that the client made."""
    known: dict[str, Any] = {
        "mesh": "workers",
        "mesh_uid": "u1",
        "actor_class": "Trainer",
        "actor": "trainers",
        "endpoint": endpoint,
        "side": "caller" if adverb else "callee",
        "adverb": adverb,
        "processes": 1 if adverb else 8,
        "calls": 100,
        "errors": 0,
        "in_flight": 0,
        "bytes_in": 2000,
        "bytes_out": 20 * 2**20,
        "calls_per_s": 12.5,
        "observed_s": 8.0,
        "total_s": 1.2,
        "mean_s": 0.012,
        "p50_s": 0.0101,
        "p90_s": 0.02,
        "p99_s": 0.031,
        "max_s": 1.5,
        "waited_s": None if adverb else 0.0000037,
        "slowest": (process(None if adverb else 3), 0.015),
        "histogram": ((0.0117, 50), (0.032, 50)),
    }
    return EndpointMetrics(**{**known, **changes})


def measured(name: str = "load", **changes: Any) -> SpanMetrics:
    """A span of `Trainer.step` on the 8 ranks of `workers`, 100 times."""
    known: dict[str, Any] = {
        "mesh": "workers",
        "mesh_uid": "u1",
        "actor_class": "Trainer",
        "actor": "trainers",
        "endpoint": "step",
        "name": name,
        "parent": "step",
        "processes": 8,
        "count": 100,
        "errors": 0,
        "running": 0,
        "total_s": 1.2,
        "mean_s": 0.012,
        "p50_s": 0.0101,
        "p90_s": 0.02,
        "p99_s": 0.031,
        "max_s": 1.5,
        "slowest": (process(3), 0.015),
    }
    return SpanMetrics(**{**known, **changes})


def instrument(name: str = "loss", **changes: Any) -> InstrumentMetrics:
    """A histogram of the same, with three values."""
    known: dict[str, Any] = {
        "mesh": "workers",
        "mesh_uid": "u1",
        "actor_class": "Trainer",
        "actor": "trainers",
        "name": name,
        "kind": "histogram",
        "unit": "nats",
        "description": "",
        "attributes": {"phase": "eval"},
        "count": 3,
        "not_finite": 0,
        "total": 1.5,
        "mean": 0.5,
        "p50": 0.5,
        "p90": 1.0,
        "p99": 1.0,
        "min": 0.0,
        "max": 1.0,
        "by_process": ((process(3), 1.5),),
    }
    return InstrumentMetrics(**{**known, **changes})


def line(
    rank: int, text: str, stream: str = "stdout", uid: str = "u1", origin: int = 0
) -> OutputLine:
    """What one rank of `workers` wrote."""
    return OutputLine("workers", uid, rank, {"gpus": rank}, stream, text, origin)


def failure(rank: int, **changes: Any) -> RankFailure:
    """`Trainer.step` raised ValueError on a rank."""
    known: dict[str, Any] = {
        "pid": 1000 + rank,
        "exception_type": "ValueError",
        "message": "the loss is not a number",
        "frames": (
            Frame("/site-packages/monarch/_src/actor/dispatch.py", 9, "run", "body()", False),
            Frame("/home/user/train.py", 7, "step", "raise ValueError(text)", True),
        ),
        "traceback": "Traceback (most recent call last):\n  every frame\nValueError: ...",
    }
    return failed(rank, **{**known, **changes})


def death(rank: int, **changes: Any) -> RankFailure:
    """A rank that was killed while it ran `Trainer.step`."""
    dead = Death(None, "SIGKILL", ("step 41", "step 42"), "Trainer.step", 12.5, "killed by SIGKILL")
    return failure(
        rank,
        kind="proc died",
        exception_type="",
        message="killed by SIGKILL",
        frames=(),
        traceback="",
        death=dead,
        **changes,
    )
