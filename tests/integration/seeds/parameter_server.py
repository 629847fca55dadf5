"""Parameter server: workers pull weights and push gradients, each at its own pace."""

from __future__ import annotations

import random

from monarch.actor import Actor, current_rank, endpoint, this_host

TRUTH = [2.0, -3.0, 0.5]


def dot(left: list[float], right: list[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))


class ParameterServer(Actor):
    """Holds the weights."""

    def __init__(self, size: int, rate: float) -> None:
        self.weights = [0.0] * size
        self.rate = rate
        self.updates = 0

    @endpoint
    def pull(self) -> list[float]:
        return self.weights

    @endpoint
    def push(self, gradient: list[float]) -> int:
        pairs = zip(self.weights, gradient, strict=True)
        self.weights = [weight - self.rate * slope for weight, slope in pairs]
        self.updates += 1
        return self.updates


class Worker(Actor):
    """Has a share of the data, which never leaves it."""

    def __init__(self, server: ParameterServer, samples: int) -> None:
        self.server = server
        draw = random.Random(current_rank().rank)
        self.inputs = [[draw.uniform(-1, 1) for _ in TRUTH] for _ in range(samples)]
        self.outputs = [dot(TRUTH, inputs) for inputs in self.inputs]

    def gradient(self, weights: list[float]) -> list[float]:
        total = [0.0] * len(weights)
        for inputs, output in zip(self.inputs, self.outputs, strict=True):
            error = dot(weights, inputs) - output
            for index, x in enumerate(inputs):
                total[index] += 2 * error * x / len(self.inputs)
        return total

    @endpoint
    def train(self, steps: int) -> int:
        for _ in range(steps):
            weights = self.server.pull.call_one().get()
            self.server.push.call_one(self.gradient(weights)).get()
        return steps


def main() -> None:
    server_procs = this_host().spawn_procs(name="server")
    worker_procs = this_host().spawn_procs({"workers": 4}, name="workers")
    server = server_procs.spawn("server", ParameterServer, len(TRUTH), 0.3)
    workers = worker_procs.spawn("workers", Worker, server, 40)

    print("steps of each:", workers.train.call(50).get().values())
    print("updates:", server.push.call_one([0.0] * len(TRUTH)).get() - 1)
    print("learned:", [round(weight, 2) for weight in server.pull.call_one().get()])


if __name__ == "__main__":
    main()
