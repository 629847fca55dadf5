"""torch's profiler, timers and TensorBoard on the ranks of a mesh, under Monarch's names."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ActorError, ProcMesh
from monarch.memory import dump_memory_snapshot, record_memory_history
from monarch.observe import profile as monarch_profile
from monarch.profiler import Schedule, profile, record_function
from monarch.tensorboard import Tensorboard
from monarch.timer import ExecutionTimer
from tests.integration.tensor.test_operations import values

pytestmark = pytest.mark.slow

start = monarch.remote("monarch.timer.execution_timer_start", propagate=lambda *_: None)
stop = monarch.remote("monarch.timer.execution_timer.execution_timer_stop", propagate="inspect")
average = monarch.remote(
    "monarch.timer.remote_execution_timer.get_execution_timer_average_ms",
    propagate=lambda *_: torch.tensor(0.0, dtype=torch.float64),
)
latest = monarch.remote(
    "monarch.timer.get_latest_timer_measurement",
    propagate=lambda *_: torch.tensor(0.0, dtype=torch.float64),
)
perf_counter = monarch.remote(
    "monarch.timer.get_time_perfcounter", propagate=lambda: torch.tensor(0.0, dtype=torch.float64)
)
summary = monarch.remote("monarch.timer.get_execution_timer_summary")


def names(path: Path) -> set[str]:
    """What a trace of Chrome has the names of."""
    return {event["name"] for event in json.loads(path.read_text())["traceEvents"]}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- profiles -------------------------------------------------------------------------------------


def test_each_rank_writes_the_trace_of_its_operations(pair: ProcMesh, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "traces"
    profiled = profile(on_trace_ready=folder, record_shapes=True)
    with pair.activate(), profiled, record_function("forward", "batch 7"):
        x = torch.ones(4, 4, requires_grad=True)
        (x @ x).sum().backward()
    assert files(folder) == ["trace_0.json", "trace_1.json"]
    for path in folder.iterdir():
        assert {"forward", "aten::mm"} <= names(path)


def test_a_profile_has_the_operations_of_all_streams(pair: ProcMesh, tmp_path: Path) -> None:
    comm = monarch.Stream("comm")
    with pair.activate(), profile(on_trace_ready=tmp_path):
        x = torch.ones(4).sin()
        with comm.activate():
            for _ in range(200):
                y = torch.ones(4).cos()
            y.atan()
    assert len(files(tmp_path)) == 2
    for path in tmp_path.iterdir():
        assert {"aten::sin", "aten::cos", "aten::atan"} <= names(path)
    del x


def test_a_schedule_has_a_file_for_each_cycle(pair: ProcMesh, tmp_path: Path) -> None:
    plan = Schedule(wait=1, warmup=1, active=1, repeat=2, skip_first=1)
    operations = [torch.abs, torch.exp, torch.sin, torch.cos, torch.tan, torch.log, torch.sqrt]
    with pair.activate(), profile(on_trace_ready=str(tmp_path), schedule=plan) as made:
        x = torch.ones(2)
        for operation in operations:
            operation(x)
            made.step()
    assert files(tmp_path) == [
        "trace_0.2.json", "trace_0.json", "trace_1.2.json", "trace_1.json"
    ]  # fmt: skip
    every = {f"aten::{operation.__name__}" for operation in operations}
    assert names(tmp_path / "trace_1.json") & every == {"aten::cos"}
    assert names(tmp_path / "trace_1.2.json") & every == {"aten::sqrt"}


def test_a_profile_follows_its_own_mesh(pair: ProcMesh, tmp_path: Path) -> None:
    with pair.slice(gpus=1).activate():
        made = profile(on_trace_ready=tmp_path).__enter__()
    with pair.activate():
        made.step()
    made.__exit__(None, None, None)
    assert files(tmp_path) == ["trace_1.json"]


def test_two_profiles_at_once_are_refused_and_the_first_goes_on(
    pair: ProcMesh, tmp_path: Path
) -> None:
    with pair.activate():
        with pair.slice(gpus=1).activate():
            first = profile(on_trace_ready=tmp_path / "first").__enter__()
        with pytest.raises(ActorError, match="a profiler of torch runs on this rank already"):
            profile(on_trace_ready=tmp_path / "second").__enter__()
        torch.ones(1)
        first.__exit__(None, None, None)
        assert files(tmp_path) == ["first"]
        with profile(on_trace_ready=tmp_path / "second"):
            pass
    assert files(tmp_path / "second") == ["trace_0.json", "trace_1.json"]


def test_a_profile_of_monarch_and_one_of_torch_refuse_each_other(
    pair: ProcMesh, tmp_path: Path
) -> None:
    with pair.activate(), monarch_profile(torch=True):
        torch.ones(1).abs()
        with pytest.raises(ActorError, match=r"monarch.observe.profile\(torch=True\)"):
            profile(on_trace_ready=tmp_path).__enter__()


def test_what_no_profile_takes_is_refused_before_it_begins(tmp_path: Path) -> None:
    wrong: Any = print
    with pytest.raises(TypeError, match="takes the folder for the traces of the ranks, not"):
        profile(on_trace_ready=wrong)
    with pytest.raises(TypeError, match=r"takes a monarch.profiler.Schedule\(wait, warmup, active"):
        profile(on_trace_ready=tmp_path, schedule=wrong)
    with pytest.raises(TypeError, match="has no option 'with_stacks'"):
        profile(on_trace_ready=tmp_path, with_stacks=True)
    made = profile(on_trace_ready=tmp_path)
    with pytest.raises(RuntimeError, match="call step"):
        made.step()
    with pytest.raises(ValueError, match="no device mesh is active"):
        made.__enter__()
    with pytest.raises(ValueError, match="no device mesh is active"):
        record_function("forward").__enter__()


def test_a_trace_that_cannot_be_written_is_an_error_of_the_block(
    pair: ProcMesh, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pair.activate():
        lost = profile(on_trace_ready=tmp_path / "file")
        with pytest.raises(ActorError, match="file"), lost:
            torch.ones(1)
        with profile(on_trace_ready=tmp_path / "folder"):
            torch.ones(1)
    assert files(tmp_path / "folder") == ["trace_0.json", "trace_1.json"]


# --- timers ---------------------------------------------------------------------------------------


def test_parts_of_a_program_are_timed_on_each_rank(pair: ProcMesh) -> None:
    with pair.activate():
        before = perf_counter()
        for _ in range(3):
            start("matmul")
            torch.ones(64, 64) @ torch.ones(64, 64)
            stop("matmul")
        whole_ms = (perf_counter() - before) * 1000
        mean_ms = average("matmul")
        for one, whole in zip(values(mean_ms), values(whole_ms), strict=True):
            assert 0 < 3 * one <= whole
        assert [math.isnan(one) for one in values(latest("other"))] == [True, True]
        found = summary.call().get()
    for figures in found.values():
        assert figures["matmul"]["count"] == 3
        assert figures["matmul"]["min_ms"] <= figures["matmul"]["mean_ms"]


def test_a_part_that_has_not_begun_cannot_end(pair: ProcMesh) -> None:
    with pair.activate(), pytest.raises(ActorError, match="no part 'lost' has begun"):
        monarch.remote("monarch.timer.execution_timer_stop").call("lost").get()


def test_parts_nest_in_this_process_too() -> None:
    ExecutionTimer.reset()
    with ExecutionTimer.time(use_cpu=True), ExecutionTimer.time(use_cpu=True):
        pass
    figures = ExecutionTimer.summary()["default"]
    assert figures["count"] == 2
    assert figures["max_ms"] == ExecutionTimer.get_latest_measurement() >= figures["min_ms"]
    ExecutionTimer.reset()
    assert ExecutionTimer.summary() == {}


# --- TensorBoard ----------------------------------------------------------------------------------


def test_one_rank_writes_curves(pair: ProcMesh, tmp_path: Path) -> None:
    accumulators: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    rank = pair.slice(gpus=1)
    board = Tensorboard(rank, tmp_path)
    with rank.activate():
        for step in range(3):
            board.log("loss", torch.full((), 2.0) * step, step)
    board.log("rate", 0.5, 0)
    board.flush()
    board.close()
    found = accumulators.EventAccumulator(str(tmp_path)).Reload()
    assert [(one.step, one.tensor_proto.float_val[0]) for one in found.Tensors("loss")] == [
        (0, 0.0), (1, 2.0), (2, 4.0)
    ]  # fmt: skip
    assert [one.tensor_proto.float_val[0] for one in found.Tensors("rate")] == [0.5]


def test_several_ranks_cannot_write_the_same_curves(pair: ProcMesh, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs a mesh of one rank, and this one has 2"):
        Tensorboard(pair, tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error_at_once(pair: ProcMesh, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    with pytest.raises(ActorError, match="file"):
        Tensorboard(pair.slice(gpus=0), tmp_path / "file")


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has the memory of GPUs")
def test_ranks_without_a_gpu_say_that_they_record_none(pair: ProcMesh, tmp_path: Path) -> None:
    with pair.activate():
        with pytest.raises(ActorError, match="torch records the memory of GPUs alone"):
            record_memory_history()
        with pytest.raises(ActorError, match="torch records the memory of GPUs alone"):
            dump_memory_snapshot(dir_snapshots=tmp_path)
    assert files(tmp_path) == []
