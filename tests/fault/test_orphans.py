"""What a rank has started ends with it, wherever that has gone; what it has not started stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch.actor import Actor, ProcMesh, endpoint, this_host
from tests.integration.programs import PATIENCE_S, watched

Spawn = Callable[..., ProcMesh]
SLEEP = "import time; time.sleep(1000)"
# Starts that in a session of its own, says its pid, and ends.
LEAVES = (
    "import subprocess, sys; "
    f"print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True, "
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
)
# The same, but stays.
STAYS = f"{LEAVES}; sys.stdout.flush(); {SLEEP}"


class Starter(Actor):
    """Starts processes in sessions of their own."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def start(self, how: str) -> list[int]:
        """The pids of what was started."""
        match how:
            case "child":
                return [self.child([sys.executable, "-c", SLEEP]).pid]
            case "child without our environment":
                return [self.child([sys.executable, "-c", SLEEP], env={}).pid]
            case "child that ignores signals":
                ignores = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
                return [self.child([sys.executable, "-c", ignores]).pid]
            case "orphan":
                done = subprocess.run(
                    [sys.executable, "-c", LEAVES],
                    stdout=subprocess.PIPE, start_new_session=True, check=True,
                )  # fmt: skip
                return [int(done.stdout)]
            case "grandchild in another session":
                child = subprocess.Popen(
                    [sys.executable, "-c", STAYS], stdout=subprocess.PIPE, start_new_session=True
                )
                assert child.stdout is not None
                return [child.pid, int(child.stdout.readline())]
            case _:
                raise AssertionError(how)

    def child(
        self, command: list[str], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A child in a session of its own that has no stream of ours."""
        none = subprocess.DEVNULL
        return subprocess.Popen(
            command, start_new_session=True, stdin=none, stdout=none, stderr=none, env=env
        )


HOW = (
    "child", "child without our environment", "child that ignores signals", "orphan",
    "grandchild in another session",
)  # fmt: skip


def lives(pid: int) -> bool:
    """Whether that process does."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", HOW)
def test_nothing_that_a_rank_has_started_outlives_its_stop(spawn_procs: Spawn, how: str) -> None:
    procs = spawn_procs({"gpus": 1})
    started = procs.spawn("starter", Starter).start.call_one(how).get(PATIENCE_S)
    with watched(started) as processes:
        procs.stop().get(PATIENCE_S)
        processes.wait_all_ended()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.usefixtures("faults")
def test_nothing_that_a_rank_has_started_outlives_its_death(spawn_procs: Spawn, how: str) -> None:
    starter = spawn_procs({"gpus": 2}).spawn("starter", Starter)
    one, other = starter.slice(gpus=0), starter.slice(gpus=1)
    started = one.start.call_one(how).get(PATIENCE_S)
    others = other.start.call_one(how).get(PATIENCE_S)
    with watched(started) as processes:
        os.kill(one.pid.call_one().get(PATIENCE_S), signal.SIGKILL)
        processes.wait_all_ended()
    assert all(lives(pid) for pid in others), "what another rank has started is not its"
    other.pid.call_one().get(PATIENCE_S)


@pytest.mark.parametrize("how", HOW)
def test_nor_that_of_a_rank_that_is_a_program_of_its_own(how: str) -> None:
    procs = this_host().with_python_executable(sys.executable).spawn_procs({"gpus": 1})
    started = procs.spawn("starter", Starter).start.call_one(how).get(PATIENCE_S)
    with watched(started) as processes:
        procs.stop().get(PATIENCE_S)
        processes.wait_all_ended()


def test_what_a_preloaded_module_has_started_is_no_ranks(
    spawn_procs: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts_on_import.py").write_text(
        "import subprocess, sys\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(1000)']\n"
        "pids = [subprocess.Popen(sleep, start_new_session=new).pid for new in (False, True)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    procs = spawn_procs({"gpus": 1}, preload=["starts_on_import"])
    started = procs.spawn("reader", PreloadReader).pids.call_one().get(PATIENCE_S)
    try:
        procs.stop().get(PATIENCE_S)
        spawn_procs({"gpus": 1}).stop().get(PATIENCE_S)
        assert all(lives(pid) for pid in started)
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)


class PreloadReader(Actor):
    """Says what its preloaded module has started."""

    @endpoint
    def pids(self) -> list[int]:
        import starts_on_import  # pyright: ignore[reportMissingImports]

        return starts_on_import.pids  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
