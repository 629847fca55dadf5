"""`monarch.testing`: what is injected happens, ends with its block, and can be looked up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._src.events import bus
from monarch.actor import ProcMesh, SupervisionError, this_host, this_proc
from monarch.config import configured
from monarch.observe import snapshot
from monarch.testing import FaultInjected, MessageLostError, faults
from tests.conftest import Faults
from tests.integration.callers import Ring
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Echo, Recorder

Spawn = Callable[..., ProcMesh]
LATER = 60.0


@pytest.fixture(autouse=True)
def fresh_history() -> None:
    faults.forget_history()


@pytest.fixture
def faults_seen(recorded_faults: Faults) -> Faults:
    """The failures that reach this program, which are expected."""
    recorded_faults.expected = True
    return recorded_faults


@pytest.fixture
def mesh(spawn_procs: Spawn) -> Iterator[ProcMesh]:
    """Three procs that consent."""
    with configured(fault_injection=True):
        yield spawn_procs({"gpus": 3}, name="workers")


@pytest.fixture
def echo(mesh: ProcMesh) -> Echo:
    found = mesh.spawn("echo", Echo)
    found.rank.call().get()
    return found


# --- processes ------------------------------------------------------------------------------------


def test_a_killed_rank_is_told_as_any_that_was_killed(echo: Echo, faults_seen: Faults) -> None:
    assert faults.kill(echo.slice(gpus=1)) == (1,)
    with pytest.raises(SupervisionError, match=r"workers\[gpus=1\] .* killed by SIGKILL"):
        echo.rank.call().get(timeout=LATER)
    assert faults_seen.take().failures[0].rank == 1
    assert faults.kill(echo.slice(gpus=1)) == ()
    assert echo.slice(gpus=2).rank.call_one().get() == 0


def test_any_signal_may_be_sent(mesh: ProcMesh, faults_seen: Faults) -> None:
    mesh.initialized.get()
    assert faults.kill(mesh, signal=signal.SIGTERM) == (0, 1, 2)
    told: set[int] = set()
    while told != {0, 1, 2}:
        told |= {failure.rank for failure in faults_seen.take().failures}


def test_a_host_agent_can_be_killed(spawn_procs: Spawn, faults_seen: Faults) -> None:
    procs = spawn_procs({"gpus": 2}, name="lost")
    procs.initialized.get()
    faults.kill(this_host())
    assert {failure.kind for failure in faults_seen.take().failures} == {"host lost"}


def test_a_stopped_rank_is_busy_until_the_block_ends(mesh: ProcMesh) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pids = faulty.pid.call().get().values()
    with faults.stopped(mesh.slice(gpus=1)) as ranks:
        assert ranks == (1,)
        answer = faulty.pid.call()
        assert faulty.slice(gpus=0).pid.call_one().get() == pids[0]
        assert not answer.done
        assert "failed" not in {row.state for row in snapshot()[0].rows}
    assert answer.get(timeout=LATER).values() == pids


def test_to_stop_ranks_of_which_none_has_a_process_is_no_trouble(
    echo: Echo, faults_seen: Faults
) -> None:
    one = echo.slice(gpus=1)
    faults.kill(one)
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        one.rank.call_one().get(timeout=LATER)
    faults_seen.take()
    with faults.stopped(one) as ranks:
        assert ranks == ()


def test_what_is_stopped_goes_on_when_the_block_is_left_by_an_error(echo: Echo) -> None:
    with pytest.raises(KeyError), faults.stopped(echo):
        raise KeyError
    assert echo.rank.call().get(timeout=LATER).values() == [0, 1, 2]


def test_a_mesh_that_is_stopped_for_good_within_the_block_is_no_trouble(mesh: ProcMesh) -> None:
    mesh.initialized.get()
    with faults.stopped(mesh.slice(gpus=0)):
        faults.kill(mesh.slice(gpus=0), signal=signal.SIGCONT)
        mesh.stop().get(timeout=LATER)


# --- links ----------------------------------------------------------------------------------------


def test_a_partition_holds_what_is_sent_and_loses_nothing(mesh: ProcMesh) -> None:
    recorder = mesh.spawn("recorder", Recorder)
    recorder.note.call(-1).get()
    cut = recorder.slice(gpus=1)
    with faults.partition(mesh.slice(gpus=1)):
        for number in range(20):
            recorder.note.broadcast(number)
        answer = cut.count.call_one()
        others = recorder.slice(gpus=slice(0, 1))
        assert others.count.call().get(timeout=LATER).values() == [21]
        with pytest.raises(TimeoutError):
            answer.get(timeout=0.05)
    assert answer.get(timeout=LATER) == 21
    assert recorder.take.call().get(timeout=LATER).values() == [[-1, *range(20)]] * 3


def test_an_answer_does_not_get_through_a_partition_either(
    mesh: ProcMesh, gate: GateKeeper
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    answer = faulty.hold_on.call([0], gate.gate)
    gate.wait_entered()
    with faults.partition(mesh.slice(gpus=0)):
        gate.open()
        while snapshot()[0].rows[0].state != "idle":
            pass
        with pytest.raises(TimeoutError):
            answer.get(timeout=0.05)
    assert answer.get(timeout=LATER).values() == [0, 1, 2]


def test_a_partition_between_ranks_leaves_other_links_alone(mesh: ProcMesh) -> None:
    ring, echo = mesh.spawn("ring", Ring), mesh.spawn("echo", Echo)
    assert ring.ask_all.call(echo, 1).get().values() == [[1, 1, 1]] * 3
    with faults.partition(mesh.slice(gpus=0), mesh.slice(gpus=1)):
        assert echo.rank.call().get(timeout=LATER).values() == [0, 1, 2]
        answers = [
            ring.slice(gpus=a).ask.call_one(echo.slice(gpus=b), a * 10 + b)
            for a, b in ((0, 1), (1, 0), (0, 2), (2, 1), (2, 0))
        ]
        assert [answer.get(timeout=LATER) for answer in answers[3:]] == [21, 20]
        assert not answers[1].done
        assert not answers[0].done
    assert [answer.get(timeout=LATER) for answer in answers] == [1, 10, 2, 21, 20]


def test_a_partition_from_this_program_leaves_ranks_to_each_other(mesh: ProcMesh) -> None:
    ring, echo = mesh.spawn("ring", Ring), mesh.spawn("echo", Echo)
    ring.ask.call(echo.slice(gpus=0), 1).get()
    with faults.partition(mesh.slice(gpus=0), this_proc()):
        assert ring.slice(gpus=1).ask.call_one(echo.slice(gpus=0), 5).get(timeout=LATER) == 5
        answer = echo.slice(gpus=0).same.call_one(6)
        with pytest.raises(TimeoutError):
            answer.get(timeout=0.05)
    assert answer.get(timeout=LATER) == 6


def test_casts_are_held_and_delayed_as_direct_messages_are(
    mesh: ProcMesh, spawn_procs: Spawn, few_are_many: None
) -> None:
    procs = spawn_procs({"gpus": 9}, name="many")
    recorder = procs.spawn("recorder", Recorder)
    recorder.note.call(0).get()
    with faults.partition(procs.slice(gpus=8)):
        answer = recorder.note.call(1)
        recorder.slice(gpus=8).note.broadcast(2)
        recorder.note.broadcast(3)
        assert recorder.slice(gpus=0).count.call_one().get(timeout=LATER) == 3
        with pytest.raises(TimeoutError):
            answer.get(timeout=0.05)
    assert answer.get(timeout=LATER).values() == [1] * 9
    assert recorder.slice(gpus=8).take.call_one().get(timeout=LATER) == [0, 1, 2, 3]


def test_a_slow_link_delays_and_keeps_the_order(mesh: ProcMesh) -> None:
    recorder = mesh.spawn("recorder", Recorder)
    recorder.note.call(-1).get()
    with faults.slow(mesh.slice(gpus=2), 0.05):
        answers = [recorder.note.call(number) for number in range(10)]
        assert not answers[0].done
        assert [answer.get(timeout=LATER).values() for answer in answers] == [
            [number] * 3 for number in range(10)
        ]
    assert recorder.take.call().get(timeout=LATER).values() == [[-1, *range(10)]] * 3


def test_lost_calls_are_told_when_the_fault_is_lifted(mesh: ProcMesh) -> None:
    recorder = mesh.spawn("recorder", Recorder)
    recorder.note.call("first").get()
    with faults.drop(mesh.slice(gpus=0)):
        answer = recorder.note.call("lost")
        recorder.slice(gpus=0).note.broadcast("lost too")
        assert recorder.slice(gpus=1).count.call_one().get(timeout=LATER) == 2
        with pytest.raises(TimeoutError):
            answer.get(timeout=0.05)
    with pytest.raises(MessageLostError, match=r"the call of note was lost on a link of workers"):
        answer.get(timeout=LATER)
    assert recorder.slice(gpus=0).take.call_one().get(timeout=LATER) == ["first"]
    assert faults.history()[-1].detail == "2 lost"


def test_lost_answers_are_told_too_and_the_endpoint_ran(mesh: ProcMesh) -> None:
    recorder = mesh.spawn("recorder", Recorder)
    recorder.note.call("first").get()
    with faults.drop(mesh.slice(gpus=0), answers=True):
        answer = recorder.slice(gpus=0).note.call_one("ran")
        with pytest.raises(TimeoutError):
            answer.get(timeout=0.05)
    with pytest.raises(MessageLostError, match="the answer was lost"):
        answer.get(timeout=LATER)
    assert recorder.slice(gpus=0).take.call_one().get(timeout=LATER) == ["first", "ran"]


def test_a_seed_loses_the_same_calls(mesh: ProcMesh, echo: Echo) -> None:
    def lost(seed: int) -> list[bool]:
        with faults.drop(mesh.slice(gpus=1), 0.5, seed=seed):
            answers = [echo.slice(gpus=1).same.call_one(n) for n in range(40)]
            echo.slice(gpus=0).rank.call_one().get(timeout=LATER)
        return [answer.exception(timeout=LATER) is not None for answer in answers]

    first = lost(1)
    assert 5 < sum(first) < 35
    assert lost(1) == first
    assert lost(2) != first


def test_faults_on_one_link_add_up_and_end_one_by_one(mesh: ProcMesh, echo: Echo) -> None:
    with faults.slow(echo, 0.01):
        with faults.partition(mesh.slice(gpus=0)):
            answer = echo.rank.call()
            with pytest.raises(TimeoutError):
                answer.get(timeout=0.05)
        assert answer.get(timeout=LATER).values() == [0, 1, 2]
    assert echo.rank.call().get(timeout=LATER).values() == [0, 1, 2]


def test_a_rank_that_dies_behind_a_partition_is_told(
    mesh: ProcMesh, echo: Echo, faults_seen: Faults
) -> None:
    with faults.partition(mesh.slice(gpus=1)):
        answer = echo.rank.call()
        faults.kill(mesh.slice(gpus=1))
        with pytest.raises(SupervisionError, match="killed by SIGKILL"):
            answer.get(timeout=LATER)
    faults_seen.take()
    assert echo.slice(gpus=0).rank.call_one().get(timeout=LATER) == 0


def test_a_mesh_behind_a_partition_can_be_stopped(mesh: ProcMesh) -> None:
    with configured(fault_injection=True, cleanup_timeout="100ms"):
        other = this_host().spawn_procs({"gpus": 2})
        other.initialized.get()
        with faults.partition(other):
            other.stop().get(timeout=LATER)


# --- consent, and what cannot be injected ---------------------------------------------------------


def test_links_of_procs_that_did_not_consent_are_left_alone(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    echo = procs.spawn("echo", Echo)
    with (
        pytest.raises(RuntimeError, match=r"configure\(fault_injection=True\)"),
        faults.partition(procs),
    ):
        pass
    with (
        configured(fault_injection=True),
        pytest.raises(RuntimeError, match="rank 0 of workers: fault injection on links is off"),
        faults.partition(procs),
    ):
        pass
    assert echo.rank.call().get(timeout=LATER).values() == [0, 1]


def test_ranks_are_told_by_nobody_but_their_owner_and_the_client(mesh: ProcMesh) -> None:
    ring, faulty = mesh.spawn("ring", Ring), mesh.spawn("faulty", Faulty)
    for what in ("kill", "partition"):
        said = ring.slice(gpus=0).inject.call_one(what, faulty.slice(gpus=1)).get(timeout=LATER)
        assert "neither owns it nor is the client" in said or "neither owns this process" in said
    assert faulty.pid.call().get(timeout=LATER).size() == 3


@pytest.mark.parametrize(
    ("inject", "error", "said"),
    [
        (lambda m: faults.partition(this_host()), ValueError, "are on one host, with no network"),  # pyright: ignore[reportArgumentType]
        (lambda m: faults.slow(this_host(), 1), ValueError, "are on one host, with no network"),  # pyright: ignore[reportArgumentType]
        (lambda m: faults.stopped(this_host()), ValueError, "are on one host"),  # pyright: ignore[reportArgumentType]
        (lambda m: faults.kill(m, signal.SIGSTOP), ValueError, r"use `with stopped\(mesh\):`"),
        (lambda m: faults.kill(m, 4711), ValueError, "4711 is not a valid Signals"),
        (lambda m: faults.kill(this_proc()), ValueError, "this program itself cannot be killed"),
        (lambda m: faults.partition(this_proc()), ValueError, "this program itself cannot"),
        (lambda m: faults.partition(m, m.slice(gpus=0)), ValueError, "on both sides of the link"),
        (lambda m: faults.slow(m, 0), ValueError, "delay=0"),
        (lambda m: faults.slow(m, float("nan")), ValueError, "delay=nan"),
        (lambda m: faults.drop(m, 0), ValueError, "fraction=0"),
        (lambda m: faults.drop(m, 1.5), ValueError, "fraction=1.5"),
        (lambda m: faults.kill("workers"), TypeError, "is not a mesh of procs or actors"),  # pyright: ignore[reportArgumentType]
    ],
)  # fmt: skip
def test_what_cannot_be_injected_is_refused_with_the_reason(
    mesh: ProcMesh, inject: Any, error: type[Exception], said: str
) -> None:
    mesh.initialized.get()

    def try_it() -> None:
        found = inject(mesh)
        with found:
            pass

    with pytest.raises(error, match=said):
        try_it()
    assert faults.history() == ()


# --- the record of injected faults ----------------------------------------------------------------


def test_what_was_injected_and_when_can_be_looked_up(mesh: ProcMesh) -> None:
    mesh.initialized.get()
    told: list[FaultInjected] = []
    end = bus.subscribe(FaultInjected, told.append)
    with faults.stopped(mesh.slice(gpus=1)), faults.slow(mesh.slice(gpus=2), 0.5):
        pass
    end()
    found = faults.history()
    assert list(found) == told
    assert [(f.kind, f.ranks, f.lifted, f.detail) for f in found] == [
        ("stop", (1,), False, "SIGSTOP"),
        ("slow", (2,), False, "0.5 s each way"),
        ("slow", (2,), True, "0.5 s each way"),
        ("stop", (1,), True, "SIGCONT"),
    ]
    assert {f.mesh for f in found} == {"workers"}
    stop, slow = found[0].number, found[1].number
    assert [f.number for f in found] == [stop, slow, slow, stop]
    assert sorted(f.at for f in found) == [f.at for f in found]


def test_a_plan_is_played(mesh: ProcMesh, echo: Echo) -> None:
    plan = faults.plan(
        3, duration=0.5, every=0.05, ranks=3, kinds=("stop", "slow", "partition"), longest=0.05
    )
    assert len(plan) > 3
    with faults.play(plan, mesh) as over:
        while not over.is_set():
            assert echo.rank.call().get(timeout=LATER).values() == [0, 1, 2]
    begun = [f for f in faults.history() if not f.lifted]
    # In the order of the plan, but that of a rank that stands still waits.
    assert sorted((f.kind, f.ranks) for f in begun) == sorted((f.kind, (f.rank,)) for f in plan)
    assert len(faults.history()) == 2 * len(plan)


def test_faults_on_links_of_a_rank_that_stands_still_begin_and_end_when_it_goes_on(
    mesh: ProcMesh, echo: Echo
) -> None:
    plan = [
        faults.PlannedFault(0.0, "slow", 1, 0.01, 0.001),
        faults.PlannedFault(0.0, "stop", 1, 0.1),
        faults.PlannedFault(0.0, "partition", 1, 0.01),
        faults.PlannedFault(0.0, "partition", 2, 0.01),
    ]
    with faults.play(plan, mesh) as over:
        over.wait(LATER)
    told = [(f.kind, f.lifted) for f in faults.history() if f.ranks == (1,)]
    assert told == [
        ("slow", False), ("stop", False), ("stop", True),
        ("slow", True), ("partition", False), ("partition", True),
    ]  # fmt: skip
    assert echo.rank.call().get(timeout=LATER).values() == [0, 1, 2]


def test_a_plan_that_is_left_early_lifts_what_lasts(mesh: ProcMesh, echo: Echo) -> None:
    plan = [faults.PlannedFault(0.0, "stop", 1, 600.0), faults.PlannedFault(600.0, "kill", 0)]
    with faults.play(plan, mesh):
        while not faults.history():
            pass
    assert echo.rank.call().get(timeout=LATER).values() == [0, 1, 2]


def test_a_plan_goes_on_when_a_fault_finds_its_mesh_stopped(
    mesh: ProcMesh, spawn_procs: Spawn
) -> None:
    mesh.initialized.get()
    mesh.stop().get(timeout=LATER)
    other = spawn_procs({"gpus": 1}, name="other")
    other.initialized.get()
    found = iter([mesh, mesh, other])
    plan = [faults.PlannedFault(0.0, kind, 0, 0.001) for kind in ("kill", "partition", "stop")]
    with faults.play(plan, lambda: next(found)) as over:
        over.wait(LATER)
    told = [(f.kind, f.mesh, f.ranks) for f in faults.history() if not f.lifted]
    assert told == [("kill", "nobody", ()), ("partition", "nobody", ()), ("stop", "other", (0,))]


def test_an_error_in_a_plan_is_raised(mesh: ProcMesh) -> None:
    with (
        pytest.raises(ValueError, match="unknown kind 'burn'; kinds are kill"),
        faults.play([faults.PlannedFault(0.0, "burn", 0)], mesh) as over,
    ):
        over.wait(LATER)
