"""Samples of usage of the dashboard."""

from __future__ import annotations

from typing import Any

from monarch._src.admin.dashboard.state.usage import MOST_SAMPLES, UsageHistory

MIB = 1 << 20


def figures(rank: int, cpu_s: float | None, pid: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "mesh_id": 7, "rank": rank, "pid": pid, "cpu_s": cpu_s, "rss_bytes": 3 * MIB,
        "gpu_percent": None, "gpu_bytes": None, **fields,
    }  # fmt: skip


def test_the_use_of_a_processor_is_that_since_the_sample_before() -> None:
    history = UsageHistory()
    history.add([figures(0, 1.0), figures(1, 1.0)], 100.0)
    history.add([figures(0, 2.0), figures(1, 1.5)], 102.0)
    first, second = history.message("7", 0, 103.0).samples
    assert first.cpu == [None, None]
    assert (second.cpu, second.memory, second.age_s) == ([50, 25], [3, 3], 1.0)
    assert [one.number for one in history.message("7", 1, 103.0).samples] == [2]


def test_a_rank_that_started_again_has_no_figure_yet() -> None:
    history = UsageHistory()
    history.add([figures(0, 9.0)], 100.0)
    history.add([figures(0, 0.5, pid=2)], 101.0)
    assert history.message("7", 1, 101.0).samples[0].cpu == [None]


def test_a_rank_that_is_missing_has_a_place() -> None:
    history = UsageHistory()
    history.add([figures(2, 9.0, gpu_percent=40, gpu_bytes=MIB)], 100.0)
    found = history.message("7", 0, 100.0)
    assert found.has_gpus
    assert found.samples[0].memory == [None, None, 3]
    assert found.samples[0].gpu == [None, None, 40]


def test_samples_are_apart_bounded_and_forgotten_with_their_mesh() -> None:
    history = UsageHistory()
    history.add([figures(0, 0.0)], 100.0)
    history.add([figures(0, 0.0)], 100.1)
    assert len(history.message("7", 0, 101.0).samples) == 1
    for number in range(MOST_SAMPLES + 5):
        history.add([figures(0, 0.0)], 101.0 + number)
    assert len(history.message("7", 0, 999.0).samples) == MOST_SAMPLES
    history.add([], 999.0)
    assert history.message("7", 0, 999.0).samples == []
