"""How a death is noticed: the kernel wakes who watches; nobody looks from time to time."""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch.actor import ProcMesh, SupervisionError
from tests.conftest import Faults
from tests.fault.test_respawning import agent_of_this_process
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper

# Of x86-64: system calls that wait, and which argument says for how long at most.
WAITS = {7: 2, 232: 3, 281: 3}
FOR_EVER = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def sleeps_without_a_timer(process: psutil.Process) -> bool:
    """Whether its only thread waits, and nothing but a descriptor can wake it."""
    number, *arguments = Path(f"/proc/{process.pid}/syscall").read_text().split()
    if number == "running":
        return False
    at = WAITS.get(int(number))
    return at is not None and int(arguments[at], 16) in FOR_EVER


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="reads the system call that a process waits in, of Linux on x86-64",
)
def test_host_agent_and_zygote_sleep_until_the_kernel_tells_of_an_end(
    spawn_procs: Callable[..., ProcMesh], faults: Faults, gate: GateKeeper
) -> None:
    faulty = spawn_procs({"gpus": 2}, name="mesh").spawn("faulty", Faulty)
    pids = faulty.pid.call().get(timeout=60).values()
    answer = faulty.slice(gpus=1).hold.call_one(gate.gate)
    gate.wait_entered()
    agent = agent_of_this_process()
    (zygote,) = [child for child in agent.children() if child.children()]
    try:
        sleeps_without_a_timer(agent)
    except PermissionError as error:
        pytest.skip(f"the system call of another process cannot be read here: {error}")
    for process in (agent, zygote):
        while not sleeps_without_a_timer(process):
            os.sched_yield()  # it has something to do, or to load
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"while it ran Faulty\.hold"):
        answer.get(timeout=60)
    faults.take()
