"""Five deaths, five causes: what the host agent knows of each is told, as text and as data."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

from monarch._src.system.oom import Group
from monarch.actor import Actor, ProcMesh, RankFailure, SupervisionError, endpoint
from tests.conftest import Faults
from tests.fault.conftest import MIB, within
from tests.fault.test_respawning import agent_of_this_process
from tests.integration.failing_actors import Faulty

Spawn = Callable[..., ProcMesh]


class Hungry(Actor):
    """Takes memory until there is none."""

    @endpoint
    def eat(self, mib: int) -> int:
        eaten = [bytearray(os.urandom(1)) * MIB for _ in range(mib)]
        return len(eaten)

    @endpoint
    def starve(self, limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        bytearray(2 * limit)

    @endpoint
    def raise_as_cuda_does(self) -> None:
        class OutOfMemoryError(RuntimeError):
            """What torch raises is called so, and is a RuntimeError."""

        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    @endpoint
    def fine(self) -> str:
        return "fine"


def failure_of(error: BaseException | None) -> RankFailure:
    """The only one."""
    assert isinstance(error, SupervisionError), error
    (failure,) = error.failures
    return failure


def test_exit_segmentation_fault_and_kill_each_have_their_cause(
    spawn_procs: Spawn, faults: Faults
) -> None:
    faulty = spawn_procs({"gpus": 3}, name="mesh").spawn("faulty", Faulty)
    pids = faulty.pid.call().get().values()
    ends = [
        faulty.slice(gpus=0).exit_hard.call_one(3),
        faulty.slice(gpus=1).crash.call_one(),
        faulty.slice(gpus=2).kill_self.call_one(signal.SIGKILL),
    ]
    failures = [failure_of(end.exception(timeout=60)) for end in ends]
    assert [failure.kind for failure in failures] == ["proc died"] * 3
    assert [failure.pid for failure in failures] == pids
    exited, crashed, killed = [failure.death for failure in failures]
    assert exited is not None
    assert crashed is not None
    assert killed is not None
    assert (exited.reason, exited.exit_code, exited.signal_name) == (
        "exited with status 3",
        3,
        None,
    )
    dumped = " (core dumped)" if crashed.core_dumped else ""
    assert crashed.reason == f"killed by SIGSEGV{dumped}"
    assert (crashed.exit_code, crashed.signal_name) == (None, "SIGSEGV")
    assert (killed.reason, killed.memory) == ("killed by SIGKILL", None)
    names = ["exit_hard", "crash", "kill_self"]
    for death, name in zip((exited, crashed, killed), names, strict=True):
        assert death.endpoint == f"Faulty.{name}"
        assert death.endpoint_s is not None
        assert 0 <= death.endpoint_s <= death.ran_s


def test_one_that_was_idle_ran_nothing(spawn_procs: Spawn, faults: Faults) -> None:
    faulty = spawn_procs(name="mesh").spawn("faulty", Faulty)
    os.kill(faulty.pid.call_one().get(), signal.SIGKILL)
    death = faults.take().failures[0].death
    assert death is not None
    assert (death.endpoint, death.endpoint_s) == (None, None)


def test_a_process_that_the_kernel_kills_for_memory_is_told_as_such(
    spawn_procs: Spawn, faults: Faults, cgroup: Group
) -> None:
    procs = spawn_procs(name="mesh", bootstrap_command=within(cgroup))
    hungry = procs.spawn("hungry", Hungry)
    assert hungry.eat.call_one(1).get(timeout=60) == 1
    failure = failure_of(hungry.eat.call_one(1000).exception(timeout=60))
    faults.take()
    death = failure.death
    assert death is not None
    assert death.signal_name == "SIGKILL"
    memory = death.memory
    assert memory is not None
    assert (memory.where, memory.limit, memory.kills, memory.shared) == (
        "cgroup", 64 * MIB, 1, False,
    )  # fmt: skip
    assert memory.cgroup.endswith(cgroup._folder.name)
    assert memory.held is not None
    assert 32 * MIB < memory.held < 80 * MIB
    assert failure.message.startswith(
        "killed by SIGKILL, out of memory: the kernel's count of kills for memory in its cgroup "
    )
    assert "which may hold 64.0 MiB, rose by 1; it held " in failure.message


def test_one_that_is_killed_in_a_group_with_a_limit_was_not_out_of_memory(
    spawn_procs: Spawn, faults: Faults, cgroup: Group
) -> None:
    faulty = spawn_procs(name="mesh").spawn("faulty", Faulty)
    pid = faulty.pid.call_one().get(timeout=60)
    (cgroup._folder / "cgroup.procs").write_text(str(pid))
    failure = failure_of(faulty.kill_self.call_one(signal.SIGKILL).exception(timeout=60))
    assert failure.message == "killed by SIGKILL"
    faults.take()


def test_an_actor_that_dies_of_a_memory_error_says_what_it_held_and_may_have(
    spawn_procs: Spawn, faults: Faults
) -> None:
    hungry = spawn_procs(name="mesh").spawn("hungry", Hungry)
    hungry.starve.broadcast(2048 * MIB)
    (failure,) = faults.take().failures
    assert (failure.kind, failure.exception_type) == ("nobody waited", "MemoryError")
    assert failure.memory is not None
    assert (failure.memory.where, failure.memory.limit) == ("python", 2048 * MIB)
    assert failure.memory.held is not None
    assert failure.what.startswith("Hungry.starve on mesh died of MemoryError (out of memory: it ")
    assert " and may have 2.0 GiB) (no caller waited" in failure.what


def test_an_actor_that_dies_for_want_of_gpu_memory_says_so(
    spawn_procs: Spawn, faults: Faults
) -> None:
    hungry = spawn_procs(name="mesh").spawn("hungry", Hungry)
    hungry.raise_as_cuda_does.broadcast()
    (failure,) = faults.take().failures
    assert failure.memory is not None
    assert failure.memory.where == "cuda"
    assert failure.what == (
        "Hungry.raise_as_cuda_does on mesh died of OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 20.00 GiB. (out of GPU memory) (no caller waited for its answer)"
    )


def test_the_end_of_the_host_agent_is_another_cause_than_that_of_a_process(
    spawn_procs: Spawn, faults: Faults
) -> None:
    faulty = spawn_procs({"gpus": 2}, name="mesh").spawn("faulty", Faulty)
    faulty.pid.call().get(timeout=60)
    agent_of_this_process().kill()
    fault = faults.take()
    assert {failure.kind for failure in fault.failures} == {"host lost"}
    assert "the host agent of mesh[gpus=0] is gone: its process (pid " in str(fault)
    assert failure_of(faulty.slice(gpus=1).pid.call_one().exception(timeout=60)).kind == "host lost"
