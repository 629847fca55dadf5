"""Events of torch's profiler in traces of sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from monarch.actor import Actor, ProcMesh, endpoint
from monarch.observe import Profile, profile, query, record
from tests.integration.commands import monarch
from tests.traces import read
from tests.workers import PATIENCE_S

pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
pytestmark = pytest.mark.slow
CLOCKS_NS = 1_000_000  # torch has a clock of its own, which it compares with the system's


class Learner(Actor):
    """Computes, and may run a profiler of its own."""

    def __init__(self) -> None:
        self.own: Any = None

    @endpoint
    def learn(self) -> float:
        x = torch.ones(8, 8, requires_grad=True)
        with torch.profiler.record_function("step of the learner"):
            loss = (x @ x).sum()
            loss.backward()
        return loss.item()

    @endpoint
    def learn_until(self, stop: Path) -> None:
        while not stop.exists():
            torch.ones(8, 8) @ torch.ones(8, 8)

    @endpoint
    def begin_own(self) -> None:
        self.own = torch.profiler.profile()
        self.own.start()

    @endpoint
    def end_own(self) -> list[str]:
        self.own.stop()
        return [event.name for event in self.own.events()]


def trace_of(made: Profile, at: Path) -> Any:
    return read(made.export_perfetto_trace(at).read_bytes())


def of_torch(missing: Any) -> list[str]:
    return [str(one) for one in missing if one.table == "torch_events"]


def test_operations_of_all_ranks_are_in_the_trace_within_their_endpoint(
    pair: ProcMesh, tmp_path: Path
) -> None:
    learner = pair.spawn("learner", Learner)
    learner.learn.call().get()  # torch's first backward takes seconds on a busy machine
    with profile(torch=True, timeout=PATIENCE_S) as made:
        learner.learn.call().get()
    assert made.missing == ()
    assert made.clocks == {}, "there is no other host"
    found = trace_of(made, tmp_path / "run.perfetto")
    for rank in (0, 1):
        slices = [one for one in found.all_slices if one.process.startswith(f"pair[{rank}]")]
        (ran,) = [one for one in slices if one.track == "endpoints of learner"]
        events = {one.name: one for one in slices if one.track.startswith("torch on ")}
        assert {"aten::mm", "MmBackward0", "step of the learner"} <= set(events)
        for one in (events["aten::mm"], events["step of the learner"]):
            assert ran.begin_ns - CLOCKS_NS <= one.begin_ns
            assert one.end_ns <= ran.end_ns + CLOCKS_NS
        step = events["step of the learner"]
        assert step.begin_ns <= events["aten::mm"].begin_ns <= step.end_ns


def test_without_torch_a_trace_has_no_events_of_it(pair: ProcMesh, tmp_path: Path) -> None:
    learner = pair.spawn("learner", Learner)
    with profile(timeout=PATIENCE_S) as made:
        learner.learn.call().get()
    found = trace_of(made, tmp_path / "run.perfetto")
    assert not [one for one in found.all_slices if one.track.startswith("torch on ")]


def test_while_history_is_kept_events_of_a_profile_can_be_queried(pair: ProcMesh) -> None:
    learner = pair.spawn("learner", Learner)
    assert record(600, timeout=PATIENCE_S) == ()
    try:
        with profile(torch=True, timeout=PATIENCE_S):
            learner.learn.call().get()
        learner.learn.call().get()  # after it
        found = query(
            "SELECT rank, count(*), bool_and(duration_ns > 0 AND device = 'cpu' AND "
            "abs(begin_ns // 1000 - timestamp_us) <= 1) FROM torch_events "
            "WHERE name = 'MmBackward0' AND kind = 'cpu_op' GROUP BY rank ORDER BY rank",
            PATIENCE_S,
        )
        assert found.rows == ((0, 1, True), (1, 1, True))
    finally:
        record(0, timeout=PATIENCE_S)


def test_a_profiler_of_the_program_is_left_alone(pair: ProcMesh) -> None:
    learner = pair.spawn("learner", Learner)
    learner.slice(gpus=1).begin_own.call_one().get()
    with profile(torch=True, timeout=PATIENCE_S) as made:
        learner.learn.call().get()
    (problem,) = of_torch(made.missing)
    assert "pair[gpus=1]" in problem
    assert "a torch.profiler of the program was running" in problem
    assert "aten::mm" in learner.slice(gpus=1).end_own.call_one().get()


def test_a_profiler_that_the_program_begins_later_gets_the_events(pair: ProcMesh) -> None:
    learner = pair.spawn("learner", Learner)
    one = learner.slice(gpus=0)
    with profile(torch=True, timeout=PATIENCE_S) as made:
        one.begin_own.call_one().get()
        one.learn.call_one().get()
    (problem,) = of_torch(made.missing)
    assert "pair[gpus=0]" in problem
    assert "the program began a torch.profiler of its own" in problem
    assert "aten::mm" in one.end_own.call_one().get()
    with profile(torch=True, timeout=PATIENCE_S) as again:
        one.learn.call_one().get()
    assert again.missing == ()


def test_events_without_room_are_named(pair: ProcMesh) -> None:
    learner = pair.spawn("learner", Learner)
    with profile(torch=True, rows=1, timeout=PATIENCE_S) as made:
        learner.slice(gpus=1).learn.call_one().get()
    (problem,) = of_torch(made.missing)
    assert problem.startswith("torch_events: pair[1] on ")
    assert "events were dropped" in problem


def test_another_process_may_profile_torch(
    pair: ProcMesh, own_base_directory: Path, tmp_path: Path
) -> None:
    learner, path, stop = pair.spawn("learner", Learner), tmp_path / "trace", tmp_path / "stop"
    learning = learner.slice(gpus=1).learn_until.call_one(stop)
    status, _, err = monarch(
        "profile", "--in", str(own_base_directory), "--timeout", str(PATIENCE_S), "--time", "3s",
        "--torch", "-o", str(path),
    )  # fmt: skip
    stop.touch()
    learning.get()
    assert status == bool(err), "it is complete, or says what it has dropped"
    (of_mm,) = {one.process for one in read(path.read_bytes()).all_slices if one.name == "aten::mm"}
    assert of_mm.startswith("pair[1] on ")
