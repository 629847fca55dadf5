"""What ranks use: sampled from the snapshots that views poll anyway, and sent as they are new."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch.observe import MeshSnapshot
from monarch_jupyter.protocol.usage import (
    LEAST_SAMPLES,
    MOST_FIGURES,
    MOST_SAMPLES,
    UsageHistory,
)
from tests.notebook.samples import mesh, row


def at(cpu_s: float, ranks: int = 2, **fields: object) -> MeshSnapshot:
    """A mesh whose ranks have used so much processor time."""
    rows = [replace(row(rank), cpu_s=cpu_s * (rank + 1), **fields) for rank in range(ranks)]
    return mesh(rows, sizes={"gpus": ranks})


def test_processor_time_between_two_samples_is_per_cent_of_one_processor() -> None:
    history, uid = UsageHistory(), at(0).uid
    history.add([at(1.0)], now=10.0)
    history.add([at(2.0)], now=12.0)
    first, second = history.message(uid, after=0, now=13.0)["samples"]
    assert (first["cpu"], second["cpu"]) == ([None, None], [50, 100])
    assert (first["age_s"], second["age_s"]) == (3.0, 1.0)
    assert [one["number"] for one in history.message(uid, after=1, now=13.0)["samples"]] == [2]


def test_polls_that_follow_each_other_closely_are_one_sample() -> None:
    history, uid = UsageHistory(), at(0).uid
    for tenth in range(21):
        history.add([at(tenth)], now=tenth / 10)
    assert len(history.message(uid, 0, 2.0)["samples"]) == 3


def test_a_new_process_of_a_rank_begins_anew() -> None:
    history, uid = UsageHistory(), at(0).uid
    history.add([at(100.0)], now=0.0)
    history.add([at(1.0, pid=77)], now=1.0)
    assert history.message(uid, 0, 1.0)["samples"][-1]["cpu"] == [None, None]


def test_figures_of_devices_are_there_for_ranks_that_use_one() -> None:
    history, uid = UsageHistory(), at(0).uid
    history.add([at(1.0)], now=0.0)
    assert not history.message(uid, 0, 1.0)["has_gpus"]
    history.add([at(1.0, gpu_mib=512.4, gpu_percent=87)], now=1.0)
    found = history.message(uid, 1, 1.0)
    assert found["has_gpus"]
    assert found["samples"][0]["gpu"] == [87, 87]
    assert found["samples"][0]["gpu_memory"] == [512, 512]


@pytest.mark.slow
def test_a_history_is_bounded_and_goes_with_its_mesh() -> None:
    for ranks in (2, 1024):
        history, uid = UsageHistory(), at(0).uid
        for second in range(MOST_SAMPLES + 5):
            history.add([at(second, ranks)], now=float(second))
        number = len(history.message(uid, 0, 999.0)["samples"])
        assert number == max(LEAST_SAMPLES, min(MOST_SAMPLES, MOST_FIGURES // ranks))
    history.add([], now=1000.0)
    assert history.message(uid, 0, 1000.0)["samples"] == []
