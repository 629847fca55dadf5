"""Which endpoint ran where and when, from real ranks, while they compute too."""

from __future__ import annotations

import time

import pytest

from monarch.actor import Actor, ActorError, MeshStoppedError, ProcMesh, endpoint
from monarch.observe import timeline
from tests.integration.gates import PATIENCE_S, Gate, GateKeeper


class Trainer(Actor):
    @endpoint
    def step(self, fails: bool = False) -> None:
        if fails:
            raise ValueError("no data")

    @endpoint
    def wait(self, gate: Gate) -> None:
        gate.pass_through()


def test_calls_of_each_rank_are_there_once_a_reader_has_asked(
    four: ProcMesh, gate: GateKeeper
) -> None:
    trainers = four.spawn("trainers", Trainer)
    trainers.step.call().get()
    began = time.time()
    assert timeline(four, timeout=PATIENCE_S).calls == ()
    trainers.step.call().get()
    with pytest.raises(ActorError, match="no data"):
        trainers.slice(gpus=3).step.call_one(fails=True).get()
    waiting = trainers.slice(gpus=1).wait.call_one(gate.gate)
    gate.wait_entered()
    found = timeline(four, timeout=PATIENCE_S)
    told = [(one.rank, one.endpoint, one.failed, one.took_s is None) for one in found.calls]
    assert told == [
        (0, "step", False, False),
        (1, "step", False, False),
        (1, "wait", False, True),
        (2, "step", False, False),
        (3, "step", False, False),
        (3, "step", True, False),
    ]
    assert {one.actor for one in found.calls} == {"Trainer"}
    assert all(began <= one.began_s <= time.time() for one in found.calls)
    assert (found.cut, found.missing) == ((), {})
    gate.open()
    waiting.get()
    last = max(one.began_s + (one.took_s or 0) for one in found.calls)
    later = timeline(four.slice(gpus=1), after_s=last + 1e-6, timeout=PATIENCE_S)
    assert [(one.rank, one.endpoint) for one in later.calls] == [(1, "wait")]


def test_times_that_make_no_sense_and_stopped_meshes_are_refused(four: ProcMesh) -> None:
    with pytest.raises(ValueError, match="after_s=-1: give seconds, at least 0 and finite"):
        timeline(four, after_s=-1)
    with pytest.raises(ValueError, match="timeout=nan"):
        timeline(four, timeout=float("nan"))
    four.stop().get()
    with pytest.raises(MeshStoppedError):
        timeline(four)
