"""The cost of a profile to the program in it: `python -m tests.benchmarks.profiling [--rounds 5]`.

Two ranks take training steps of a small transformer. Told is the time of a step without a profile,
within one, and within one with `torch=True`: the least of several rounds, which take turns; and how
long a profile takes to collect, with the size of its trace.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from monarch.actor import Actor, endpoint, this_host
from monarch.observe import Profile, profile

STEPS = 20


class Trainer(Actor):
    """Trains by itself."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.optimizer: Any = torch.optim.Adam(self.model.parameters())
        self.batch = torch.randn(8, 16, 64)

    @endpoint
    def train(self, steps: int) -> float:
        """Take steps; returns seconds for each."""
        begun = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
        return (time.perf_counter() - begun) / steps


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    procs = this_host().spawn_procs({"gpus": 2}, name="workers", preload=["torch"])
    trainer = procs.spawn("trainer", Trainer)
    trainer.train.call(STEPS).get()
    ways: dict[str, Callable[[], Any]] = {
        "without": nullcontext, "profile": profile, "with torch": lambda: profile(torch=True),
    }  # fmt: skip
    steps: dict[str, list[float]] = {way: [] for way in ways}
    collecting: dict[str, list[float]] = {way: [] for way in ways}
    last: dict[str, Any] = {}
    for _ in range(rounds):
        for way, make in ways.items():
            with make() as last[way]:
                steps[way].append(max(trainer.train.call(STEPS).get().values()))
                begun = time.perf_counter()
            collecting[way].append(time.perf_counter() - begun)
    usual = min(steps["without"])
    print(f"{'':12} {'step':>8} {'ratio':>6} {'collect':>9} {'trace':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for way in ways:
            step, ratio = min(steps[way]) * 1e3, min(steps[way]) / usual
            text = f"{way:12} {step:5.1f} ms {ratio:6.2f}"
            if isinstance(last[way], Profile):
                size = last[way].export_perfetto_trace(Path(folder, "trace")).stat().st_size
                text += f" {min(collecting[way]) * 1e3:6.0f} ms {size / 1024:6.0f} KiB"
            print(text)
    procs.stop().get()


if __name__ == "__main__":
    main()
