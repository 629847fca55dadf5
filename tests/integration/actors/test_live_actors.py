"""What the actors of one rank are and have, told while they compute and without their code."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, MeshStoppedError, ProcMesh, concurrent_endpoint, endpoint
from monarch.observe import LiveActor, live_actors
from monarch.testing import faults as injected
from tests.conftest import Faults
from tests.integration.gates import PATIENCE_S, Gate, GateKeeper
from tests.integration.sample_actors import Counter


class Trainer(Actor):
    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.losses: list[float] = []
        self._step = 0

    @endpoint
    def step(self, gate: Gate) -> None:
        self._step += 1
        gate.pass_through()

    @endpoint
    def fill(self, number: int) -> None:
        vars(self).update({f"name_{i}": i for i in range(number)})

    def __repr__(self) -> str:
        raise AssertionError("the code of an actor has run because somebody looked")


class Server(Actor):
    @concurrent_endpoint
    async def serve(self, gate: Gate) -> None:
        import asyncio

        await asyncio.to_thread(gate.pass_through)


def on(mesh: ProcMesh, gpu: int, **options: Any) -> list[LiveActor]:
    return live_actors(mesh.slice(gpus=gpu), **{"timeout": PATIENCE_S, **options})


def test_a_rank_that_computes_tells_its_classes_attributes_and_what_waits(
    four: ProcMesh, gate: GateKeeper
) -> None:
    counters = four.spawn("counters", Counter, 7)
    trainers = four.spawn("trainers", Trainer, 0.25)
    counters.value_now.call().get()
    trainer = trainers.slice(gpus=2)
    answers = [trainer.step.call_one(gate.gate) for _ in range(4)]
    gate.wait_entered()
    counter, seen = on(four, 2)
    # Calls of one caller arrive before its later question, so the three behind it are all there.
    assert (seen.name, seen.running, seen.queued) == ("trainers", ("step",), 3)
    assert seen.class_name == f"{Trainer.__module__}.Trainer"
    assert seen.attributes == (("rate", "0.25"), ("losses", "[]"), ("_step", "1"))
    assert (counter.name, counter.queued, counter.running) == ("counters", 0, ())
    assert counter.attributes == (("value", "7"), ("step", "1"))
    gate.open(4)
    for answer in answers:
        answer.get(timeout=60)
    assert on(four, 2)[1].attributes[-1] == ("_step", "4")
    counters.stop().get(timeout=60)
    trainers.stop().get(timeout=60)


def test_endpoints_that_overlap_are_all_told(four: ProcMesh, gate: GateKeeper) -> None:
    servers = four.spawn("servers", Server)
    server = servers.slice(gpus=1)
    answers = [server.serve.call_one(gate.gate) for _ in range(2)]
    gate.wait_entered(2)
    (seen,) = [one for one in on(four, 1) if one.name == "servers"]
    assert (seen.running, seen.queued) == (("serve", "serve"), 0)
    gate.open(2)
    for answer in answers:
        answer.get(timeout=60)
    servers.stop().get(timeout=60)


def test_of_very_many_attributes_some_are_told_and_the_others_counted(four: ProcMesh) -> None:
    trainers = four.spawn("many", Trainer, 1.0)
    trainers.fill.call(100).get()
    (seen,) = [one for one in on(four, 0) if one.name == "many"]
    assert len(seen.attributes) + seen.more == 103
    assert seen.attributes[3] == ("name_0", "0")
    trainers.stop().get(timeout=60)


def test_who_does_not_answer_is_told_in_a_line(spawn_procs: Any, faults: Faults) -> None:
    procs = spawn_procs({"gpus": 2})
    procs.initialized.get(timeout=60)
    with (
        injected.stopped(procs.slice(gpus=1)),
        pytest.raises(TimeoutError, match="its process is stopped"),
    ):
        on(procs, 1, timeout=0.1)
    injected.kill(procs.slice(gpus=0))
    faults.take()
    with pytest.raises(LookupError, match="its process is gone"):
        on(procs, 0)
    with pytest.raises(ValueError, match="slice one of them"):
        live_actors(procs)
    procs.stop().get(timeout=60)
    with pytest.raises(MeshStoppedError):
        on(procs, 1)


def test_what_a_push_leaves_on_a_rank_is_not_among_the_actors(four: ProcMesh) -> None:
    before = len(on(four, 2))
    counters = four.spawn("counters", Counter, 7)
    four.push(x=1)
    assert counters.value_now.call().get().values() == [7] * 4
    assert len(on(four, 2)) == before + 1
    counters.stop().get()
    assert {"push", "counters"} & {seen.name for seen in on(four, 2) if seen.ended} == {"counters"}
