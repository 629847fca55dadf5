"""Backends by name, and whether each rank has a GPU of its own."""

from __future__ import annotations

from typing import Any

import pytest

from monarch._src.spmd.group_plan import backend_names, own_devices, shared_gpus


def test_names_come_with_and_without_their_devices() -> None:
    assert backend_names("gloo") == ("gloo",)
    assert backend_names("cpu:gloo,cuda:NCCL") == ("gloo", "nccl")


@pytest.mark.parametrize(
    ("backend", "error"), [("", ValueError), ("cpu:", ValueError), (3, TypeError)]
)
def test_other_values_are_refused(backend: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="backend is text such as 'gloo'"):
        backend_names(backend)


def test_each_rank_takes_the_device_of_its_place_on_its_host() -> None:
    both = ("a", "b")
    assert own_devices([both, both, both, both], ["h1", "h1", "h2", "h2"]) == (0, 1, 0, 1)
    assert own_devices([("a",), ("b",)], ["h1", "h1"]) == (0, 0)


def test_ranks_that_share_a_device_or_lack_one_get_none() -> None:
    assert own_devices([("a",), ("a",)], ["h1", "h1"]) == ()
    assert own_devices([("a", "b")] * 3, ["h1"] * 3) == ()
    assert own_devices([("a",), ()], ["h1", "h2"]) == ()


def test_nccl_on_ranks_that_share_a_gpu_is_refused_with_the_remedy() -> None:
    text = shared_gpus("trainers", [("a",), ("a",), ()], "nccl")
    assert text.startswith("backend 'nccl': nccl needs a GPU of its own for each rank, and the 3 ")
    assert "ranks of trainers see 1; leave backend out" in text
