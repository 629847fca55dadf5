"""What takes time and memory on GPUs: profiles, timers and snapshots of torch on the ranks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import monarch
from tests.gpu.conftest import TORCH, Procs

torch: Any = pytest.importorskip("torch")


def test_a_profile_has_the_kernels_of_each_rank(spawn_procs: Procs, tmp_path: Path) -> None:
    from monarch.profiler import profile, record_function

    procs = spawn_procs({"gpus": 2}, name="profiled", preload=TORCH)
    with procs.activate(device="cuda"), profile(on_trace_ready=tmp_path):
        with record_function("forward"):
            x = torch.ones(256, 256) @ torch.ones(256, 256)
        monarch.inspect(x)
    for rank in range(2):
        events = json.loads((tmp_path / f"trace_{rank}.json").read_text())["traceEvents"]
        assert "kernel" in {event.get("cat") for event in events}
        assert "forward" in {event["name"] for event in events}


def test_a_timer_takes_the_time_of_the_gpu(spawn_procs: Procs) -> None:
    procs = spawn_procs({"gpus": 1}, name="timed", preload=TORCH)
    start = monarch.remote("monarch.timer.execution_timer_start", propagate=lambda *_: None)
    stop = monarch.remote("monarch.timer.execution_timer_stop", propagate=lambda *_: None)
    summary = monarch.remote("monarch.timer.get_execution_timer_summary")
    with procs.activate(device="cuda"):
        x = torch.ones(2048, 2048)
        for times in (1, 20):
            start(f"{times} products")
            for _ in range(times):
                x = x @ x
            stop(f"{times} products")
        found = summary.call_one().get(timeout=60)
    assert 0 < found["1 products"]["mean_ms"] < found["20 products"]["mean_ms"]


def test_each_rank_writes_a_snapshot_of_its_memory(spawn_procs: Procs, tmp_path: Path) -> None:
    from monarch.memory import dump_memory_snapshot, record_memory_history

    procs = spawn_procs({"gpus": 2}, name="recorded", preload=TORCH)
    with procs.activate(device="cuda"):
        record_memory_history()
        kept = torch.ones(1 << 20)
        dump_memory_snapshot(dir_snapshots=tmp_path)
    for rank in range(2):
        snapshot = pickle.loads((tmp_path / f"snapshot_{rank}.pickle").read_bytes())
        sizes = [block["size"] for one in snapshot["segments"] for block in one["blocks"]]
        assert max(sizes) >= 4 * kept.numel()
