"""Two hundred kills of a training, at random moments: its loss curve is the one without them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ProcMesh, this_host
from monarch.spmd import ElasticMesh
from monarch.supervision import Restart
from monarch.testing import faults
from tests.integration.spmd.elastic_trainers import WIDTH, Fitter
from tests.integration.spmd.trainers import TORCH

pytestmark = pytest.mark.slow
RANKS, KILLS = 5, 200
LONGEST_S = 240.0  # of one recovery, on a machine that is very busy
OFTEN = Restart(at_most=KILLS, back_off=0, longest=0)


class Killer(threading.Thread):
    """Kills one or two ranks at a time, at random moments after the last recovery.

    The second dies in any stage of the recovery from the first death. The state is never lost: the
    group that follows the last kill may not have noticed that one yet, but all earlier ones. So
    four ranks at most lack the state.
    """

    def __init__(self, mesh: ElasticMesh, enough: Path, seed: int) -> None:
        super().__init__(name="killer", daemon=True)
        self.kills = 0
        self.error: BaseException | None = None
        self._mesh = mesh
        self._enough = enough
        self._chance = random.Random(seed)
        self._never = threading.Event()

    def run(self) -> None:
        """Kill until it is enough, and have the training end then."""
        try:
            while self.kills < KILLS:
                self._pause(0.3)
                victims = self._chance.sample(range(RANKS), self._chance.choice((1, 1, 2)))
                killed = sum(map(self._kill, victims))
                self.kills += killed
                if killed:
                    self._wait_for_group(len(self._mesh.recoveries))
        except BaseException as error:
            self.error = error
        finally:
            self._enough.touch()

    def _kill(self, rank: int) -> int:
        self._pause(0.2)
        (actors,) = self._mesh.actors
        return len(faults.kill(actors.slice(gpus=rank)))

    def _wait_for_group(self, formed: int) -> None:
        # A recovery is entered when all ranks have the state and begin to run.
        for _ in range(int(LONGEST_S / 0.02)):
            if len(self._mesh.recoveries) > formed:
                return
            self._never.wait(0.02)
        raise TimeoutError(f"no group was formed after kill {self.kills}")

    def _pause(self, longest_s: float) -> None:
        self._never.wait(self._chance.uniform(0, longest_s))


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[ElasticMesh]:
    """Ranks that are restarted, however often they die."""

    def spawn(_replica: int) -> ProcMesh:
        return this_host().spawn_procs({"gpus": RANKS}, preload=TORCH, restart=OFTEN)

    with ElasticMesh(spawn, Fitter, args=(str(tmp_path),), kwargs={"seed": 3}) as made:
        yield made


def test_the_loss_curve_is_the_one_without_kills(mesh: ElasticMesh, tmp_path: Path) -> None:
    (_, begun), *_ = mesh.run("train", 0)
    killer = Killer(mesh, tmp_path / "enough", seed=1)
    killer.start()
    found = mesh.run("train_until_told")
    killer.join()
    assert killer.error is None
    assert killer.kills >= KILLS
    step, weights, losses = found[0]
    assert all(each == found[0] for each in found)
    assert step == len(losses)
    wanted, curve = without_kills(begun, step)
    assert losses == pytest.approx(curve, abs=1e-4)
    assert weights == pytest.approx(wanted, abs=1e-4)
    # Two deaths need one recovery or two.
    assert len(mesh.recoveries) > KILLS / 2
    assert not any(one.from_checkpoint for one in mesh.recoveries)


def without_kills(begun: list[float], steps: int) -> tuple[list[float], list[float]]:
    """The weights and the losses of `Fitter` from these weights on, computed here."""
    import torch

    weights, momentum = torch.tensor(begun), torch.zeros(WIDTH)
    losses: list[float] = []
    for step in range(steps):
        gradients: list[Any] = []
        loss = 0.0
        for rank in range(RANKS):
            torch.manual_seed(1000 * step + rank)
            inputs = torch.randn(8, WIDTH)
            error = inputs @ weights - inputs.sum(1)
            gradients.append(2 * inputs.T @ error / len(inputs))
            loss += (error**2).mean().item()
        momentum = 0.5 * momentum + sum(gradients) / RANKS
        weights = weights - 0.05 * momentum
        losses.append(loss / RANKS)
    found: list[float] = weights.tolist()
    return found, losses
