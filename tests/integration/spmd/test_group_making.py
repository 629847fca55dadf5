"""A rank that is lost while ranks make a process group ends the making for all others.

The time-outs of these groups are half an hour, so a rank that stops waiting was told.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, ProcMesh, RankFailure, SupervisionError
from monarch.spmd import setup_torch_elastic_env
from monarch.supervision import Restart
from tests.conftest import Faults
from tests.integration.commands import monarch
from tests.integration.spmd.conftest import Trainers, on
from tests.integration.spmd.group_makers import KINDS, GroupMaker, Kind, Moment
from tests.integration.spmd.trainers import TORCH

PATIENCE_S = 60
RANKS = 4
DIED = r"^makers\[gpus={rank}\] \(pid \d+\) died while"


@pytest.fixture
def makers(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Four ranks, of which one that dies is started again."""
    restart = Restart(at_most=200, back_off=0, longest=0)
    return spawn_procs({"gpus": RANKS}, name="makers", preload=TORCH, restart=restart)


def begin(procs: ProcMesh, actors: Any, kind: Kind = "new_group") -> None:
    """Have all ranks make a default group, unless those of that kind need another store."""
    setup_torch_elastic_env(procs)
    if kind == "environment":
        actors.leave.call().get(timeout=PATIENCE_S)
        return
    assert list(actors.begin.call().get(timeout=PATIENCE_S).values()) == [RANKS] * RANKS


def failures_of(
    actors: Any, folder: Path, kind: Kind, lost: int, moment: Moment, seed: int = 0
) -> dict[int, RankFailure]:
    """The failure of each rank when rank `lost` is lost while all make groups of that kind."""
    found: dict[int, RankFailure] = {}
    for answer in actors.make_until_lost.stream(kind, lost, moment, seed, str(folder)):
        with pytest.raises((ActorError, SupervisionError)) as raised:
            answer.get(timeout=PATIENCE_S)
        found |= {failure.rank: failure for failure in raised.value.failures}
    return found


def assert_told(found: dict[int, RankFailure], lost: int, text: str) -> None:
    assert sorted(found) == list(range(RANKS))
    for rank, failure in found.items():
        if rank != lost:
            assert failure.exception_type == "CollectiveError", failure.what
            assert re.search(text, failure.message), failure.message


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_dies_while_groups_are_made_ends_the_making_on_all_others(
    makers: ProcMesh, tmp_path: Path, kind: Kind
) -> None:
    actors = on(makers, GroupMaker)
    moments: tuple[Moment, ...] = ("before", "connects", "random", "random")
    for seed, moment in enumerate(moments):
        begin(makers, actors, kind)
        lost = seed % RANKS
        found = failures_of(actors, tmp_path, kind, lost, moment, seed)
        assert_told(found, lost, DIED.format(rank=lost))
    begin(makers, actors)


@pytest.mark.parametrize("kind", ["new_group", "device_mesh"])
def test_it_ends_the_making_of_groups_in_a_group_of_the_runtime(
    trainers: Trainers, faults: Faults, tmp_path: Path, kind: Kind
) -> None:
    procs = trainers(gpus=RANKS)
    procs.init_process_group()
    actors = on(procs, GroupMaker)
    found = failures_of(actors, tmp_path, kind, 3, "connects")
    assert_told(found, 3, r"^trainers\[gpus=3\] \(pid \d+\) died while")
    rest = procs.slice(gpus=slice(0, 3))
    rest.init_process_group()
    sums = actors.slice(gpus=slice(0, 3)).add.call().get(timeout=PATIENCE_S)
    assert list(sums.values()) == [3.0] * 3


@pytest.mark.parametrize("kind", ["new_group", "environment", "with_barrier"])
def test_a_rank_that_raises_instead_ends_the_making_on_all_others(
    makers: ProcMesh, tmp_path: Path, kind: Kind
) -> None:
    actors = on(makers, GroupMaker)
    begin(makers, actors, kind)
    found = failures_of(actors, tmp_path, kind, 2, "raises")
    assert found[2].exception_type == "ValueError"
    assert_told(
        found, 2, r"makers\[gpus=2\] raised ValueError: a bad batch .* did not come to make process"
    )
    begin(makers, actors)


def test_the_ranks_that_are_left_make_a_group_of_their_own(
    trainers: Trainers, faults: Faults, tmp_path: Path
) -> None:
    procs = trainers(gpus=RANKS)
    setup_torch_elastic_env(procs)
    actors = on(procs, GroupMaker)
    failures_of(actors, tmp_path, "environment", 3, "connects")
    rest = procs.slice(gpus=slice(0, 3))
    actors.slice(gpus=slice(0, 3)).leave.call().get(timeout=PATIENCE_S)
    setup_torch_elastic_env(rest)
    sums = actors.slice(gpus=slice(0, 3)).begin.call().get(timeout=PATIENCE_S)
    assert list(sums.values()) == [3.0] * 3


SCRIPT = """
import os, random, signal, sys, threading
from pathlib import Path
import torch.distributed as dist

into, rank, seed = Path(sys.argv[1]), os.environ["RANK"], int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: (into / f"ended{rank}").touch())
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
if rank == "1":
    if seed < 0:
        die()
    threading.Timer(random.Random(seed).uniform(0, 0.05), die).start()
try:
    dist.init_process_group("gloo")
    while True:
        dist.new_group()
except RuntimeError as error:
    (into / rank).write_text(f"{type(error).__name__}: {error}")
    while not (into / f"ended{rank}").exists():
        signal.pause()
"""


def assert_run_ends(folder: Path, seed: int) -> None:
    """Run the script; a death ends the making, and the run then ends the ranks as torchrun does."""
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    status, _, err = monarch(
        "torchrun", "--nproc-per-node", "4", str(script), str(folder), str(seed)
    )
    assert status == 1
    assert "torchrun[ranks=1]" in err
    assert "killed by SIGKILL" in err
    assert "CollectiveError" not in err
    told = {name: (folder / name).read_text() for name in ("0", "2", "3")}
    for text in told.values():
        assert re.match(r"CollectiveError: torchrun\[ranks=1\] \(pid \d+\) died", text), told
    assert all((folder / f"ended{rank}").exists() for rank in (0, 2, 3))


@pytest.mark.parametrize("seed", [-1, 0])
def test_a_script_of_torchrun_is_told_and_gets_sigterm(tmp_path: Path, seed: int) -> None:
    assert_run_ends(tmp_path / "run", seed)


# --- many random moments --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_death_at_any_moment_ends_the_making(
    makers: ProcMesh, tmp_path: Path, kind: Kind
) -> None:
    actors = on(makers, GroupMaker)
    for seed in range(40):
        begin(makers, actors, kind)
        lost = seed % RANKS
        found = failures_of(actors, tmp_path, kind, lost, "random", 100 + seed)
        assert_told(found, lost, DIED.format(rank=lost))
    begin(makers, actors)


@pytest.mark.slow
def test_a_death_at_any_moment_ends_the_run_of_a_script(tmp_path: Path) -> None:
    for seed in range(10):
        assert_run_ends(tmp_path / str(seed), seed)
