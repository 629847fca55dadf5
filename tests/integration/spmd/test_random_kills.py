"""Trainings whose ranks are killed at random moments: the loss curve is the one without kills."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import MeshStoppedError, ProcMesh, this_host
from monarch.spmd import ElasticMesh
from monarch.supervision import Restart
from monarch.testing import faults
from tests.integration.spmd.elastic_trainers import Fitter, without_kills
from tests.integration.spmd.trainers import TORCH

pytestmark = pytest.mark.slow
LONGEST_S = 240.0  # of one recovery, on a machine that is very busy
Make = Callable[..., ElasticMesh]


class Killer(threading.Thread):
    """Kills one or two ranks at a time, at random moments after the last recovery.

    The second dies in any stage of the recovery from the first death. The state is never lost: the
    group that follows the last kill may not have noticed that one yet, but all earlier ones. So
    `spare` ranks of the group, of which one may be dead, are left alone.
    """

    def __init__(
        self, mesh: ElasticMesh, enough: Path, *, kills: int, seed: int, spare: int
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self.kills = 0
        self.error: BaseException | None = None
        self._mesh = mesh
        self._enough = enough
        self._wanted = kills
        self._spare = spare
        self._chance = random.Random(seed)
        self._never = threading.Event()

    def run(self) -> None:
        """Kill until it is enough, and have the training end then."""
        try:
            while self.kills < self._wanted:
                self._wait_for_group(ranks=self._spare + 1)
                self._pause(0.3)
                formed = self._mesh.recoveries
                most = min(2, formed[-1].ranks - self._spare)
                killed = sum(self._kill() for _ in range(self._chance.choice((1, 1, most))))
                self.kills += killed
                if killed:
                    self._wait_for_group(count=len(formed) + 1)
        except BaseException as error:
            self.error = error
        finally:
            self._enough.touch()

    def _kill(self) -> int:
        """Kill a rank, any one that is there. Returns how many have died."""
        self._pause(0.2)
        present = self._mesh.actors
        if not present:  # the only mesh is lost, and another is being spawned
            return 0
        actors = self._chance.choice(present)
        rank = self._chance.randrange(actors.extent.nelements)
        try:
            return len(faults.kill(actors.slice(gpus=rank)))
        except MeshStoppedError:  # its replica was lost a moment ago
            return 0

    def _wait_for_group(self, count: int = 1, ranks: int = 1) -> None:
        """Wait until so many groups were formed, and the last one has so many ranks."""
        # A recovery is entered when all ranks have the state and begin to run.
        for _ in range(int(LONGEST_S / 0.02)):
            formed = self._mesh.recoveries
            if len(formed) >= count and formed[-1].ranks >= ranks:
                return
            self._never.wait(0.02)
        raise TimeoutError(f"no group was formed after kill {self.kills}")

    def _pause(self, longest_s: float) -> None:
        self._never.wait(self._chance.uniform(0, longest_s))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Elastic meshes of so many ranks a replica."""
    made: list[ElasticMesh] = []

    def mesh(ranks: int, restart: Restart | None = None, **options: Any) -> ElasticMesh:
        def spawn(replica: int) -> ProcMesh:
            return this_host().spawn_procs(
                {"gpus": ranks}, name=f"replica{replica}", preload=TORCH, restart=restart
            )

        options = {"args": (str(tmp_path),), "kwargs": {"seed": 3}, **options}
        made.append(ElasticMesh(spawn, Fitter, **options))
        return made[-1]

    yield mesh
    for each in made:
        each.stop()


def trained_with_kills(mesh: ElasticMesh, folder: Path, **options: Any) -> list[int]:
    """Train while ranks are killed. Returns the sizes of the group at all steps.

    The weights and the loss curve are those of a training without kills with these sizes.
    """
    (_, begun), *_ = mesh.run("train", 0)
    killer = Killer(mesh, folder / "enough", **options)
    killer.start()
    found = mesh.run("train_until_told")
    killer.join()
    assert killer.error is None
    assert killer.kills >= options["kills"]
    step, weights, losses, sizes = found[0]
    assert all(each == found[0] for each in found)
    assert step == len(losses) == len(sizes)
    wanted, curve = without_kills(begun, sizes)
    assert losses == pytest.approx(curve, abs=1e-4)
    assert weights == pytest.approx(wanted, abs=1e-4)
    # Two deaths need one recovery or two.
    assert len(mesh.recoveries) > options["kills"] / 2
    assert not any(one.from_checkpoint for one in mesh.recoveries)
    return sizes


def test_ranks_that_are_restarted_in_their_place(make: Make, tmp_path: Path) -> None:
    # Four ranks at most lack the state: two that came back, and two that were just killed.
    mesh = make(5, Restart(at_most=200, back_off=0, longest=0))
    sizes = trained_with_kills(mesh, tmp_path, kills=200, seed=1, spare=3)
    assert set(sizes) == {5}


def test_replicas_that_go_on_without_the_lost_ones_and_take_others_in(
    make: Make, tmp_path: Path
) -> None:
    mesh = make(1, replicas=4)
    sizes = trained_with_kills(mesh, tmp_path, kills=30, seed=2, spare=2)
    assert set(sizes) <= {1, 2, 3, 4}
    assert len(set(sizes)) > 1


def test_meshes_that_are_spawned_again_take_the_state_of_ranks_that_are_left(
    make: Make, tmp_path: Path
) -> None:
    mesh = make(4)
    sizes = trained_with_kills(mesh, tmp_path, kills=10, seed=3, spare=2)
    assert set(sizes) == {4}
