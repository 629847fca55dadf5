"""Which ranks combine their values, and which rank sends to which."""

from __future__ import annotations

import pytest

from monarch._src.shape import Extent
from monarch._src.tensor.state.layouts import layout_of_dims, layout_of_ranks, moves

GRID = Extent(["dp", "tp"], [2, 3]).region


def test_ranks_that_differ_in_a_dim_form_a_group() -> None:
    assert layout_of_dims(GRID, ["tp"]) == {
        0: (0, 0, 3), 1: (0, 1, 3), 2: (0, 2, 3), 3: (1, 0, 3), 4: (1, 1, 3), 5: (1, 2, 3),
    }  # fmt: skip
    assert layout_of_dims(GRID, ["dp"]) == {
        0: (0, 0, 2), 1: (1, 0, 2), 2: (2, 0, 2), 3: (0, 1, 2), 4: (1, 1, 2), 5: (2, 1, 2),
    }  # fmt: skip


def test_several_dims_are_combined_in_the_order_in_which_they_are_given() -> None:
    assert [place for _, place, _ in layout_of_dims(GRID, ["dp", "tp"]).values()] == [*range(6)]
    assert [place for _, place, _ in layout_of_dims(GRID, ["tp", "dp"]).values()] == [
        0, 2, 4, 1, 3, 5,
    ]  # fmt: skip


def test_ranks_of_a_slice_keep_their_numbers() -> None:
    part = GRID.slice(tp=slice(1, 3), dp=1)
    assert layout_of_dims(part, ["tp"]) == {4: (0, 0, 2), 5: (0, 1, 2)}
    assert layout_of_ranks([4, 1]) == {4: (0, 0, 2), 1: (0, 1, 2)}


def test_a_value_goes_to_the_rank_with_its_coordinates() -> None:
    assert moves(GRID.slice(dp=1), GRID) == {0: 3, 1: 4, 2: 5, 3: 3, 4: 4, 5: 5}
    assert moves(GRID.slice(dp=0, tp=2), GRID.slice(tp=1)) == {1: 2, 4: 2}
    assert moves(GRID.slice(tp=slice(0, 2)), GRID.slice(tp=slice(1, 3))) == {
        1: 0, 2: 1, 4: 3, 5: 4,
    }  # fmt: skip


def test_a_dim_that_the_target_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="dim 'dp' has to be in both"):
        moves(GRID, GRID.slice(dp=0))
    with pytest.raises(ValueError, match="dim 'tp' has to be in both"):
        moves(GRID, GRID.slice(tp=slice(0, 2)))


def test_ranks_with_other_dims_keep_their_values() -> None:
    line = Extent(["gpus"], [6]).region
    assert moves(GRID, line) == {rank: rank for rank in range(6)}
    assert moves(line, GRID) == {rank: rank for rank in range(6)}
    with pytest.raises(ValueError, match="dim 'gpus' has to be in both"):
        moves(line.slice(gpus=slice(0, 3)), GRID.slice(dp=1))
