"""Only what died is made anew, on the same host, as often as it takes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch._src.programs.agent import SPARE_TIME
from monarch.actor import ProcMesh, SupervisionError, this_host
from monarch.config import configured
from monarch.observe import meshes, snapshot
from monarch.supervision import Restart
from tests.conftest import Faults
from tests.integration.failing_actors import Faulty
from tests.integration.programs import watched
from tests.integration.sample_actors import Echo


def agent_of_this_process() -> psutil.Process:
    """The host agent; this process must have no other child that has one of its own."""
    (agent,) = [child for child in psutil.Process().children() if child.children()]
    return agent


class Holdings:
    """What this process, the host agent, the zygote and this machine hold for a session."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._agent = agent_of_this_process()
        (self._zygote,) = [child for child in self._agent.children() if child.children()]

    def counts(self) -> dict[str, object]:
        """What must be equal after as before."""
        return {
            "descriptors": [self._count_fds(p) for p in (psutil.Process(), *self._hosts())],
            "threads": [p.num_threads() for p in (psutil.Process(), *self._hosts())],
            "processes": len(self._agent.children(recursive=True)),
            "in the session directory": len(list(self._directory.iterdir())),
            "agent": self._agent.pid,
        }

    def memory(self) -> list[int]:
        """Bytes of each that are of no file. A page that a fork shares counts in both.

        So that it makes no difference when one of them writes to it, and has its own from then on.
        """
        infos = [p.memory_info() for p in (psutil.Process(), *self._hosts())]
        return [info.rss - info.shared for info in infos]

    def _hosts(self) -> tuple[psutil.Process, psutil.Process]:
        return self._agent, self._zygote

    @staticmethod
    def _count_fds(process: psutil.Process) -> int:
        return len(os.listdir(f"/proc/{process.pid}/fd"))


# More with `make stress`. What a life holds on to, 10 KiB say, shows in 500.
ROUNDS = int(os.environ.get("MONARCH_RESPAWNS", "50"))
SETTLED = 10  # the first rounds may open what stays
MOST_GROWTH = (4 << 20) + ROUNDS * 2048
# What the zygote loads when it has nothing to do, which on a full machine may be much later.
ALL_LOADED = list(SPARE_TIME)
DEATHS = ["killed", "exits", "crashes", "raises"]


def die(faulty: Faulty, how: str) -> None:
    """That one ends, in that way."""
    match how:
        case "killed":
            faulty.kill_self.broadcast(signal.SIGKILL)
        case "exits":
            faulty.exit_hard.broadcast(3)
        case "crashes":
            faulty.kill_self.broadcast(signal.SIGSEGV)
        case _:
            faulty.kill_self.broadcast("no number")  # type: ignore[arg-type]


def test_respawned_on_the_same_host_after_deaths_of_every_kind_nothing_grows(
    spawn_procs: Callable[..., ProcMesh], faults: Faults, own_base_directory: Path
) -> None:
    with configured(preload=ALL_LOADED):
        steady = spawn_procs({"gpus": 2}, name="steady").spawn("echo", Echo)
    steady.rank.call().get()
    (directory,) = own_base_directory.glob("monarch-*")
    holdings = Holdings(directory)
    before: dict[str, object] = {}
    memory: list[int] = []
    for round_ in range(ROUNDS):
        procs = this_host().spawn_procs({"gpus": 2}, name="faulty")
        faulty = procs.spawn("faulty", Faulty)
        pids = faulty.pid.call().get(timeout=60).values()
        with watched(pids) as processes:
            die(faulty.slice(gpus=round_ % 2), DEATHS[round_ % len(DEATHS)])
            faults.take()
            with pytest.raises(SupervisionError):
                faulty.pid.call().get(timeout=60)
            procs.stop().get(timeout=60)
            processes.wait_all_ended()
        assert steady.rank.call().get().values() == [0, 1]
        if round_ == SETTLED:
            before, memory = holdings.counts(), holdings.memory()
    assert [mesh.name for mesh in meshes()] == ["steady"]
    assert holdings.counts() == before
    grown = [after - b for after, b in zip(holdings.memory(), memory, strict=True)]
    assert max(grown) < MOST_GROWTH, grown


def test_restarted_in_place_after_deaths_of_every_kind_nothing_grows(
    spawn_procs: Callable[..., ProcMesh], own_base_directory: Path
) -> None:
    policy = Restart(at_most=ROUNDS + 1, within="1h", back_off=0)
    with configured(preload=ALL_LOADED):
        faulty = spawn_procs({"gpus": 3}, name="faulty", restart=policy).spawn("faulty", Faulty)
    faulty.pid.call().get(timeout=60)
    (directory,) = own_base_directory.glob("monarch-*")
    holdings = Holdings(directory)
    before: dict[str, object] = {}
    memory: list[int] = []
    for round_ in range(ROUNDS):
        one = faulty.slice(gpus=round_ % 3)
        pid = one.pid.call_one().get(timeout=60)
        with watched([pid]) as processes:
            die(one, DEATHS[round_ % len(DEATHS)])
            processes.wait_all_ended()
        # The first of these may still have gone to the life before.
        while faulty.pid.call().exception(timeout=60) is not None:
            pass
        assert one.pid.call_one().get(timeout=60) != pid
        if round_ == SETTLED:
            before, memory = holdings.counts(), holdings.memory()
    assert holdings.counts() == before
    grown = [after - b for after, b in zip(holdings.memory(), memory, strict=True)]
    assert max(grown) < MOST_GROWTH, grown
    (seen,) = [found for found in snapshot() if found.name == "faulty"]
    assert sum(row.restarts for row in seen.rows) == ROUNDS


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
