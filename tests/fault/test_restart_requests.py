"""`restart` of ranks: what has died comes back in its place, in a mesh without a policy."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
from typing import Any

import pytest

from monarch._src.actor.deliver import restart_replay
from monarch._src.actor.runtime import runtime
from monarch._src.mesh.namespace import pushed_names
from monarch.actor import (
    Actor,
    ActorError,
    MeshStoppedError,
    ProcMesh,
    RestartedError,
    SupervisionError,
    current_rank,
    endpoint,
)
from monarch.observe import RankRestarting, snapshot
from tests.conftest import Faults
from tests.fault.restarted_actors import Counting, Spawn, casts_to_few, counts
from tests.integration.gates import GateKeeper
from tests.integration.programs import watched
from tests.integration.sample_actors import append


@pytest.fixture
def mesh(spawn_procs: Spawn) -> ProcMesh:
    """Three procs, of which none restarts by itself."""
    return spawn_procs({"gpus": 3}, name="mesh")


def kill(counting: Any, rank: int, faults: Faults) -> None:
    """Kill a rank, and wait until its owner has been told."""
    error = counting.slice(gpus=rank).die.call_one("killed").exception(timeout=60)
    assert type(error) is SupervisionError
    faults.take_ranks({rank})


def test_a_dead_rank_comes_back_in_its_place_and_the_others_go_on(
    mesh: ProcMesh, faults: Faults
) -> None:
    counting = mesh.spawn("counting", Counting, "first")
    beside = mesh.spawn("beside", Counting, "second")
    assert counts(counting) == counts(beside) == [1, 1, 1]
    before = counting.pid.call().get().values()
    kill(counting, 1, faults)
    with pytest.raises(SupervisionError):
        counting.slice(gpus=1).count.call_one().get(timeout=60)
    assert mesh.slice(gpus=1).restart().get(timeout=60) == ()
    after = counting.pid.call().get(timeout=60).values()
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert counts(counting) == counts(beside) == [2, 1, 2]
    assert beside.slice(gpus=1).count.call_one().get() == ("second", 2)
    assert counts(mesh.spawn("later", Counting, "third")) == [1, 1, 1]
    (seen,) = snapshot()
    assert (seen.state, [row.restarts for row in seen.rows]) == ("ready", [0, 1, 0])
    assert {row.state for row in seen.rows} == {"idle"}


def test_a_living_rank_ends_in_order_before_it_comes_back(mesh: ProcMesh, tmp_path: Any) -> None:
    class Tidy(Counting):
        def __cleanup__(self, _error: object) -> None:
            append(str(tmp_path / "cleaned"), f"{current_rank().rank}")

    tidy = mesh.spawn("tidy", Tidy, "first")
    assert counts(tidy) == [1, 1, 1]
    (pid,) = tidy.slice(gpus=2).pid.call().get().values()
    with watched([pid]) as processes:
        mesh.slice(gpus=2).restart().get(timeout=60)
        processes.wait_all_ended()
    assert (tmp_path / "cleaned").read_text() == "2\n"
    assert counts(tidy) == [2, 2, 1]


def test_a_call_that_a_living_rank_runs_is_lost_with_its_process(
    mesh: ProcMesh, gate: GateKeeper, restarts: queue.SimpleQueue[RankRestarting]
) -> None:
    counting = mesh.spawn("counting", Counting, "first")
    held = counting.slice(gpus=0).hold.call_one(gate.gate)
    gate.wait_entered()
    again = mesh.slice(gpus=0).restart()
    gate.open()
    again.get(timeout=60)
    outcome = held.exception(timeout=60)
    assert outcome is None or isinstance(outcome, RestartedError)
    assert restarts.get(timeout=60).failure.what == "mesh[gpus=0] was stopped: restarted by request"
    assert counts(counting) == [1, 1, 1]


def test_a_whole_mesh_comes_back_after_all_of_it_has_died(mesh: ProcMesh, faults: Faults) -> None:
    counting = mesh.spawn("counting", Counting, "first")
    counting.die_on.call([0, 1, 2]).exception(timeout=60)
    faults.take_ranks({0, 1, 2})
    mesh.restart().get(timeout=60)
    assert counts(counting) == [1, 1, 1]
    assert mesh.initialized.get(timeout=60)


def test_what_goes_by_way_of_the_host_reaches_the_ranks_that_came_back(
    spawn_procs: Spawn, faults: Faults, few_are_many: None
) -> None:
    procs = spawn_procs({"gpus": 9}, bootstrap=casts_to_few)
    counting = procs.spawn("counting", Counting, "first")
    assert counts(counting) == [1] * 9
    for calls in (2, 3):
        counting.die_on.call([3, 4]).exception(timeout=60)
        faults.take_ranks({3, 4})
        procs.slice(gpus=slice(3, 5)).restart().get(timeout=60)
        assert counts(counting) == [calls] * 3 + [1] * 2 + [calls] * 4
        assert counting.slice(gpus=3).count.call_one().get(timeout=60) == ("first", 2)
    assert [row.restarts for row in snapshot()[-1].rows] == [0, 0, 0, 2, 2, 0, 0, 0, 0]


# --- handles of other processes -------------------------------------------------------------------


def test_handles_go_on_working_in_every_process_that_got_them_before(
    mesh: ProcMesh, spawn_procs: Spawn, faults: Faults
) -> None:
    counting = mesh.spawn("counting", Counting, "first")
    elsewhere = spawn_procs({"gpus": 2}, name="elsewhere").spawn("askers", Counting, "asker")
    used, unused = elsewhere.slice(gpus=0), elsewhere.slice(gpus=1)
    pair = counting.slice(gpus=slice(1, 3))
    for one in (used, unused, counting.slice(gpus=0)):
        one.keep.call_one(pair).get(timeout=60)
    assert len(used.ask_kept.call_one().get(timeout=60)) == 2
    before = pickle.dumps(pair)
    kill(counting, 1, faults)
    assert isinstance(used.ask_kept.call_one().exception(timeout=60), ActorError)
    mesh.slice(gpus=1).restart().get(timeout=60)
    for asker in (used, unused, counting.slice(gpus=0)):
        assert len(asker.ask_kept.call_one().get(timeout=60)) == 2
        assert len(asker.ask.call_one(pair).get(timeout=60)) == 2
        assert len(asker.ask_pickled.call_one(before).get(timeout=60)) == 2
    late = spawn_procs(name="late").spawn("late", Counting, "late")
    assert len(late.ask.call_one(counting).get(timeout=60)) == 3


def test_a_rank_that_came_back_calls_the_others_and_itself(mesh: ProcMesh, faults: Faults) -> None:
    counting = mesh.spawn("counting", Counting, "first")
    kill(counting, 0, faults)
    kill(counting, 2, faults)
    mesh.slice(gpus=slice(0, 3, 2)).restart().get(timeout=60)
    other = mesh.spawn("other", Counting, "second")
    assert len(other.slice(gpus=0).ask.call_one(counting).get(timeout=60)) == 3
    assert counts(counting) == [2, 2, 2]


def test_an_actor_that_another_process_has_spawned_there_is_made_again(
    mesh: ProcMesh, spawn_procs: Spawn, faults: Faults
) -> None:
    spawner = spawn_procs(name="elsewhere").spawn("spawner", Guardian)
    made = spawner.spawn_on.call_one(mesh).get(timeout=60)
    assert counts(made) == [1, 1, 1]
    made.slice(gpus=0).die.call_one("killed").exception(timeout=60)
    faults.take_ranks({0})
    mesh.slice(gpus=0).restart().get(timeout=60)
    assert counts(made) == [1, 2, 2]


class Guardian(Actor):
    """Spawns actors, and lives on when they fail."""

    @endpoint
    def spawn_on(self, procs: ProcMesh) -> Any:
        return procs.spawn("by an actor", Counting, "of an actor")

    def __supervise__(self, failure: object) -> bool:
        return True


# --- ranks that do not come back ------------------------------------------------------------------


def test_a_constructor_that_raises_leaves_the_rank_as_dead_as_it_was(
    mesh: ProcMesh, faults: Faults, tmp_path: Any
) -> None:
    flag = tmp_path / "fails once"
    counting = mesh.spawn("counting", Counting, "first", fails_while=str(flag))
    assert counts(counting) == [1, 1, 1]
    kill(counting, 1, faults)
    flag.touch()
    with pytest.raises(SupervisionError) as caught:
        mesh.slice(gpus=1).restart().get(timeout=60)
    lines = str(caught.value).splitlines()
    assert lines[0] == "Counting.__init__ on mesh[gpus=1] raised ValueError: not this time"
    assert lines[-1] == (
        "mesh[gpus=1] has not come back: find the cause, then restart() it once more"
    )
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        counting.slice(gpus=1).count.call_one().get(timeout=60)
    assert snapshot()[-1].rows[1].state == "failed"
    assert counts(counting.slice(gpus=slice(0, 3, 2))) == [2, 2]
    mesh.slice(gpus=1).restart().get(timeout=60)
    assert counts(counting) == [3, 1, 3]
    assert faults.untaken() == []


def test_a_bootstrap_function_that_raises_leaves_the_rank_dead(
    spawn_procs: Spawn, faults: Faults, tmp_path: Any
) -> None:
    flag = tmp_path / "fails"

    def boot() -> None:
        append(str(tmp_path / "booted"), f"{current_rank().rank}")
        if flag.exists():
            raise ValueError("no such weights")

    procs = spawn_procs({"gpus": 2}, name="mesh", bootstrap=boot)
    counting = procs.spawn("counting", Counting, "first")
    assert counts(counting) == [1, 1]
    kill(counting, 1, faults)
    flag.touch()
    with pytest.raises(SupervisionError, match="no such weights"):
        procs.slice(gpus=1).restart().get(timeout=60)
    assert snapshot()[-1].rows[1].state == "failed"
    flag.unlink()
    procs.slice(gpus=1).restart().get(timeout=60)
    assert counts(counting) == [2, 1]
    assert sorted((tmp_path / "booted").read_text().split()) == ["0", "1", "1", "1"]
    assert procs.initialized.get(timeout=60)
    assert faults.untaken() == []


def test_a_rank_that_dies_again_has_failed_like_any_other(mesh: ProcMesh, faults: Faults) -> None:
    counting = mesh.spawn("counting", Counting, "first")
    for _ in range(2):
        kill(counting, 1, faults)
        mesh.slice(gpus=1).restart().get(timeout=60)
    kill(counting, 1, faults)
    assert counts(counting.slice(gpus=slice(0, 1))) == [1]
    assert snapshot()[-1].rows[1].restarts == 2


def test_a_mesh_that_is_stopped_meanwhile_restarts_no_rank(
    mesh: ProcMesh, faults: Faults, gate: GateKeeper
) -> None:
    class Slow(Counting):
        def __init__(self, gate: Any, path: str) -> None:
            super().__init__("slow")
            if os.path.exists(path):
                gate.pass_through()

    path = gate.gate.entered + "-later"
    slow = mesh.spawn("slow", Slow, gate.gate, path)
    assert counts(slow) == [1, 1, 1]
    kill(slow, 1, faults)
    append(path, "now")
    restarting = mesh.slice(gpus=1).restart()
    gate.wait_entered()
    with pytest.raises(RuntimeError, match=r"mesh\[gpus=1\] is being restarted already"):
        mesh.restart()
    stopped = mesh.kill()
    assert isinstance(restarting.exception(timeout=60), SupervisionError)
    stopped.get(timeout=60)
    with pytest.raises(MeshStoppedError):
        mesh.restart()


def test_constructor_arguments_that_were_too_large_to_keep_are_named_first(
    mesh: ProcMesh, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_replay, "MOST_KEPT", 1 << 20)
    counting = mesh.spawn("counting", Counting, "n" * (2 << 20))
    kill(counting, 1, faults)
    with pytest.raises(ValueError, match="counting: constructor arguments of more than"):
        mesh.slice(gpus=1).restart()
    counting.stop().get(timeout=60)
    mesh.slice(gpus=1).restart().get(timeout=60)
    assert counts(mesh.spawn("counting", Counting, "n")) == [1, 1, 1]


def test_only_the_owner_restarts_ranks(mesh: ProcMesh) -> None:
    reference = pickle.loads(pickle.dumps(mesh))
    with pytest.raises(ValueError, match="only its owner may restart its ranks"):
        reference.restart()


def test_nothing_is_left_of_earlier_lives(
    mesh: ProcMesh, faults: Faults, own_base_directory: Any
) -> None:
    counting = mesh.spawn("counting", Counting, "first")
    counting.count.call().get(timeout=60)
    (directory,) = own_base_directory.glob("monarch-*")
    names, descriptors = len(list(directory.iterdir())), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        os.kill(counting.slice(gpus=1).pid.call_one().get(timeout=60), signal.SIGKILL)
        faults.take_ranks({1})
        mesh.slice(gpus=1).restart().get(timeout=60)
        counting.count.call().get(timeout=60)
    assert len(list(directory.iterdir())) == names
    assert len(os.listdir("/proc/self/fd")) == descriptors
    peers = runtime().node._peers
    assert sum(name.startswith(mesh.uid) for name in peers) == 3
    mesh.stop().get(timeout=60)
    assert not any(name.startswith(mesh.uid) for name in peers)


# --- names, and process groups --------------------------------------------------------------------


def bind_here(name: str, value: Any) -> None:
    """What a cell on a rank does."""
    vars(sys.modules["__main__"])[name] = value


class Binding(Counting):
    """Binds a name as a cell does."""

    @endpoint
    def bind_name(self, name: str, value: Any) -> None:
        bind_here(name, value)


def test_what_was_pushed_and_scattered_is_bound_again_as_it_was_then(
    mesh: ProcMesh, faults: Faults
) -> None:
    binding = mesh.spawn("binding", Binding, "first")
    values, changed = list(range(6)), {"rate": 0.1}
    mesh.push(config=changed, large=bytes(200_000))
    mesh.scatter(rows=values)
    changed["rate"] = 0.5
    mesh.slice(gpus=slice(1, 3)).push(config={"rate": 0.2})
    binding.bind_name.call("loss", 3.0).get(timeout=60)
    kill(binding, 1, faults)
    lost = mesh.slice(gpus=1).restart().get(timeout=60)
    assert lost == ("names lost on gpus=1: loss (bound by a cell)",)
    assert [value["rate"] for value in mesh.pull("config").values()] == [0.1, 0.2, 0.2]
    assert mesh.pull("rows").values() == [[0, 1], [2, 3], [4, 5]]
    assert [len(value) for value in mesh.pull("large").values()] == [200_000] * 3


def test_a_value_that_was_too_large_to_keep_is_named(
    mesh: ProcMesh, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushed_names, "MOST_KEPT", 1000)
    mesh.push(small=1, large=bytes(2000))
    counting = mesh.spawn("counting", Counting, "first")
    kill(counting, 2, faults)
    lost = mesh.slice(gpus=2).restart().get(timeout=60)
    assert lost == ("names lost on gpus=2: large (too large to be kept)",)
    assert mesh.pull("small").values() == [1, 1, 1]
