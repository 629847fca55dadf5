"""A process of a mesh ends: its calls tell who, why and in what; the other ranks work on."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import ActorError, ProcMesh, RankFailure, SupervisionError
from monarch.config import configured
from monarch.observe import snapshot
from tests.conftest import Faults
from tests.integration.callers import Ring
from tests.integration.failing_actors import (
    DiesInConstructor,
    Failing,
    Faulty,
    HoldsInCleanup,
    HoldsInConstructor,
)
from tests.integration.gates import GateKeeper
from tests.integration.programs import watched
from tests.integration.sample_actors import Echo, Teller

Spawn = Callable[..., ProcMesh]


@pytest.fixture
def mesh(spawn_procs: Spawn) -> ProcMesh:
    """Three procs that a test may kill."""
    return spawn_procs({"gpus": 3}, name="mesh")


def pids_of(procs: ProcMesh) -> list[int]:
    """The processes of a mesh, by rank."""
    return procs.spawn("pids", Teller).pid.call().get().values()


def the_failure(error: BaseException | None) -> RankFailure:
    """The only one in an error that must be a SupervisionError."""
    assert isinstance(error, SupervisionError), error
    (failure,) = error.failures
    return failure


def check_killed(failure: RankFailure, rank: int, pid: int, endpoint: str | None) -> None:
    """That it tells of that rank, killed in that endpoint."""
    assert failure.kind == "proc died"
    assert failure.rank == rank
    assert failure.point == {"gpus": rank}
    assert failure.pid == pid
    assert failure.message == "killed by SIGKILL"
    assert failure.death is not None
    assert failure.death.signal_name == "SIGKILL"
    assert failure.death.exit_code is None
    assert failure.death.endpoint == endpoint
    assert failure.death.ran_s > 0


def check_others_work(faulty: Faulty, dead: int) -> None:
    """That ranks beside the dead one answer, and every way to call it says that it is dead."""
    for rank in {0, 1, 2} - {dead}:
        assert faulty.slice(gpus=rank).kill_self_on.call_one([], 0).get() == rank
    gone = faulty.slice(gpus=dead)
    said = rf"mesh\[gpus={dead}\] \(pid \d+\) died"
    for answer in (
        faulty.pid.call(),
        gone.pid.call_one(),
        gone.pid.choose(),
        next(gone.pid.stream()),
    ):
        with pytest.raises(SupervisionError, match=said):
            answer.get(timeout=60)
    with pytest.raises(SupervisionError, match=said):
        faulty.pid.broadcast()
    outcomes = [answer.exception(timeout=60) for answer in faulty.pid.stream()]
    assert sum(outcome is None for outcome in outcomes) == 2


def test_killed_while_idle(mesh: ProcMesh, faults: Faults) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pids = pids_of(mesh)
    os.kill(pids[1], signal.SIGKILL)
    fault = faults.take()
    assert fault.mesh_name == "mesh"
    (failure,) = fault.failures
    check_killed(failure, 1, pids[1], None)
    check_killed(the_failure(faulty.pid.call().exception(timeout=60)), 1, pids[1], None)
    check_others_work(faulty, 1)


def test_killed_in_a_call(mesh: ProcMesh, faults: Faults, gate: GateKeeper) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pids = pids_of(mesh)
    answer = faulty.hold_on.call([2], gate.gate)
    gate.wait_entered()
    os.kill(pids[2], signal.SIGKILL)
    with pytest.raises(SupervisionError) as caught:
        answer.get(timeout=60)
    check_killed(the_failure(caught.value), 2, pids[2], "Faulty.hold_on")
    assert str(caught.value) == (
        f"mesh[gpus=2] (pid {pids[2]}) died while it ran Faulty.hold_on: killed by SIGKILL"
    )
    check_killed(faults.take().failures[0], 2, pids[2], "Faulty.hold_on")
    check_others_work(faulty, 2)


def test_killed_in_a_call_while_another_actor_of_the_rank_was_quicker(
    mesh: ProcMesh, faults: Faults, gate: GateKeeper
) -> None:
    faulty, echo = mesh.spawn("faulty", Faulty), mesh.spawn("echo", Echo)
    pids = pids_of(mesh)
    answer = faulty.hold_on.call([0], gate.gate)
    gate.wait_entered()
    assert echo.rank.call().get().values() == [0, 1, 2]
    os.kill(pids[0], signal.SIGKILL)
    check_killed(the_failure(answer.exception(timeout=60)), 0, pids[0], "Faulty.hold_on")
    faults.take()


def test_killed_in_a_broadcast(mesh: ProcMesh, faults: Faults, gate: GateKeeper) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pids = pids_of(mesh)
    faulty.hold_on.broadcast([0], gate.gate)
    gate.wait_entered()
    os.kill(pids[0], signal.SIGKILL)
    check_killed(faults.take().failures[0], 0, pids[0], "Faulty.hold_on")
    check_others_work(faulty, 0)


def test_killed_while_its_actor_is_constructed(
    mesh: ProcMesh, faults: Faults, gate: GateKeeper
) -> None:
    pids = pids_of(mesh)
    holds = mesh.spawn("holds", HoldsInConstructor, gate.gate, [1])
    answer = holds.rank.call()
    gate.wait_entered()
    os.kill(pids[1], signal.SIGKILL)
    failure = the_failure(answer.exception(timeout=60))
    assert (failure.kind, failure.rank, failure.message) == ("proc died", 1, "killed by SIGKILL")
    faults.take()
    assert holds.slice(gpus=0).rank.call_one().get() == 0
    assert holds.slice(gpus=2).rank.call_one().get() == 2


def test_a_constructor_that_ends_its_process(mesh: ProcMesh, faults: Faults) -> None:
    doomed = mesh.spawn("doomed", DiesInConstructor, [0])
    failure = the_failure(doomed.rank.call().exception(timeout=60))
    assert (failure.kind, failure.rank, failure.message) == ("proc died", 0, "killed by SIGKILL")
    faults.take()
    assert doomed.slice(gpus=slice(1, 3)).rank.call().get().values() == [1, 2]


def test_killed_while_it_stops(mesh: ProcMesh, gate: GateKeeper) -> None:
    holds = mesh.spawn("holds", HoldsInCleanup, gate.gate)
    pids = holds.pid.call().get().values()
    with watched(pids) as processes:
        stopping = mesh.stop()
        gate.wait_entered(3)
        with watched(pids[1:2]) as killed:
            os.kill(pids[1], signal.SIGKILL)
            killed.wait_all_ended()
        gate.open(2)
        assert stopping.get(timeout=60) is None
        processes.wait_all_ended()


def test_killed_before_it_has_said_hello(spawn_procs: Spawn, faults: Faults) -> None:
    """Whether it dies before or after its hello, the call ends and says that it was killed."""
    for _ in range(5):
        procs = spawn_procs({"gpus": 2}, name="young")
        answer = procs.spawn("faulty", Faulty).pid.call()
        pid = None
        while pid is None:
            pid = next(seen for seen in snapshot() if seen.uid == procs.uid).rows[1].pid
        os.kill(pid, signal.SIGKILL)
        error = answer.exception(timeout=60)
        if error is not None:  # it had answered already
            assert the_failure(error).message == "killed by SIGKILL"
        assert "killed by SIGKILL" in str(faults.take())


@pytest.mark.parametrize("status", [0, 3, 255])
def test_a_hard_exit_is_told_with_its_status(mesh: ProcMesh, faults: Faults, status: int) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    failure = the_failure(faulty.slice(gpus=1).exit_hard.call_one(status).exception(timeout=60))
    assert failure.death is not None
    assert failure.death.exit_code == status
    assert failure.death.signal_name is None
    assert failure.message == f"exited with status {status}"
    assert failure.death.endpoint == "Faulty.exit_hard"
    faults.take()
    check_others_work(faulty, 1)


def test_a_segmentation_fault_is_told_as_such(mesh: ProcMesh, faults: Faults) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    failure = the_failure(faulty.slice(gpus=2).crash.call_one().exception(timeout=60))
    assert failure.death is not None
    assert failure.death.signal_name == "SIGSEGV"
    assert failure.death.endpoint == "Faulty.crash"
    (fatal, _, *frames) = failure.death.last_lines
    assert fatal == "Fatal Python error: Segmentation fault"
    assert frames[-1].endswith(" in crash"), "the user's frames, and none of the runtime"
    faults.take()
    check_others_work(faulty, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT, signal.SIGHUP])
def test_every_signal_that_ends_a_process_is_named(
    mesh: ProcMesh, faults: Faults, number: signal.Signals
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    failure = the_failure(faulty.slice(gpus=0).kill_self.call_one(number).exception(timeout=60))
    assert failure.message == f"killed by {number.name}"
    faults.take()


def test_the_last_lines_on_stderr_are_told(mesh: ProcMesh, faults: Faults) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    lines = [f"line {number}" for number in range(60)]
    faulty.slice(gpus=1).say_on_stderr.call_one(*lines).get()
    with pytest.raises(SupervisionError) as caught:
        faulty.kill_self_on.call([1], signal.SIGKILL).get(timeout=60)
    failure = the_failure(caught.value)
    assert failure.death is not None
    assert failure.death.stderr_tail == tuple(lines[-50:])
    text = str(caught.value)
    assert "last lines on its stderr:" in text
    assert text.endswith("    line 58\n    line 59")
    faults.take()


def test_of_calls_in_flight_the_first_are_answered_and_the_rest_told_of_the_end(
    mesh: ProcMesh, faults: Faults
) -> None:
    faulty = mesh.spawn("faulty", Faulty).slice(gpus=0)
    faulty.pid.call_one().get()
    answers = [faulty.pid.call_one() for _ in range(100)]
    end = faulty.exit_hard.call_one(1)
    answers += [faulty.pid.call_one() for _ in range(100)]
    assert the_failure(end.exception(timeout=60)).message == "exited with status 1"
    # Answers that were about to leave when the process ended went with it.
    failed = [answer.exception(timeout=60) is not None for answer in answers]
    assert failed == sorted(failed)
    assert all(failed[100:])
    faults.take()


def test_ranks_that_die_alike_are_told_as_one(mesh: ProcMesh, faults: Faults) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    error = faulty.kill_self_on.call([0, 1, 2], signal.SIGKILL).exception(timeout=60)
    assert isinstance(error, SupervisionError)
    told: set[int] = set()
    while told != {0, 1, 2}:  # between one and three faults
        told |= {failure.rank for failure in faults.take().failures}
    assert {failure.rank for failure in error.failures} <= {0, 1, 2}
    with pytest.raises(SupervisionError) as caught:
        faulty.pid.call().get(timeout=60)
    assert sorted(failure.rank for failure in caught.value.failures) == [0, 1, 2]
    assert str(caught.value).count("killed by SIGKILL") == 1


def test_everybody_who_waits_is_told(mesh: ProcMesh, faults: Faults, gate: GateKeeper) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pid = pids_of(mesh)[1]
    answer = faulty.slice(gpus=1).hold.call_one(gate.gate)
    gate.wait_entered()
    told: list[BaseException | None] = []

    async def awaiting() -> None:
        try:
            await answer
        except SupervisionError as error:
            told.append(error)

    threads = [threading.Thread(target=lambda: told.append(answer.exception())) for _ in range(3)]
    threads += [threading.Thread(target=lambda: asyncio.run(awaiting())) for _ in range(3)]
    for thread in threads:
        thread.start()
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert len(told) == 6
    assert all(error is answer.exception() for error in told)
    faults.take()


def test_an_actor_that_calls_a_rank_that_dies_is_told_too(
    mesh: ProcMesh, faults: Faults, gate: GateKeeper
) -> None:
    faulty, ring = mesh.spawn("faulty", Faulty), mesh.spawn("ring", Ring)
    echo = mesh.spawn("echo", Echo)
    assert ring.slice(gpus=0).ask.call_one(echo.slice(gpus=2), 1).get() == 1
    faulty.slice(gpus=2).exit_hard.call_one(9).exception(timeout=60)
    faults.take()
    with pytest.raises(ActorError, match="exited with status 9") as caught:
        ring.slice(gpus=0).ask.call_one(echo.slice(gpus=2), 1).get(timeout=60)
    assert isinstance(caught.value.exception, SupervisionError)
    # One that has never called it before learns so as well.
    with pytest.raises(ActorError, match="exited with status 9"):
        ring.slice(gpus=1).ask.call_one(echo.slice(gpus=2), 1).get(timeout=60)
    assert ring.slice(gpus=1).ask.call_one(echo.slice(gpus=0), 2).get() == 2


def test_a_rank_that_is_only_stopped_is_no_failure(mesh: ProcMesh) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pids = faulty.pid.call().get().values()
    os.kill(pids[1], signal.SIGSTOP)
    try:
        answer = faulty.pid.call()
        assert faulty.slice(gpus=0).pid.call_one().get() == pids[0]
        assert faulty.slice(gpus=2).pid.call_one().get() == pids[2]
        with pytest.raises(TimeoutError):
            answer.get(timeout=0.05)
        (seen,) = [found for found in snapshot() if found.uid == mesh.uid]
        assert seen.state == "ready"
        assert "failed" not in {row.state for row in seen.rows}
    finally:
        os.kill(pids[1], signal.SIGCONT)
    assert answer.get(timeout=60).values() == pids


def test_a_rank_that_holds_the_gil_is_busy_and_not_dead(mesh: ProcMesh, gate: GateKeeper) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pids = pids_of(mesh)
    answer = faulty.slice(gpus=1).hold_the_gil.call_one(gate.gate)
    gate.wait_entered()
    for _ in range(20):
        (seen,) = [found for found in snapshot() if found.uid == mesh.uid]
        assert [row.state for row in seen.rows] == ["idle", "busy", "idle"]
        assert seen.rows[1].endpoint == "hold_the_gil"
        assert faulty.slice(gpus=0).pid.call_one().get() == pids[0]
    later = faulty.pid.call()
    with pytest.raises(TimeoutError):
        later.get(timeout=0.01)
    gate.open()
    assert answer.get(timeout=60) is None
    assert later.get(timeout=60).values() == pids


def test_a_mesh_with_a_stopped_rank_can_be_stopped(spawn_procs: Spawn) -> None:
    with configured(cleanup_timeout="100ms"):
        procs = spawn_procs({"gpus": 2})
        pids = pids_of(procs)
        os.kill(pids[0], signal.SIGSTOP)
        with watched(pids) as processes:
            procs.stop().get(timeout=60)
            processes.wait_all_ended()


def test_the_snapshot_of_a_mesh_tells_of_its_dead(mesh: ProcMesh, faults: Faults) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    faulty.initialized.get(timeout=60)  # three processes need not begin at once
    faulty.slice(gpus=1).exit_hard.call_one(4).exception(timeout=60)
    faults.take()
    (seen,) = [found for found in snapshot() if found.uid == mesh.uid]
    assert seen.state == "failed"
    assert [row.state for row in seen.rows] == ["idle", "failed", "idle"]
    assert seen.rows[1].failure is not None
    assert "exited with status 4" in seen.rows[1].failure


def test_a_mesh_with_a_dead_rank_refuses_new_actors_but_not_on_what_is_left(
    mesh: ProcMesh, faults: Faults
) -> None:
    mesh.spawn("faulty", Faulty).slice(gpus=2).exit_hard.call_one(4).exception(timeout=60)
    faults.take()
    remedy = (
        r"'echo' is not spawned: restart\(\) them, or stop\(\) these procs and spawn others, or go "
        "on with a slice"
    )
    with pytest.raises(SupervisionError, match=rf"(?s)exited with status 4.*\n{remedy}") as refused:
        mesh.spawn("echo", Echo)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    with pytest.raises(SupervisionError, match=r"stop\(\) these procs and spawn others$"):
        mesh.slice(gpus=2).spawn("echo", Echo)
    echo = mesh.slice(gpus=slice(0, 2)).spawn("echo", Echo)
    assert echo.rank.call().get().values() == [0, 1]


def test_a_failed_actor_affects_no_other_actor_of_its_mesh(mesh: ProcMesh, faults: Faults) -> None:
    beside = mesh.spawn("beside", Echo)
    failing = mesh.spawn("failing", Failing)
    failing.slice(gpus=2).raise_value_error.broadcast()
    faults.take_ranks({2})
    with pytest.raises(SupervisionError, match=r"Failing\.raise_value_error on .*gpus=2"):
        failing.slice(gpus=2).raise_value_error.call_one().get(timeout=60)
    assert mesh.spawn("echo", Echo).rank.call().get().values() == [0, 1, 2]
    assert beside.rank.call().get().values() == [0, 1, 2]
    (seen,) = [found for found in snapshot() if found.uid == mesh.uid]
    (failed,) = seen.failed
    assert (failed.name, failed.ranks, failed.points) == ("failing", (2,), ({"gpus": 2},))
    assert failed.why.startswith("Failing.raise_value_error on ")
    assert seen.state == "ready"
    failing.stop().get(timeout=60)
    (seen,) = [found for found in snapshot() if found.uid == mesh.uid]
    assert seen.failed == ()


def test_what_a_rank_has_started_ends_with_it(mesh: ProcMesh, faults: Faults) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    grandchildren = faulty.start_grandchild.call().get().values()
    pids = pids_of(mesh)
    with watched(grandchildren[:1]) as killed, watched(grandchildren[1:]) as stopped:
        os.kill(pids[0], signal.SIGKILL)
        killed.wait_all_ended()
        faults.take()
        assert all(Path(f"/proc/{pid}").exists() for pid in grandchildren[1:])
        mesh.stop().get(timeout=60)
        stopped.wait_all_ended()
