"""A mesh with `restart`: what dies is made again in its place, as often as its policy allows."""

from __future__ import annotations

import os
import queue
import signal
from typing import Any

import pytest

from monarch._src.actor.runtime import runtime
from monarch.actor import (
    Actor,
    ActorError,
    MeshFailure,
    ProcMesh,
    RestartedError,
    SupervisionError,
    current_rank,
    endpoint,
    this_host,
)
from monarch.observe import RankRestarting, metrics, snapshot
from monarch.supervision import Restart
from tests.conftest import Faults
from tests.fault.restarted_actors import OFTEN, Counting, Spawn, counts
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper, write_byte
from tests.integration.programs import watched
from tests.integration.sample_actors import Echo, append

# --- in its place ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["exit", "killed", "base exception", "abort"])
def test_what_dies_is_made_again_in_its_place_and_the_others_go_on(
    renewed: ProcMesh, how: str
) -> None:
    counting = renewed.spawn("counting", Counting, "first")
    beside = renewed.spawn("beside", Counting, "second")
    assert counts(counting) == counts(beside) == [1, 1, 1]
    before = counting.pid.call().get().values()
    with pytest.raises(RestartedError):
        counting.slice(gpus=1).die.call_one(how).get(timeout=60)
    after = counting.pid.call().get(timeout=60).values()
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert counts(counting) == counts(beside) == [2, 1, 2]
    assert beside.slice(gpus=1).count.call_one().get() == ("second", 2)


def test_an_exception_that_nobody_waits_for_is_a_death_like_any_other(
    renewed: ProcMesh, restarts: queue.SimpleQueue[RankRestarting]
) -> None:
    counting = renewed.spawn("counting", Counting, "first")
    counting.slice(gpus=2).die.broadcast("by a mistake")
    failure = restarts.get(timeout=60).failure
    assert (failure.kind, failure.rank, failure.restarted) == ("nobody waited", 2, 1)
    assert (failure.exception_type, failure.message) == ("ValueError", "by a mistake")
    assert counts(counting) == [1, 1, 1]


def test_an_exception_that_somebody_waits_for_restarts_nothing(renewed: ProcMesh) -> None:
    counting = renewed.spawn("counting", Counting, "first")
    counts(counting)
    with pytest.raises(ActorError, match="a bad word"):
        counting.slice(gpus=0).die.call_one("a bad word").get(timeout=60)
    assert counts(counting) == [2, 2, 2]


def test_bootstrap_and_then_constructors_run_again_as_they_were_asked_for(
    spawn_procs: Spawn, tmp_path: Any
) -> None:
    born = str(tmp_path / "born")
    procs = spawn_procs(
        {"gpus": 2}, restart=OFTEN, bootstrap=lambda: append(born, f"boot {current_rank().rank}")
    )
    first = procs.spawn("first", Counting, "first", born=born)
    second = procs.slice(gpus=slice(1, 2)).spawn("second", Counting, "second", born=born)
    gone = procs.spawn("gone", Counting, "gone", born=born)
    for actors in (first, second, gone):
        actors.initialized.get(timeout=60)
    gone.stop().get(timeout=60)
    before = len((tmp_path / "born").read_text().splitlines())
    first.slice(gpus=1).die.call_one("killed").exception(timeout=60)
    assert [name for name, _ in first.count.call().get(timeout=60).values()] == ["first"] * 2
    assert second.count.call().get(timeout=60).values() == [("second", 1)]
    told = (tmp_path / "born").read_text().splitlines()[before:]
    # The second stands at place 0 of the slice that it was spawned in.
    assert (told[0], sorted(told[1:])) == ("boot 1", ["first 1", "second 0"])


def test_an_actor_that_was_spawned_by_another_actor_is_made_again_too(
    renewed: ProcMesh, spawn_procs: Spawn
) -> None:
    spawner = spawn_procs(name="elsewhere").spawn("spawner", Counting, "spawner")
    made = spawner.spawn_on.call_one(renewed).get(timeout=60)
    assert counts(made) == [1, 1, 1]
    made.slice(gpus=0).die.call_one("killed").exception(timeout=60)
    assert counts(made) == [1, 2, 2]
    assert [name for name, _ in made.count.call().get().values()] == ["of an actor"] * 3


# --- the limit, and who is told -------------------------------------------------------------------


class Guardian(Actor):
    """Owns a mesh that is restarted, and notes what it is told of."""

    def __init__(self, path: str, told: str) -> None:
        self.path = path
        self.told = told

    @endpoint
    def spawn(self) -> Any:
        policy = Restart(at_most=2, back_off=0)
        self.procs = this_host().spawn_procs({"gpus": 2}, name="wards", restart=policy)
        return self.procs.spawn("ward", Counting, "ward")

    @endpoint
    def fine(self) -> str:
        return "fine"

    def __supervise__(self, failure: MeshFailure) -> bool:
        append(self.path, failure.report())
        write_byte(self.told)
        return True


def test_its_owner_is_asked_when_the_limit_is_reached_and_not_before(
    spawn_procs: Spawn, gate: GateKeeper, tmp_path: Any
) -> None:
    path = str(tmp_path / "told")
    guardian = spawn_procs(name="owner").spawn("guardian", Guardian, path, gate.gate.entered)
    ward = guardian.spawn.call_one().get(timeout=60).slice(gpus=1)
    for _ in range(2):
        assert isinstance(ward.die.call_one("exit").exception(timeout=60), RestartedError)
        ward.count.call_one().get(timeout=60)
    assert not os.path.exists(path)
    error = ward.die.call_one("killed").exception(timeout=60)
    assert type(error) is SupervisionError
    (failure,) = error.failures
    assert [death.reason for death in failure.earlier] == ["exited with status 3"] * 2
    gate.wait_entered()
    assert guardian.fine.call_one().get(timeout=60) == "fine"
    lines = (tmp_path / "told").read_text().splitlines()
    assert lines[0].endswith("died while it ran Counting.die: killed by SIGKILL")
    assert lines[1] == "  it was restarted 2 times before, after:"
    assert lines[2].startswith("    exited with status 3 while it ran Counting.die, ")
    assert lines[4] == "  its policy allows no further restart: find the cause, then spawn anew"


def test_the_hook_is_called_when_the_limit_is_reached_and_not_before(
    spawn_procs: Spawn, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 2}, name="mesh", restart=Restart(at_most=1))
    counting = procs.spawn("counting", Counting, "first")
    one = counting.slice(gpus=1)
    assert isinstance(one.die.call_one("abort").exception(timeout=60), RestartedError)
    one.count.call_one().get(timeout=60)
    assert faults.untaken() == []
    error = one.die.call_one("base exception").exception(timeout=60)
    assert type(error) is SupervisionError
    (failure,) = faults.take().failures
    assert (failure.kind, failure.exception_type) == ("actor died", "SystemExit")
    assert "it makes no sense" in failure.earlier[0].reason
    # From here on it is a mesh with a dead rank as any other.
    with pytest.raises(SupervisionError, match="I have had enough"):
        counting.count.call().get(timeout=60)
    assert counting.slice(gpus=0).count.call_one().get(timeout=60) == ("first", 2)


def test_a_constructor_that_raises_at_first_is_told_on_first_use_as_ever(
    renewed: ProcMesh, faults: Faults
) -> None:
    class Bad(Actor):
        def __init__(self) -> None:
            raise ValueError("never")

        @endpoint
        def nothing(self) -> None:
            pass

    with pytest.raises(SupervisionError, match="never") as caught:
        renewed.spawn("bad", Bad).nothing.call().get(timeout=60)
    assert type(caught.value) is SupervisionError
    assert [row.restarts for row in snapshot()[-1].rows] == [0, 0, 0]


def test_a_constructor_that_raises_in_a_restart_is_tried_again(
    renewed: ProcMesh, tmp_path: Any, restarts: queue.SimpleQueue[RankRestarting]
) -> None:
    flag = tmp_path / "fails once"
    counting = renewed.spawn("counting", Counting, "first", fails_while=str(flag))
    assert counts(counting) == [1, 1, 1]
    flag.touch()
    counting.slice(gpus=0).die.call_one("killed").exception(timeout=60)
    assert restarts.get(timeout=60).failure.restarted == 1
    second = restarts.get(timeout=60).failure
    assert (second.restarted, second.kind, second.message) == (2, "constructor", "not this time")
    assert counts(counting)[0] == 1


# --- reports of restarts --------------------------------------------------------------------------


def test_restarts_are_counted_and_told(
    renewed: ProcMesh, restarts: queue.SimpleQueue[RankRestarting]
) -> None:
    counting = renewed.spawn("counting", Counting, "first")
    for _ in range(2):
        counting.slice(gpus=2).die.call_one("exit").exception(timeout=60)
        counting.count.call().get(timeout=60)
    (seen,) = snapshot()
    assert [row.restarts for row in seen.rows] == [0, 0, 2]
    assert {row.state for row in seen.rows} == {"idle"}
    assert seen.rows[2].pid == counting.slice(gpus=2).pid.call_one().get()
    told = [restarts.get(timeout=60).failure for _ in range(2)]
    assert [(f.mesh_name, f.rank, f.restarted) for f in told] == [("mesh", 2, 1), ("mesh", 2, 2)]
    assert metrics(renewed).missing == ()


def test_a_mesh_is_stopped_while_a_rank_waits_for_its_restart(
    spawn_procs: Spawn, restarts: queue.SimpleQueue[RankRestarting], own_base_directory: Any
) -> None:
    steady = spawn_procs(name="steady").spawn("echo", Echo)
    steady.rank.call_one().get(timeout=60)
    (directory,) = own_base_directory.glob("monarch-*")
    before = sorted(path.name for path in directory.iterdir())
    procs = this_host().spawn_procs({"gpus": 2}, restart=Restart(back_off="1h", longest="1h"))
    counting = procs.spawn("counting", Counting, "first")
    pids = counting.pid.call().get(timeout=60).values()
    for _ in range(2):
        counting.slice(gpus=0).die.call_one("killed").exception(timeout=60)
        restarts.get(timeout=60)
    later = counting.slice(gpus=0).count.call_one()
    with watched(pids[1:]) as processes:
        assert procs.stop().get(timeout=60) is None
        processes.wait_all_ended()
    error = later.exception(timeout=60)
    assert isinstance(error, SupervisionError)
    assert "was stopped" in str(error)
    assert sorted(path.name for path in directory.iterdir()) == before


def test_nothing_is_left_of_earlier_lives(renewed: ProcMesh, own_base_directory: Any) -> None:
    counting = renewed.spawn("counting", Counting, "first")
    faulty = renewed.spawn("faulty", Faulty)
    counting.count.call().get(timeout=60)
    (directory,) = own_base_directory.glob("monarch-*")
    names, descriptors = len(list(directory.iterdir())), len(os.listdir("/proc/self/fd"))
    grandchild = faulty.slice(gpus=1).start_grandchild.call_one().get(timeout=60)
    with watched([grandchild]) as processes:
        for _ in range(5):
            counting.slice(gpus=1).die.call_one("killed").exception(timeout=60)
            counting.count.call().get(timeout=60)
        processes.wait_all_ended()
    assert len(list(directory.iterdir())) == names
    assert len(os.listdir("/proc/self/fd")) == descriptors
    peers = runtime().node._peers
    assert sum(name.startswith(renewed.uid) for name in peers) == 3
    renewed.stop().get(timeout=60)
    assert not any(name.startswith(renewed.uid) for name in peers)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"at_most": 0}, ValueError, "leave out `restart`"),
        ({"at_most": 1.5}, TypeError, "whole number"),
        ({"factor": 0.5}, ValueError, "factor=0.5"),
        ({"jitter": 2}, ValueError, "from 0 to 1"),
        ({"within": "soon"}, TypeError, "within='soon'"),
        ({"while_restarting": "retry"}, ValueError, "'wait' or 'raise'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Restart(**options)


@pytest.mark.parametrize(("word", "error"), [("always", ValueError), (3, TypeError)])
def test_another_word_than_on_failure_is_refused(word: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="'on-failure'"):
        this_host().spawn_procs(restart=word)


def test_a_mesh_is_stopped_in_the_moment_in_which_a_rank_of_it_dies(
    spawn_procs: Spawn, own_base_directory: Any
) -> None:
    for _ in range(10):  # whichever its owner hears of first: the process that comes is told to end
        procs = spawn_procs({"gpus": 2}, restart=OFTEN)
        pids = procs.spawn("counting", Counting, "first").pid.call().get(timeout=60).values()
        os.kill(pids[0], signal.SIGKILL)
        stopped = procs.stop()
        stopped.get(timeout=60)
