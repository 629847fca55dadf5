"""The texts about the memory of a rank's tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from monarch._src.tensor.ranks.memory import memory_texts  # noqa: E402
from monarch._src.tensor.state.instructions import Failure  # noqa: E402


def test_memory_that_views_share_counts_once() -> None:
    whole = torch.zeros(1024, 256)
    assert memory_texts([whole, whole.t(), whole[:1], torch.arange(10)]) == {
        "tensors": "4, 1.0 MiB",
        "float32 on cpu": "3, 1.0 MiB",
        "int64 on cpu": "1, 80 bytes",
    }


def test_a_rank_without_tensors_has_none() -> None:
    assert memory_texts([]) == {"tensors": "0, 0 bytes"}


def test_failures_are_counted_and_other_results_are_not() -> None:
    failure = Failure.__new__(Failure)
    assert memory_texts([failure, "a result", torch.ones(2)]) == {
        "tensors": "1, 8 bytes",
        "float32 on cpu": "1, 8 bytes",
        "failed": "1",
    }


def test_a_sparse_tensor_counts_without_bytes() -> None:
    assert memory_texts([torch.eye(3).to_sparse()])["tensors"] == "1, 0 bytes"
