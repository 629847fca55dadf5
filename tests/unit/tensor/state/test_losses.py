"""The values of tensors that restarts have lost, by numbers."""

from __future__ import annotations

from monarch._src.failures.report import RankFailure
from monarch._src.tensor.state.losses import Losses


def death(rank: int) -> RankFailure:
    return RankFailure("m", rank, {}, "", None, "", None, "proc died", "", f"death of {rank}")


def test_nothing_is_lost_before_a_restart() -> None:
    losses = Losses()
    assert not losses.is_any
    assert not losses.has_news
    assert losses.take_up(7) == set()
    assert losses.version == 0
    assert losses.find([0, 1], [1, 2]) is None


def test_a_restart_loses_the_tensors_that_were_numbered_before_it_is_taken_up() -> None:
    losses = Losses()
    losses.note_restart(1, death(1))
    assert losses.has_news
    assert losses.is_any
    assert losses.find([1], [6]) is None  # not taken up
    assert losses.take_up(7) == {1}
    assert losses.version == 1
    assert not losses.has_news
    found = losses.find([0, 1], [9, 6])
    assert found is not None
    assert found.message == "death of 1"
    assert losses.find([1], [7]) is None
    assert losses.find([0, 2], [6]) is None
    assert losses.find([1], []) is None


def test_a_lost_batch_loses_its_own_tensors_only() -> None:
    losses = Losses()
    losses.note_batch(1, death(1), 5)
    assert losses.take_up(9) == {1}  # the batch may have brought kinds and functions too
    assert losses.find([1], [4]) is not None
    assert losses.find([1], [5]) is None


def test_an_earlier_batch_takes_nothing_back() -> None:
    losses = Losses()
    losses.note_restart(1, death(1))
    losses.take_up(7)
    losses.note_batch(1, death(1), 3)
    losses.take_up(9)
    assert losses.find([1], [6]) is not None
    assert losses.find([1], [7]) is None
