"""Failures of ranks, as a client is told of them, made up."""

from __future__ import annotations

from typing import Any

from monarch.actor import Death, Frame, RankFailure

CELL = Frame("<cell 3>", 7, "step", "loss = self.loss / self.count")
HELPER = Frame("/home/me/train.py", 12, "mean", "return total / count")
OURS = Frame("/site/monarch/_src/actor/worker.py", 99, "_run_endpoint", "method(...)", user=False)


def failed(rank: int = 3, **changes: Any) -> RankFailure:
    """`Trainer.step` raised ZeroDivisionError on one of `workers`."""
    known: dict[str, Any] = {
        "mesh_name": "workers",
        "rank": rank,
        "point": {"gpus": rank},
        "actor_class": "Trainer",
        "endpoint": "step",
        "host": "here",
        "pid": 4000 + rank,
        "kind": "endpoint",
        "exception_type": "ZeroDivisionError",
        "message": "division by zero",
        "frames": (OURS, CELL, HELPER),
    }
    return RankFailure(**{**known, **changes})


def died(rank: int = 3, **changes: Any) -> RankFailure:
    """A proc was killed while it ran `Trainer.step`."""
    tail = tuple(f"line {number}" for number in range(20))
    death = Death(None, "SIGKILL", tail, "Trainer.step", 12.5, "killed by SIGKILL")
    known: dict[str, Any] = {
        "actor_class": "", "endpoint": None, "kind": "proc died", "exception_type": "",
        "message": death.reason, "frames": (), "death": death,
    }  # fmt: skip
    return failed(rank, **{**known, **changes})


def not_handled(name: str, *causes: RankFailure, rank: int = 0, **changes: Any) -> RankFailure:
    """An owner that failed of what it owns."""
    known: dict[str, Any] = {
        "mesh_name": name, "point": {}, "actor_class": name.title(), "endpoint": None, "frames": (),
        "kind": "not handled", "exception_type": "", "message": "it has no __supervise__",
    }  # fmt: skip
    return failed(rank, **{**known, **changes}, causes=causes)
