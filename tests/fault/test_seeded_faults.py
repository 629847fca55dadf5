"""Ten faults, each seeded in one of four ranks: the first line of the case names the culprit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future as Waits
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from monarch._src.system.oom import Group
from monarch.actor import Actor, ActorError, ProcMesh, attach_to_workers, context, endpoint
from monarch.config import configured
from monarch.observe import CaseFile, explain
from monarch.testing import faults as inject
from tests.conftest import Faults
from tests.fault.conftest import allow, within
from tests.integration.failing_actors import Faulty
from tests.integration.gates import Gate, GateKeeper
from tests.workers import PATIENCE_S, TRUST_ALL, workers

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]
WaitFor = Callable[[Any], "Waits[Any]"]
CULPRIT = "trainers[gpus=2]"


class Trainer(Actor):
    """Rank 2 is the culprit of each fault."""

    def __init__(self) -> None:
        self.is_culprit = context().actor_instance.rank.rank == 2

    @endpoint
    def step(self) -> None:
        pass

    @endpoint
    def straggle(self, gate: Gate) -> None:
        if self.is_culprit:
            self.read_slowly(gate)

    def read_slowly(self, gate: Gate) -> None:
        gate.pass_through()

    @endpoint
    def join(self, file: str) -> None:
        from torch import distributed  # too large for a test with little memory

        rank = context().actor_instance.rank.rank
        distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=4)

    @endpoint
    def reduce(self, gate: Gate) -> None:
        from torch import distributed, ones

        if self.is_culprit:
            self.read_slowly(gate)
        distributed.all_reduce(ones(1))

    @endpoint
    def leave(self) -> None:
        from torch import distributed

        distributed.destroy_process_group()

    @endpoint
    def spin(self, until: str) -> None:
        while self.is_culprit and not os.path.exists(until):
            pass

    @endpoint
    def save(self) -> None:
        if self.is_culprit:
            with open("/dev/full", "wb") as file:
                file.write(b"weights")

    @endpoint
    def eat(self, mib: int) -> int:
        return len([bytearray(os.urandom(1)) * (1 << 20) for _ in range(mib)])

    @endpoint
    def ask(self, other: Any, back: Any, depth: int) -> int:
        if not depth:
            return 0
        with ThreadPoolExecutor(1) as pool:  # else the runtime would end the deadlock
            return pool.submit(other.ask.call_one(back, other, depth - 1).get).result()


class Loader(Actor):
    """Its constructor stands at a gate in rank 2."""

    def __init__(self, gate: Gate) -> None:
        if context().actor_instance.rank.rank == 2:
            gate.pass_through()

    @endpoint
    def step(self) -> None:
        pass


@pytest.fixture
def mesh(spawn_procs: Spawn) -> ProcMesh:
    return spawn_procs({"gpus": 4}, name="trainers")


@pytest.fixture
def trainers(mesh: ProcMesh) -> Any:
    made = mesh.spawn("trainer", Trainer)
    made.step.call().get(PATIENCE_S)
    return made


@pytest.fixture
def wait_for(recorded_faults: Faults) -> Iterator[WaitFor]:
    """Have a thread wait for an answer, as the program of a user does."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda answer: pool.submit(answer.get, PATIENCE_S)


def case_of(expected: str) -> CaseFile:
    """The case file when its first line has that text: an agent hears of things a little later."""
    case = explain(PATIENCE_S)
    for _ in range(10):
        if expected in case.verdict:
            break
        case = explain(PATIENCE_S)
    assert expected in case.verdict, str(case)
    return case


def test_a_deadlock(trainers: Any, mesh: ProcMesh, faults: Faults, wait_for: WaitFor) -> None:
    one, other = trainers.slice(gpus=1), trainers.slice(gpus=2)
    answer = wait_for(one.ask.call_one(other, one, 2))
    case = case_of("wait for each other, in this order")
    assert case.cycles[0].procs == ["trainers[gpus=1]", CULPRIT]
    mesh.kill()
    assert answer.exception(PATIENCE_S) is not None


def test_a_straggler(trainers: Any, gate: GateKeeper, wait_for: WaitFor) -> None:
    answer = wait_for(trainers.straggle.call(gate.gate))
    gate.wait_entered()
    case = case_of(f"1 proc waits for {CULPRIT}, which runs Trainer.straggle")
    assert any("read_slowly" in frame for group in case.stacks for frame in group.frames)
    gate.open()
    answer.result(PATIENCE_S)


def test_a_kill_for_want_of_memory(cgroup: Group, spawn_procs: Spawn, faults: Faults) -> None:
    allow(cgroup, 256)
    mesh = spawn_procs({"gpus": 4}, name="trainers", bootstrap_command=within(cgroup))
    trainers = mesh.spawn("trainer", Trainer)
    trainers.step.call().get(PATIENCE_S)
    answer = trainers.slice(gpus=2).eat.call_one(1000)
    case = case_of(f"{CULPRIT} failed first: ")
    assert "out of memory" in case.failures[0].what
    assert answer.exception(PATIENCE_S) is not None
    faults.take()


def test_a_host_that_is_cut_off() -> None:
    with workers(2) as (first, second):
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[first.address, second.address])
        mesh = hosts.spawn_procs({"gpus": 2}, name="trainers")
        trainers = mesh.spawn("trainer", Trainer)
        trainers.step.call().get(PATIENCE_S)
        cut = explain(PATIENCE_S, stacks=False)
        second.process.send_signal(signal.SIGSTOP)
        try:
            case = explain(2.0, stacks=False)
        finally:
            second.process.send_signal(signal.SIGCONT)
        assert cut.missing == []
        assert case.verdict.startswith("a host does not answer: ")
        assert case.missing[0].where in case.verdict
        mesh.stop().get(PATIENCE_S)


def test_a_lost_message(spawn_procs: Spawn, wait_for: WaitFor) -> None:
    with configured(fault_injection=True):
        mesh = spawn_procs({"gpus": 4}, name="trainers")
        trainers = mesh.spawn("trainer", Trainer)
        trainers.step.call().get(PATIENCE_S)
        with inject.drop(mesh.slice(gpus=2)):
            answer = wait_for(trainers.step.call())
            case = case_of(f"waits for {CULPRIT} to answer ")
            assert [one.at_callee for one in case.waits] == ["unknown"]
        with pytest.raises(Exception, match="was lost on a link"):
            answer.result(PATIENCE_S)


def test_a_collective_that_one_rank_has_not_entered(
    trainers: Any, gate: GateKeeper, tmp_path: Path, wait_for: WaitFor
) -> None:
    trainers.join.call(str(tmp_path / "store")).get(PATIENCE_S)
    answer = wait_for(trainers.reduce.call(gate.gate))
    gate.wait_entered()
    case = case_of(f"the stack of {CULPRIT} differs from the others'")
    (odd,) = [group for group in case.stacks if group.odd]
    assert any("read_slowly" in frame for frame in odd.frames)
    gate.open()
    answer.result(PATIENCE_S)
    trainers.leave.call().get(PATIENCE_S)


def test_a_disk_that_is_full(trainers: Any) -> None:
    answer = trainers.save.call()
    with pytest.raises(ActorError, match="No space left on device"):
        answer.get(PATIENCE_S)
    case_of(f"no process has failed; {CULPRIT} raised 1 error in trainer.save")


def test_a_constructor_that_is_stuck(mesh: ProcMesh, gate: GateKeeper, wait_for: WaitFor) -> None:
    loaders = mesh.spawn("loaders", Loader, gate.gate)
    answer = wait_for(loaders.step.call())
    gate.wait_entered()
    case_of(f"waits for {CULPRIT}, which runs Loader.__init__")
    gate.open()
    answer.result(PATIENCE_S)


def test_a_crash_in_c(mesh: ProcMesh, faults: Faults) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    answer = faulty.slice(gpus=2).crash.call_one()
    case_of(f"{CULPRIT} failed first: ")
    assert "SIGSEGV" in explain(PATIENCE_S, stacks=False).failures[0].what
    assert answer.exception(PATIENCE_S) is not None
    faults.take()


def test_a_busy_loop(trainers: Any, tmp_path: Path, wait_for: WaitFor) -> None:
    end = tmp_path / "end"
    answer = wait_for(trainers.spin.call(str(end)))
    case = case_of(f"1 proc waits for {CULPRIT}, which runs Trainer.spin")
    assert any("spin" in frame for group in case.stacks for frame in group.frames)
    end.touch()
    answer.result(PATIENCE_S)
