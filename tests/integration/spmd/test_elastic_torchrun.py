"""Scripts under `monarch torchrun` that train on when ranks are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, HostMesh, SupervisionError
from monarch.observe import meshes
from monarch.spmd import RecoveryError, torchrun
from tests.integration.commands import monarch
from tests.integration.spmd.elastic_trainers import WIDTH, without_kills

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).parent / "elastic_script.py")
STEPS = 12
LONGEST_S = 240.0  # of one recovery, on a machine that is very busy


@pytest.fixture(autouse=True)
def no_processes_left() -> Any:
    """Each run ends its ranks."""
    yield
    assert meshes() == []
    assert [one.name for one in threading.enumerate() if one.name == "monarch-elastic-script"] == []


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Tell ranks where to die, once each."""

    def write(*places: str) -> None:
        for place in places:
            (tmp_path / place).touch()

    return write


def train(folder: Path, ranks: int = 2, *words: str, **options: Any) -> None:
    """Run the script on so many ranks. `words` are options of torchrun."""
    own = [str(folder), json.dumps(options)]
    torchrun(["--nproc-per-node", str(ranks), *words, SCRIPT, *own])


def results(folder: Path, ranks: int = 2) -> list[Any]:
    """What each rank has at the end."""
    return [json.loads((folder / f"result{rank}").read_text()) for rank in range(ranks)]


def record(folder: Path, rank: int) -> list[str]:
    """What a rank has done, over all its processes."""
    return (folder / f"record{rank}").read_text().splitlines()


def assert_as_without_kills(folder: Path, ranks: int = 2, step: int | None = STEPS) -> None:
    """All ranks have the weights and the loss curve of a training without kills."""
    import torch

    found = results(folder, ranks)
    assert all(each == found[0] for each in found)
    torch.manual_seed(0)
    begun: list[float] = torch.randn(WIDTH).tolist()
    steps = len(found[0]["losses"])
    assert steps == found[0]["step"] == (steps if step is None else step)
    weights, losses = without_kills(begun, [ranks] * steps)
    assert found[0]["losses"] == pytest.approx(losses, abs=1e-4)
    assert found[0]["weights"] == pytest.approx(weights, abs=1e-4)


# --- one death after the other --------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_comes_back_and_the_other_goes_on(
    tmp_path: Path, tell: Callable[..., None], capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    tell(f"step5-rank{rank}")
    train(tmp_path)
    assert_as_without_kills(tmp_path)
    first, again = "begins at 0 in generation 1", "begins at 5 in generation 2"
    start = "starts in restart 0"
    assert record(tmp_path, rank) == [start, first, start, again]
    assert record(tmp_path, 1 - rank) == [start, first, again]  # its process is the same
    told = capsys.readouterr().err
    assert f"torchrun[ranks={rank}]" in told
    assert "died while it ran the training: killed by SIGKILL" in told
    assert "the training goes on with 2 ranks from step 5, " in told


def test_the_command_shows_the_output_of_a_rank_0_that_came_back(
    tmp_path: Path, tell: Callable[..., None]
) -> None:
    tell("step5-rank0")
    status, out, err = monarch("torchrun", "--nproc-per-node", "2", SCRIPT, str(tmp_path))
    assert status == 0, err
    assert sorted(out.splitlines()) == [
        f"[torchrun ranks={rank}] rank {rank} has trained to step {STEPS}" for rank in range(2)
    ]
    assert len(err.splitlines()) == 1
    assert err.startswith("monarch torchrun: the training goes on with 2 ranks from step 5, ")
    assert "torchrun[ranks=0]" in err


def test_each_rank_may_die_in_turn(tmp_path: Path, tell: Callable[..., None]) -> None:
    tell("step2-rank0", "step4-rank2", "step6-rank1", "step8-rank0")
    train(tmp_path, 3)
    assert_as_without_kills(tmp_path, 3)
    assert record(tmp_path, 1)[-1] == "begins at 8 in generation 5"


def test_two_ranks_that_are_killed_at_once_come_back(
    tmp_path: Path, tell: Callable[..., None]
) -> None:
    tell("step5-rank0", "step5-rank1")
    train(tmp_path, 3)
    assert_as_without_kills(tmp_path, 3)


@pytest.mark.parametrize("place", ["start-rank1", "take-rank1", "offer-rank0", "begin-rank0"])
def test_a_rank_may_die_in_the_recovery_from_a_death(tmp_path: Path, place: str) -> None:
    (tmp_path / "step5-rank1").write_text(place)
    train(tmp_path, 3)
    assert_as_without_kills(tmp_path, 3)
    assert not (tmp_path / place).exists()


def test_thirty_kills_at_random_moments_leave_the_loss_curve_as_it_is(tmp_path: Path) -> None:
    killer = Killer(tmp_path, ranks=5, kills=30, seed=4)
    killer.start()
    restart = {"at_most": 30, "back_off": 0, "longest": 0}
    try:
        train(tmp_path, 5, until=None, restart=restart)
    finally:
        killer.end.set()
        killer.join()
    assert killer.error is None
    assert killer.kills >= 30
    assert_as_without_kills(tmp_path, 5, step=None)


class Killer(threading.Thread):
    """Kills one or two ranks at a time, at random moments after the last recovery.

    Four ranks at most lack the state: two that came back, and two that were just killed.
    """

    def __init__(self, folder: Path, *, ranks: int, kills: int, seed: int) -> None:
        super().__init__(name="killer", daemon=True)
        self.kills = 0
        self.error: BaseException | None = None
        self.end = threading.Event()
        self._folder = folder
        self._ranks = ranks
        self._wanted = kills
        self._chance = random.Random(seed)

    def run(self) -> None:
        """Kill until it is enough, and have the training end then."""
        try:
            while self.kills < self._wanted:
                generation = self.wait_for_group()
                self.end.wait(self._chance.uniform(0, 0.3))
                victims = self._chance.sample(range(self._ranks), self._chance.choice((1, 1, 2)))
                for rank in victims:
                    self.kill(rank)
                self.wait_for_group(behind=generation)
        except BaseException as error:
            self.error = error
        finally:
            (self._folder / "enough").touch()

    def kill(self, rank: int) -> None:
        """Kill the present process of a rank, if there is one."""
        self.end.wait(self._chance.uniform(0, 0.2))
        try:
            os.kill(int((self._folder / f"pid{rank}").read_text()), signal.SIGKILL)
        except ProcessLookupError:  # the script of the next process has not begun
            return
        self.kills += 1

    def wait_for_group(self, behind: int = 0) -> int:
        """Wait until all ranks train in a generation later than that one; returns the last."""
        for _ in range(int(LONGEST_S / 0.02)):
            begun = [path.name.removeprefix("begun") for path in self._folder.glob("begun*")]
            counts = [int(name.split("-")[0]) for name in begun]
            whole = [each for each in set(counts) if counts.count(each) == self._ranks]
            if max(whole, default=0) > behind:
                return max(whole)
            if self.end.wait(0.02):
                raise RuntimeError("the run has ended")
        raise TimeoutError(f"no group was formed after kill {self.kills}")


def test_a_signal_to_the_command_ends_ranks_that_train(tmp_path: Path) -> None:
    words = ["torchrun", "--nproc-per-node", "2", SCRIPT, str(tmp_path), '{"until": null}']
    path = os.pathsep.join(p for p in sys.path if p)
    command = subprocess.Popen(
        [sys.executable, "-m", "monarch", *words], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    killer = Killer(tmp_path, ranks=2, kills=1, seed=0)
    killer.wait_for_group()
    killer.kill(1)
    killer.wait_for_group(behind=1)
    command.terminate()
    _, err = command.communicate(timeout=LONGEST_S)
    assert command.returncode == 128 + signal.SIGTERM
    assert err.splitlines()[-1] == "monarch torchrun: SIGTERM has ended the run"
    for rank in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"pid{rank}").read_text()), 0)


# --- where it cannot go on ------------------------------------------------------------------------


def test_if_all_are_dead_the_error_says_what_was_lost(
    tmp_path: Path, tell: Callable[..., None]
) -> None:
    tell("step5-rank0", "step5-rank1")
    with pytest.raises(RecoveryError, match=r"no rank is left that has all of the state.*SIGKILL"):
        train(tmp_path)
    # The processes that came back get the error too.
    assert record(tmp_path, 0)[-1].startswith("cannot go on: no rank is left")


def test_if_all_are_dead_max_restarts_begins_again(
    tmp_path: Path, tell: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    tell("step5-rank0", "step5-rank1")
    train(tmp_path, 2, "--max-restarts", "1")
    assert_as_without_kills(tmp_path)
    assert record(tmp_path, 0)[-2:] == ["starts in restart 1", "begins at 0 in generation 1"]
    assert "monarch torchrun: restart 1 of 1" in capsys.readouterr().err


def test_if_all_are_dead_all_load_the_checkpoint(tmp_path: Path, tell: Callable[..., None]) -> None:
    tell("save3-rank0", "step6-rank0", "step6-rank1")
    train(tmp_path, checkpoint=True)
    assert_as_without_kills(tmp_path)
    for rank in range(2):
        lines = record(tmp_path, rank)
        assert lines[1:3] == ["loads", "begins at 0 in generation 1"]
        assert lines[-2] == "loads"
        assert lines[-1].startswith("begins at 4 in generation ")


def test_a_rank_that_may_not_come_back_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "step3-rank1").write_text("start-rank1")
    with pytest.raises(RecoveryError) as raised:
        train(tmp_path, restart={"at_most": 1})
    assert "a rank is lost for good: torchrun[ranks=1]" in str(raised.value)
    assert "State that is left: that of step 3 on torchrun[ranks=0]" in str(raised.value)
    assert record(tmp_path, 0)[-1].startswith("cannot go on: a rank is lost for good")


def test_a_death_before_all_have_come_to_the_training_ends_the_run(
    tmp_path: Path, tell: Callable[..., None]
) -> None:
    tell("start-rank1")
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        train(tmp_path)


def test_a_death_after_the_training_ends_the_run(tmp_path: Path, tell: Callable[..., None]) -> None:
    tell("end-rank1")
    with pytest.raises(SupervisionError, match="killed by SIGKILL") as raised:
        train(tmp_path)
    assert raised.value.failures[0].restarted == 0
    assert results(tmp_path)[1]["step"] == STEPS


# --- errors of the script -------------------------------------------------------------------------


def test_an_error_of_the_function_comes_out_of_run(
    tmp_path: Path, tell: Callable[..., None]
) -> None:
    tell("raise5-rank1")
    with pytest.raises(ActorError) as raised:
        train(tmp_path)
    assert isinstance(raised.value.exception, ValueError)
    assert [failure.rank for failure in raised.value.failures] == [1]
    assert "the script on torchrun[ranks=1] raised ValueError: a bad batch" in str(raised.value)


def test_an_exit_in_the_function_ends_the_run(tmp_path: Path, tell: Callable[..., None]) -> None:
    tell("exit5-rank1")
    with pytest.raises(ActorError, match="exited with 3"):
        train(tmp_path)


def test_a_rank_that_does_not_train_is_an_error(tmp_path: Path, tell: Callable[..., None]) -> None:
    tell("skip-rank1")
    with pytest.raises(RecoveryError, match="a rank has ended its script, and the others wait"):
        train(tmp_path)


def test_a_script_that_fails_when_it_comes_back_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "step5-rank1").write_text("refuse-rank1")
    with pytest.raises(ActorError, match=r"ranks=1\] raised ValueError: no data"):
        train(tmp_path)


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("dist.init_process_group('gloo')", "the script has made a process group"),
        ("training.run(lambda: None)", "run() has been called already"),
    ],
)
def test_what_a_script_may_not_do_is_one_error(tmp_path: Path, before: str, text: str) -> None:
    source = Path(SCRIPT).read_text().replace("try:\n    last", f"{before}\ntry:\n    last")
    with pytest.raises(ActorError, match="raised RuntimeError") as raised:
        torchrun(["--nproc-per-node", "2", str(tmp_path)], source=source)
    assert text in str(raised.value)


# --- hangs, hosts, other launchers ----------------------------------------------------------------


def test_a_rank_that_hangs_is_killed_and_comes_back(
    tmp_path: Path, tell: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    tell("hang5-rank1")
    train(tmp_path, step_within="3s")
    assert_as_without_kills(tmp_path)
    assert "made no step for" in capsys.readouterr().err


def test_a_rank_of_another_host_comes_back(
    two_hosts: HostMesh, tmp_path: Path, tell: Callable[..., None]
) -> None:
    tell("step3-rank0", "step6-rank3")
    torchrun(["--nproc-per-node", "2", SCRIPT, str(tmp_path)], hosts=two_hosts)
    assert_as_without_kills(tmp_path, 4)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_script_runs_without_monarch_torchrun(tmp_path: Path, ranks: int) -> None:
    python = [sys.executable]
    if ranks == 2:
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join(p for p in sys.path if p)
    subprocess.run(
        [*python, SCRIPT, str(tmp_path)], check=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert_as_without_kills(tmp_path, ranks)
