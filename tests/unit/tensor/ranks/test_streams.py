"""Handovers between the streams of a rank, and the state that streams share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from monarch._src.tensor.ranks.streams import Borrows, RankState, rank_state  # noqa: E402
from monarch._src.tensor.state.instructions import (  # noqa: E402
    NOTHING,
    Failure,
    Handover,
    Kind,
    Poisoned,
)

KIND = Kind(1, "monarch::take_back", stores=NOTHING)


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def failure() -> Failure:
    return Failure(0, "aten::add", 3, "RuntimeError", "no", "")


def handover(number: int, known: dict[int, int | None] | None = None) -> Handover:
    return Handover(number, known or {})


def test_a_stream_takes_the_very_tensor_that_another_gives(
    other_thread: ThreadPoolExecutor,
) -> None:
    state = RankState(3)
    taken = other_thread.submit(Borrows(state).borrow, KIND, [], (handover(7),))
    tensor = torch.ones(2)
    lender = Borrows(state)
    lender.give_tensors(KIND, [torch.zeros(1)], (handover(8),))
    lender.give_tensors(KIND, [tensor], (handover(7),))
    assert taken.result(timeout=60)[0] is tensor
    assert state.handovers.waiting == 1
    assert lender.take(handover(8))[0].tolist() == [0.0]
    assert state.handovers.waiting == 0


def test_a_failure_is_borrowed_as_such_and_fails_what_takes_it_back() -> None:
    borrows = Borrows(RankState(3))
    borrows.give_tensors(KIND, [failure()], (handover(1),))
    assert borrows.borrow(KIND, [], (handover(1),)) == [failure()]
    borrows.give_tensors(KIND, [torch.ones(1), failure()], (handover(2),))
    with pytest.raises(Poisoned, match="no"):
        borrows.take_back(KIND, [], (handover(2),))


@pytest.mark.parametrize(("incarnation", "known"), [(1, {}), (2, {3: 1}), (0, {3: 1}), (1, {4: 1})])
def test_a_process_that_was_started_since_has_nothing_to_wait_for(
    incarnation: int, known: dict[int, int | None]
) -> None:
    borrows = Borrows(RankState(3, incarnation))
    with pytest.raises(KeyError):
        borrows.take(handover(1, known))


@pytest.mark.parametrize(
    ("incarnation", "known"), [(0, {}), (1, {3: 1}), (0, {4: 1}), (2, {3: None})]
)
def test_a_handover_for_this_process_is_taken(
    incarnation: int, known: dict[int, int | None]
) -> None:
    borrows = Borrows(RankState(3, incarnation))
    borrows.give(1, [5])
    assert borrows.take(handover(1, known)) == [5]


def test_streams_share_a_state_by_their_key_as_long_as_one_of_them_lives() -> None:
    first = rank_state(1001, 3, 0)
    assert rank_state(1001, 3, 0) is first
    other: Any = rank_state(1002, 3, 0)
    assert other is not first
    first.handovers.give(1, other)
    del first
    gc.collect()
    assert rank_state(1001, 3, 0).handovers.waiting == 0
