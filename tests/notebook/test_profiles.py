"""A profile in a cell: where the time went, with the rank that took longest."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import Kernel
from tests.notebook.reader import Reader

pytestmark = pytest.mark.slow

SLOW_RANK = """
from monarch.actor import Actor, current_rank, endpoint, span
from monarch.observe import profile

class Trainer(Actor):
    @endpoint
    def step(self):
        with span("<load>"):
            for _ in range(3_000_000 if current_rank().rank == 2 else 1000):
                pass

trainer = workers.spawn("trainer", Trainer)
trainer.step.call().get()
with profile(timeout=60) as made:
    before = repr(made), str(made)
    trainer.step.call().get()
made
"""


def test_a_profile_shows_a_table_with_the_slow_rank(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=3")
    shown = kernel.ok(SLOW_RANK).result
    text = shown["text/plain"]
    head, columns, *rows = text.splitlines()
    assert head.startswith("profile of ")
    assert columns.split()[:4] == ["mesh", "kind", "name", "count"]
    (ran,) = [row for row in rows if row.startswith("workers  endpoint  trainer.step")]
    assert "rank 2, " in ran
    read = Reader(shown["text/html"])
    assert "<load>" in read.text
    assert "rank 2, " in read.text
    assert kernel.ok("before[1]").result["text/plain"] == "'profile that has not ended'"
