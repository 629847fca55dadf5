"""A script that fits weights in an `ElasticTraining`, for `monarch torchrun`, torchrun and python.

`elastic_script.py FOLDER [options as JSON]`. A file of the folder whose name is a place and a rank
tells that rank to die there, once; the files that its text names are made then. Each rank notes
what it does in the folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from monarch.spmd import ElasticTraining, RecoveryError
from monarch.supervision import Restart

WIDTH = 4
FOLDER = Path(sys.argv[1])
OPTIONS: dict[str, Any] = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
RANK = int(os.environ.get("RANK", "0"))
UNTIL = OPTIONS.pop("until", 12)  # None: until the file `enough` is there


def is_told(where: str) -> bool:
    """Whether the file of that place and this rank is there; removes it."""
    path = FOLDER / f"{where}-rank{RANK}"
    if not path.exists():
        return False
    for name in path.read_text().split():
        (FOLDER / name).touch()
    path.unlink()
    return True


def die_if_told(where: str) -> None:
    """Kill this process if told so."""
    if is_told(where):
        os.kill(os.getpid(), signal.SIGKILL)


def note(text: str) -> None:
    """Append a line to the record of this rank."""
    with open(FOLDER / f"record{RANK}", "a") as record:
        record.write(f"{text}\n")


class Fit:
    """Weights, and what their optimizer knows."""

    def __init__(self) -> None:
        torch.manual_seed(RANK)  # other weights on each rank: those of rank 0 count
        self.weights = torch.randn(WIDTH)
        self.momentum = torch.zeros(WIDTH)
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        die_if_told("offer")
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take all of it."""
        die_if_told("take")
        vars(self).update(state)

    def load_checkpoint(self) -> bool:
        """Take that of the last checkpoint."""
        path = FOLDER / "checkpoint"
        note("loads")
        if not path.exists():
            return False
        training.step, state = torch.load(path, weights_only=False)
        self.load_state_dict(state)
        return True


def train() -> int:
    """Fit the weights to the sum of their inputs."""
    world = training.world
    note(f"begins at {training.step} in generation {world.generation}")
    (FOLDER / f"begun{world.generation}-{RANK}").touch()
    die_if_told("begin")
    while True:
        # All ranks see it at the same step.
        is_enough = (FOLDER / "enough").exists() if UNTIL is None else training.step >= UNTIL
        enough = torch.tensor(float(is_enough))
        dist.all_reduce(enough)
        if enough:
            return training.step
        torch.manual_seed(1000 * training.step + world.rank)
        inputs = torch.randn(8, WIDTH)
        error = inputs @ fit.weights - inputs.sum(1)
        gradient = 2 * inputs.T @ error / len(inputs)
        loss = (error**2).mean()
        die_if_told(f"step{training.step}")
        if is_told(f"raise{training.step}"):
            raise ValueError("a bad batch")
        if is_told(f"exit{training.step}"):
            sys.exit(3)
        if is_told(f"hang{training.step}"):
            threading.Event().wait()
        dist.all_reduce(gradient)
        dist.all_reduce(loss)
        fit.momentum = 0.5 * fit.momentum + gradient / world.size
        fit.weights = fit.weights - 0.05 * fit.momentum
        fit.losses.append(loss.item() / world.size)
        if is_told(f"save{training.step}"):
            torch.save((training.step + 1, fit.state_dict()), FOLDER / "checkpoint")
        training.step += 1


fit = Fit()
if OPTIONS.pop("checkpoint", False):
    OPTIONS["load_checkpoint"] = fit.load_checkpoint
if "restart" in OPTIONS:
    OPTIONS["restart"] = Restart(**OPTIONS["restart"])
training = ElasticTraining({"fit": fit}, **OPTIONS)
note(f"starts in restart {os.environ.get('TORCHELASTIC_RESTART_COUNT')}")
(FOLDER / f"pid{RANK}").write_text(str(os.getpid()))
die_if_told("start")
if is_told("refuse"):
    raise ValueError("no data")
if is_told("skip"):
    sys.exit()
try:
    last = training.run(train)
except RecoveryError as error:
    note(f"cannot go on: {error}")
    raise
print(f"rank {RANK} has trained to step {last}", flush=True)
found = {"weights": fit.weights.tolist(), "losses": fit.losses, "step": last}
(FOLDER / f"result{RANK}").write_text(json.dumps(found))
die_if_told("end")
dist.barrier()
