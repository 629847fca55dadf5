"""What an answer holds is freed with the last reference to it, without a collector's help."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import Accumulator, ProcMesh
from tests.integration.programs import PATIENCE_S
from tests.integration.sample_actors import Echo

Ask = Callable[[Echo], Any]
SENT = {1, 2}  # arrives as a set, which can be referred to weakly


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    "ask",
    [
        lambda echo: [echo.slice(gpus=1).same.call_one(SENT).get(timeout=PATIENCE_S)],
        lambda echo: [echo.same.choose(SENT).get(timeout=PATIENCE_S)],
        lambda echo: list(echo.same.call(SENT).get(timeout=PATIENCE_S).values()),
        lambda echo: [answer.get(timeout=PATIENCE_S) for answer in echo.same.stream(SENT)],
        lambda echo: [
            Accumulator(echo.same, set[int](), set[int].union)
            .accumulate(SENT)
            .get(timeout=PATIENCE_S)
        ],
    ],
    ids=["call_one", "choose", "call", "stream", "accumulate"],
)
def test_an_answer_is_freed_when_nobody_has_it_any_more(four: ProcMesh, ask: Ask) -> None:
    found = ask(four.spawn("freed", Echo))
    assert all(one == SENT for one in found)
    left = [weakref.ref(one) for one in found]
    del found
    assert [one() for one in left] == [None] * len(left)


@pytest.mark.usefixtures("uncollected")
def test_an_answer_that_nobody_looks_at_is_freed_with_its_future(four: ProcMesh) -> None:
    echo = four.spawn("freed", Echo).slice(gpus=0)
    answer = echo.same.call_one(SENT)
    echo.same.call_one(0).get(timeout=PATIENCE_S)  # behind it
    pending = weakref.ref(answer.get(timeout=PATIENCE_S))
    assert pending() == SENT  # as long as there is the future
    del answer
    assert pending() is None
