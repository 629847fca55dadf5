"""Notices about failures that no cell raises: one for all ranks that fail alike."""

from __future__ import annotations

from collections.abc import Callable

from monarch.actor import MeshFailure
from monarch_jupyter.cells.fault_notices import FaultNotices
from tests.notebook.kernel import Kernel
from tests.notebook.samples import failure


class Arrivals:
    """Failures that come while a notice waits."""

    def __init__(self, *ranks: int) -> None:
        self._ranks = list(ranks)
        self.said: list[str] = []
        self.on_wait: Callable[[float], None] = self.wait
        self.notices = FaultNotices(self.said.append, {}, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.on_wait(seconds)

    def wait(self, _seconds: float) -> None:
        """The next rank fails, instead."""
        if self._ranks:
            self.fail(self._ranks.pop(0))

    def fail(self, rank: int) -> None:
        """A rank fails, and the runtime calls the hook."""
        self.notices(MeshFailure("a", (failure(rank),), None))


def test_one_notice_tells_all_ranks_that_fail_meanwhile() -> None:
    arrivals = Arrivals(1, 2, 5)
    arrivals.fail(0)
    (said,) = arrivals.said
    assert "and on 3 more ranks: gpus=1..2,5" in said


def test_a_failure_that_a_cell_shows_meanwhile_needs_no_notice() -> None:
    arrivals = Arrivals(1)
    before: Callable[[float], None] = arrivals.wait

    def wait(seconds: float) -> None:
        before(seconds)
        arrivals.notices.mark_shown([failure(0), failure(1)])

    arrivals.on_wait = wait
    arrivals.fail(0)
    arrivals.notices.report_waiting()
    assert arrivals.said == []


def test_a_failure_is_told_once() -> None:
    arrivals = Arrivals()
    for _ in range(2):
        arrivals.fail(0)
        arrivals.notices.report_waiting()
    assert len(arrivals.said) == 1


def test_a_constructor_that_raises_on_all_ranks_is_one_notice(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w gpus=8")
    kernel.ok(
        "from monarch.actor import Actor, endpoint\n"
        "from monarch_jupyter.cells import fault_notices\n"
        "fault_notices.PATIENCE, fault_notices.LONGEST = 3.0, 600.0\n"
        "class Bad(Actor):\n"
        "    def __init__(self): raise ValueError('bad')\n"
        "    @endpoint\n"
        "    def step(self): pass\n"
    )
    try:
        # Read, so that all ranks have failed by the end of the cell, and not raised.
        shown = kernel.ok("error = w.spawn('bad', Bad).step.call().exception()")
    finally:
        kernel.ok("fault_notices.PATIENCE, fault_notices.LONGEST = 0.5, 5.0")
    assert shown.stderr.count("raised ValueError: bad") == 1
    assert "and on 7 more ranks: gpus=1..7; calls to bad that include those" in shown.stderr
