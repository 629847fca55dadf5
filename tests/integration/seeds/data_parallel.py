"""Data-parallel training: a mesh of trainers in step, and controllers that all of them share."""

from __future__ import annotations

import math
import random

from monarch.actor import (
    Accumulator,
    Actor,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    this_host,
)

Batch = list[tuple[float, float]]


class Loader(Actor):
    """Hands out batches; one for all."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.handed_out = 0

    @endpoint
    def next_batch(self, size: int) -> Batch:
        self.handed_out += 1
        return [(x, 3 * x + 1) for x in (self.draw.uniform(-1, 1) for _ in range(size))]

    @endpoint
    def count(self) -> int:
        return self.handed_out


class Journal(Actor):
    """What the trainers have to say."""

    def __init__(self) -> None:
        self.losses: dict[int, list[float]] = {}

    @endpoint
    def note(self, step: int, loss: float) -> None:
        self.losses.setdefault(step, []).append(loss)

    @endpoint
    def mean(self, step: int) -> tuple[int, float]:
        losses = self.losses[step]
        return len(losses), sum(losses) / len(losses)


class Trainer(Actor):
    """One replica of the model y = ax + b."""

    def __init__(self) -> None:
        self.a = self.b = 0.0
        self.loader = get_or_spawn_controller("loader", Loader, 7).get()
        self.journal = get_or_spawn_controller("journal", Journal).get()

    @endpoint
    def gradients(self, step: int, size: int) -> tuple[float, float]:
        batch = self.loader.next_batch.call_one(size).get()
        errors = [(x, self.a * x + self.b - y) for x, y in batch]
        self.journal.note.call_one(step, sum(e * e for _, e in errors) / size).get()
        return sum(2 * e * x for x, e in errors) / size, sum(2 * e for _, e in errors) / size

    @endpoint
    def apply(self, da: float, db: float, rate: float) -> None:
        self.a -= rate * da
        self.b -= rate * db

    @endpoint
    def model(self) -> tuple[str, float, float]:
        return str(current_rank()), round(self.a, 2), round(self.b, 2)


def add(so_far: tuple[float, float], each: tuple[float, float]) -> tuple[float, float]:
    return so_far[0] + each[0], so_far[1] + each[1]


def main() -> None:
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 2})
    trainers = procs.spawn("trainers", Trainer)
    total = Accumulator(trainers.gradients, (0.0, 0.0), add)
    for step in range(60):
        da, db = total.accumulate(step, 16).get()
        trainers.apply.broadcast(da / len(trainers), db / len(trainers), 0.4)
    for place, a, b in trainers.model.call().get().values():
        print(place, a, b)

    loader = get_or_spawn_controller("loader", Loader, 8).get()
    journal = get_or_spawn_controller("journal", Journal).get()
    print("batches:", loader.count.call_one().get())
    first, last = (journal.mean.call_one(step).get() for step in (0, 59))
    print("told:", first[0], last[0], "better:", last[1] < first[1] and math.isfinite(last[1]))


if __name__ == "__main__":
    main()
