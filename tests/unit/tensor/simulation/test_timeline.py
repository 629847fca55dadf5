"""When the tasks of a simulation begin, what transfers send, and the trace of both."""

from __future__ import annotations

import pytest

from monarch._src.tensor.simulation.costs import (
    Machine,
    SimulatedTimeline,
    sent_bytes,
    trace_events,
)


def test_a_task_begins_when_its_ranks_and_its_inputs_are_ready() -> None:
    line = SimulatedTimeline()
    assert line.add("a", [0, 1], "main", [], 1.0) == 1.0
    assert line.add("b", [0], "main", [], 2.0) == 3.0
    assert line.add("c", [1], "main", [], 1.0) == 2.0
    assert line.add("d", [0, 1], "main", [2.0], 1.0) == 4.0
    assert line.add("e", [0, 1], "other", [], 0.5) == 0.5  # streams run side by side
    assert line.add("f", [0], "other", [4.0], 1.0) == 5.0
    assert [task.begin_s for task in line.tasks] == [0.0, 1.0, 1.0, 3.0, 0.0, 4.0]
    assert line.end_s == 5.0


def test_an_operation_takes_as_long_as_its_arithmetic_or_its_bytes() -> None:
    machine = Machine(flops_per_s=100.0, memory_bytes_per_s=10.0, link_bytes_per_s=4.0, least_s=1.0)
    assert machine.operation_s(flops=500, nbytes=20) == 5.0
    assert machine.operation_s(flops=500, nbytes=90) == 9.0
    assert machine.operation_s(flops=0, nbytes=0) == 1.0
    assert machine.transfer_s(8.0) == 2.0


@pytest.mark.parametrize(
    ("reduction", "scatter", "sent"),
    [("sum", False, 150.0), ("sum", True, 75.0), ("stack", False, 300.0), ("stack", True, 75.0)],
)
def test_what_a_rank_sends_is_that_of_a_ring(reduction: str, scatter: bool, sent: float) -> None:
    assert sent_bytes(100, 4, reduction, scatter) == sent
    assert sent_bytes(100, 1, reduction, scatter) == 0.0


@pytest.mark.parametrize("figures", [{"flops_per_s": 0.0}, {"least_s": -1.0}])
def test_a_machine_without_a_speed_is_refused(figures: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give a finite number above 0"):
        Machine(**figures)


def test_a_trace_has_a_process_for_each_set_of_ranks() -> None:
    line = SimulatedTimeline()
    line.add("mm", [0, 1, 2], "main", [], 1e-6, flops=8, nbytes=16, meta=("warm-up",))
    line.add("reduce sum", [2], "side", [], 2e-6, nbytes=4, is_transfer=True)
    events = trace_events(line.tasks)
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"ranks 0 to 2", "rank 2", "main", "side"}
    first, second = (event for event in events if event["ph"] == "X")
    assert (first["pid"], first["tid"], first["cat"]) == (0, 0, "operation")
    assert first["args"] == {"flops": 8, "bytes": 16, "meta": ["warm-up"]}
    assert (second["pid"], second["tid"], second["cat"]) == (1, 1, "collective")
    assert second["dur"] == 2.0
