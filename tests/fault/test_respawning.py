"""Only what died is made anew, on the same host, as often as it takes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch.actor import ProcMesh, SupervisionError, this_host
from monarch.observe import meshes
from tests.conftest import Faults
from tests.integration.actors import Echo, Mortal
from tests.integration.programs import watched


def agent_of_this_process() -> psutil.Process:
    """The host agent; this process must have no other child that has one of its own."""
    (agent,) = [child for child in psutil.Process().children() if child.children()]
    return agent


def test_fifty_times_killed_and_spawned_again_on_the_same_host(
    spawn_procs: Callable[..., ProcMesh], faults: Faults
) -> None:
    steady = spawn_procs({"gpus": 2}, name="steady").spawn("echo", Echo)
    steady.rank.call().get()
    agent = agent_of_this_process()
    (zygote,) = [child for child in agent.children() if child.children()]
    counts: list[tuple[int, int, int]] = []
    for round_ in range(50):
        procs = this_host().spawn_procs({"gpus": 2}, name="mortal")
        mortal = procs.spawn("mortal", Mortal)
        pids = mortal.pid.call().get(timeout=60).values()
        with watched(pids) as processes:
            os.kill(pids[round_ % 2], signal.SIGKILL)
            with pytest.raises(SupervisionError, match="killed by SIGKILL"):
                mortal.kill_self_on.call([round_ % 2], signal.SIGKILL).get(timeout=60)
            faults.take()
            procs.stop().get(timeout=60)
            processes.wait_all_ended()
        assert steady.rank.call().get().values() == [0, 1]
        counts.append((len(os.listdir("/proc/self/fd")), agent.num_fds(), zygote.num_fds()))
    assert agent_of_this_process().pid == agent.pid
    assert [mesh.name for mesh in meshes()] == ["steady"]
    # The first rounds may open what stays; after that nothing may grow.
    assert counts[-1] == counts[5]


def test_sockets_and_boards_of_stopped_meshes_are_gone_while_the_host_lives(
    spawn_procs: Callable[..., ProcMesh], own_base_directory: Path
) -> None:
    steady = spawn_procs(name="steady").spawn("echo", Echo)
    steady.rank.call_one().get()
    (directory,) = own_base_directory.glob("monarch-*")
    before = sorted(path.name for path in directory.iterdir())
    for _ in range(3):
        procs = spawn_procs({"gpus": 3})
        procs.spawn("echo", Echo).rank.call().get()
        assert len(list(directory.iterdir())) == len(before) + 4
        procs.stop().get(timeout=60)
        assert sorted(path.name for path in directory.iterdir()) == before
