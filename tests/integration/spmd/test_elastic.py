"""Trainings whose ranks are killed, at any moment, and which go on."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, MeshStoppedError, ProcMesh, as_endpoint, this_host
from monarch.job import ProcessJob
from monarch.session import attach
from monarch.spmd import ElasticMesh, RecoveryError
from tests.fault.keepers import keeper, kept_name
from tests.integration.gates import GateKeeper
from tests.integration.spmd.elastic_trainers import Fitter, Holder, Saver, Sharded
from tests.integration.spmd.trainers import TORCH

pytestmark = pytest.mark.slow
Make = Callable[..., ElasticMesh]
STEPS = 12


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Elastic meshes of so many ranks, by default in one unit whose ranks are restarted."""
    made: list[ElasticMesh] = []

    def mesh(
        cls: Any = Fitter, ranks: int = 2, restart: Any = "on-failure", **options: Any
    ) -> ElasticMesh:
        def spawn(replica: int) -> ProcMesh:
            return this_host().spawn_procs(
                {"gpus": ranks}, name=f"replica{replica}", preload=TORCH, restart=restart
            )

        options = {"spawn": spawn, "args": (str(tmp_path),), **options}
        made.append(ElasticMesh(Class=cls, **options))
        return made[-1]

    yield mesh
    for each in made:
        each.stop()


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Tell ranks where to die, once each."""

    def write(*places: str) -> None:
        for place in places:
            (tmp_path / place).touch()

    return write


def weights_of(values: list[tuple[int, list[float]]], step: int = STEPS) -> list[float]:
    """The weights, which all ranks have, after that step."""
    assert [at for at, _ in values] == [step] * len(values)
    assert all(weights == values[0][1] for _, weights in values)
    return values[0][1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_comes_back_and_the_loss_goes_on(
    make: Make, tell: Callable[..., None], caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    mesh = make(kwargs={"seed": 1})
    begun = weights_of(mesh.run("train", 0), 0)
    tell(f"step5-rank{rank}")
    found = weights_of(mesh.run("train", STEPS))
    assert found == pytest.approx(expected(begun, ranks=2), abs=1e-5)
    first, second = mesh.recoveries
    assert (first.generation, first.why, first.from_peers) == (1, "", 1)
    assert second.generation == 2
    assert (second.step, second.ranks, second.from_peers) == (5, 2, 1)
    assert "killed by SIGKILL" in second.why
    assert f"replica0[gpus={rank}]" in second.why
    (warning,) = [one.getMessage() for one in caplog.records if "goes on" in one.getMessage()]
    assert warning.startswith("the training goes on with 2 ranks from step 5, ")
    assert warning.endswith(second.why)


def test_an_async_program_trains_on_a_thread_and_goes_on_meanwhile(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(kwargs={"seed": 1})
    tell("step5-rank1")

    async def program() -> tuple[Any, int]:
        training = asyncio.create_task(asyncio.to_thread(mesh.run, "train", STEPS))
        turns = 0
        while not training.done():
            await asyncio.wait([training], timeout=0.01)
            turns += 1
        return await training, turns

    found, turns = asyncio.run(program())
    weights_of(found)
    assert turns > 1
    assert [one.generation for one in mesh.recoveries] == [1, 2]


def test_a_rank_that_was_a_step_ahead_dies_and_the_step_is_repeated(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(ranks=3)
    begun = weights_of(mesh.run("train", 0), 0)
    tell("after6-rank2")
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 3), abs=1e-5)


def test_two_ranks_that_are_killed_at_once_come_back(make: Make, tell: Callable[..., None]) -> None:
    mesh = make(ranks=3)
    begun = weights_of(mesh.run("train", 0), 0)
    tell("step5-rank0", "step5-rank1")
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 3), abs=1e-5)
    # The second may die in the recovery from the death of the first, or when it is over.
    assert sum(one.from_peers for one in mesh.recoveries[1:]) == 2


@pytest.mark.parametrize("place", ["offer", "take", "join", "formed"])
def test_a_death_during_the_recovery_is_recovered_from(
    make: Make, tell: Callable[..., None], place: str
) -> None:
    """`offer` kills the rank that sends the state, the others one that comes back."""
    mesh = make(ranks=3)
    begun = weights_of(mesh.run("train", 0), 0)
    tell("step5-rank1", place)
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 3), abs=1e-5)


def test_a_process_that_did_not_report_its_state_sends_none(make: Make) -> None:
    """A rank may die after its report. The new process has the state of its constructor."""
    mesh = make()
    mesh.run("train", 2)
    (actors,) = mesh.actors
    offer = as_endpoint(actors.slice(gpus=0).elastic_offer)
    with pytest.raises(ActorError, match="generation 99 was formed without this process"):
        offer.call_one(99).get(timeout=60)
    as_endpoint(actors.slice(gpus=0).elastic_look).call_one(99).get(timeout=60)
    assert offer.call_one(99).get(timeout=60).step == 2


def test_a_rank_that_is_stopped_while_it_sends_its_state_is_given_up(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(ranks=3, rejoin_within=8)
    begun = weights_of(mesh.run("train", 0), 0)
    tell("step5-rank1", "stop-offer")
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 3), abs=1e-5)
    assert "did not come back within 8 s" in mesh.recoveries[-1].why


def test_news_that_reaches_one_rank_only_ends_the_call_of_the_others_too(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(ranks=3)
    begun = weights_of(mesh.run("train", 0), 0)
    tell("late5-rank1")
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 3), abs=1e-5)
    assert [one.generation for one in mesh.recoveries] == [1, 2]


def test_a_rank_that_dies_between_two_calls_gets_the_state_before_the_next(make: Make) -> None:
    mesh = make()
    begun = weights_of(mesh.run("train", 4), 4)
    (actors,) = mesh.actors
    with pytest.raises(Exception, match="killed by SIGKILL"):
        actors.slice(gpus=0).die.call_one().get(timeout=60)
    assert weights_of(mesh.run("train", 4), 4) == begun


def test_an_error_of_the_code_is_raised_and_the_next_call_goes_on(make: Make) -> None:
    mesh = make()
    begun = weights_of(mesh.run("train", 0), 0)
    with pytest.raises(ActorError, match="ValueError: a bad batch"):
        mesh.run("train", STEPS, 5)
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 2), abs=1e-5)


def test_replicas_go_on_without_one_that_is_lost_and_take_it_back(
    make: Make, tell: Callable[..., None]
) -> None:
    spawned, may_come_back = itertools.count(), threading.Event()

    def spawn(replica: int) -> ProcMesh:
        if next(spawned) >= 2:  # in the place of the one that is lost
            assert may_come_back.wait(60)
        return this_host().spawn_procs({"gpus": 1}, name=f"replica{replica}", preload=TORCH)

    mesh = make(spawn=spawn, replicas=2)
    weights_of(mesh.run("train", 4), 4)
    tell("step5")  # for the one that comes there first
    weights_of(mesh.run("train", 8), 8)
    assert [one.ranks for one in mesh.recoveries] == [2, 1]
    may_come_back.set()
    assert len(set(mesh.run("train_until_replicas", 2))) == 1
    assert (mesh.recoveries[-1].ranks, mesh.recoveries[-1].from_peers) == (2, 1)
    step = mesh.recoveries[-1].step
    weights_of(mesh.run("train", step + 3), step + 3)


def test_an_error_in_one_replica_is_raised_at_once(make: Make) -> None:
    mesh = make(ranks=1, replicas=2)
    with pytest.raises(ActorError, match="a bad batch"):
        mesh.run("train", STEPS, 5)


def test_a_part_of_the_state_comes_from_the_other_replica(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(cls=Sharded, ranks=2, replicas=2, min_replicas=2, restart=None, sharded=True)
    tell("step3-rank1")
    found = mesh.run("train", 6)
    assert found == [[6.0] * 4, [16.0] * 4] * 2
    assert mesh.recoveries[-1].from_peers == 2


def test_the_only_mesh_is_replaced_and_takes_the_state_of_what_is_left(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(restart=None)
    begun = weights_of(mesh.run("train", 0), 0)
    old = mesh.actors[0].procs.uid
    tell("step5-rank1")
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 2), abs=1e-5)
    assert mesh.actors[0].procs.uid != old
    assert mesh.recoveries[-1].from_peers == 2


def test_a_job_is_applied_again_and_the_checkpoint_loaded_if_nothing_is_left(
    make: Make, tell: Callable[..., None], agent_errors: object
) -> None:
    jobs: list[ProcessJob] = []

    def spawn(_replica: int) -> ProcMesh:
        if jobs:
            jobs[-1].kill()
        jobs.append(ProcessJob({"hosts": 1}))
        hosts = jobs[-1].state(cached_path=None).hosts
        return hosts.spawn_procs({"gpus": 2}, preload=TORCH)

    mesh = make(cls=Saver, spawn=spawn)
    try:
        weights_of(mesh.run("train", 4), 4)
        mesh.run("save")
        tell("step7-rank1")
        weights_of(mesh.run("train", STEPS))
        mesh.stop()
    finally:
        for job in jobs:
            job.kill()
    assert len(jobs) == 2
    last = mesh.recoveries[-1]
    assert (last.step, last.from_peers, last.from_checkpoint) == (4, 0, True)


def test_training_ends_if_all_state_is_lost_and_there_is_no_checkpoint(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(ranks=1)
    tell("step5")
    lost = (
        r"no rank is left .* no load_checkpoint\(\); the last loss: .*SIGKILL.*\. "
        "No rank has state any more"
    )
    with pytest.raises(RecoveryError, match=lost):
        mesh.run("train", STEPS)


def test_a_rank_that_hangs_is_killed_with_its_stacks_kept(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(ranks=3, step_within="4s")
    begun = weights_of(mesh.run("train", 0), 0)
    tell("hang5-rank1")
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 3), abs=1e-5)
    # On a busy machine another rank may exceed the limit too.
    (hang, *_) = [one for one in mesh.hangs if one.where == "replica0[gpus=1]"]
    assert "hang_if_told" in hang.stacks
    assert "all_reduce" in hang.stacks  # of the ranks that waited for it
    assert hang.seconds >= 4
    assert any(one.why.startswith("replica0[gpus=1] made no step") for one in mesh.recoveries)


def test_a_rank_that_is_stopped_is_killed_and_comes_back(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(step_within=4)
    begun = weights_of(mesh.run("train", 0), 0)
    tell("stop5-rank0")
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 2), abs=1e-5)
    assert "replica0[gpus=0]" in [one.where for one in mesh.hangs]


def test_when_all_ranks_hang_the_error_says_so(make: Make, tell: Callable[..., None]) -> None:
    mesh = make(step_within=4)
    weights_of(mesh.run("train", 0), 0)
    tell("hang5-rank0", "hang5-rank1")
    with pytest.raises(RecoveryError, match=r"the last loss: replica0\[gpus=1\] made no step for"):
        mesh.run("train", STEPS)
    assert len(mesh.hangs) == 2


def test_a_replica_that_hangs_is_lost_and_the_other_goes_on(
    make: Make, tell: Callable[..., None]
) -> None:
    mesh = make(ranks=1, replicas=2, restart=None, step_within=4)
    weights_of(mesh.run("train", 4), 4)
    tell("hang5")  # for the one that comes there first
    weights_of(mesh.run("train", STEPS))
    (where,) = {one.where for one in mesh.hangs if "hang_if_told" in one.stacks}
    assert where in ("replica0[gpus=0]", "replica1[gpus=0]")


def test_state_that_cannot_be_sent_is_named_and_not_lost(
    make: Make, tell: Callable[..., None], tmp_path: Path
) -> None:
    mesh = make(cls=Holder)
    begun = weights_of(mesh.run("train", 0), 0)
    tell("lock", "step5-rank1")
    with pytest.raises(RecoveryError) as caught:
        mesh.run("train", STEPS)
    told = str(caught.value)
    assert "the state of step 5 did not reach all ranks" in told
    assert "because of it.rest['optimizer']['lock'], a lock" in told
    assert told.endswith(
        "State that is left: that of step 5 on replica0[gpus=0]; another run() tries to go on from "
        "it"
    )
    (tmp_path / "lock").unlink()
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 2), abs=1e-5)


def test_too_few_replicas_end_training_and_their_state_is_kept(
    make: Make, tell: Callable[..., None]
) -> None:
    spawned, is_full = itertools.count(), threading.Event()

    def spawn(replica: int) -> ProcMesh:
        if next(spawned) >= 2 and is_full.is_set():
            raise OSError("no host is free")
        return this_host().spawn_procs({"gpus": 1}, name=f"replica{replica}", preload=TORCH)

    mesh = make(spawn=spawn, replicas=2, min_replicas=2)
    begun = weights_of(mesh.run("train", 0), 0)
    is_full.set()
    tell("step5")  # for the one that comes there first
    with pytest.raises(RecoveryError) as caught:
        mesh.run("train", STEPS)
    told = str(caught.value)
    assert "1 of 2 replicas are up, and 2 are needed" in told
    assert "no host is free" in told
    assert "State that is left: that of step 5 on replica" in told
    is_full.clear()
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 2), abs=1e-5)
    assert (mesh.recoveries[-1].step, mesh.recoveries[-1].from_peers) == (5, 1)


def test_calls_that_do_not_fit_are_refused_and_leave_the_training_as_it_is(make: Make) -> None:
    mesh = make()
    begun = weights_of(mesh.run("train", 0), 0)
    with pytest.raises(ValueError, match="no endpoint 'fit'"):
        mesh.run("fit")
    with pytest.raises(TypeError, match="train"):
        mesh.run("train")
    assert weights_of(mesh.run("train", STEPS)) == pytest.approx(expected(begun, 2), abs=1e-5)
    mesh.stop()
    mesh.stop()
    with pytest.raises(MeshStoppedError):
        mesh.run("train", STEPS)


def test_a_call_that_is_interrupted_ends_and_the_next_one_goes_on(make: Make) -> None:
    mesh = make()
    with pytest.raises(KeyboardInterrupt):
        mesh.run("train_and_interrupt", os.getpid())
    step = mesh.run("train", 0)[0][0]
    weights_of(mesh.run("train", step + 3), step + 3)


def test_a_mesh_that_cannot_be_spawned_at_first_raises_its_own_error(make: Make) -> None:
    def spawn(_replica: int) -> ProcMesh:
        raise OSError("no host is free")

    with pytest.raises(OSError, match="no host is free"):
        make(spawn=spawn).run("train", 1)
    assert not [t for t in threading.enumerate() if t.name == "monarch-elastic-spawn"]


def expected(begun: list[float], ranks: int) -> list[float]:
    """The weights after all steps, computed here."""
    import torch

    weights, momentum = torch.tensor(begun), torch.zeros(len(begun))
    for step in range(STEPS):
        gradients: list[Any] = []
        for rank in range(ranks):
            torch.manual_seed(1000 * step + rank)
            inputs = torch.randn(8, len(begun))
            error = inputs @ weights - inputs.sum(1)
            gradients.append(2 * inputs.T @ error / len(inputs))
        momentum = 0.5 * momentum + sum(gradients) / ranks
        weights = weights - 0.05 * momentum
    found: list[float] = weights.tolist()
    return found


TRAINS = f"""
    from monarch.spmd import ElasticMesh
    from tests.integration.spmd.elastic_trainers import Fitter

    def spawn(replica):
        return this_host().spawn_procs({{"gpus": 2}}, name="trainers", preload={TORCH!r})

    training = ElasticMesh(spawn, Fitter, args=(sys.argv[2],))
    begun = training.run("train", 0)[0][1]
    keep(name)
"""


def test_a_training_in_a_kept_session_finishes_its_call_when_its_client_is_killed(
    tmp_path: Path, own_base_directory: Path, gate: GateKeeper
) -> None:
    with (
        kept_name(own_base_directory) as name,
        keeper(tmp_path, name, TRAINS, str(tmp_path)) as first,
    ):
        begun = json.loads(first.value("begun"))
        passes = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
        first.program.say(f"training.run('train_at', {passes}, {STEPS})")
        gate.wait_entered(2)
        first.program.signal(signal.SIGKILL)
        assert first.program.end()[0] == -signal.SIGKILL
        gate.open(2)
        trainer = attach(name)["trainer"]
        found = list(trainer.train.call(STEPS).get().values())
        assert weights_of(found) == pytest.approx(expected(begun, ranks=2), abs=1e-5)
