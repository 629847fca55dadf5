"""A plan of faults: the same seed gives the same plan, and it is as dense as was asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.testing import faults


@given(st.integers(), st.integers(1, 100))
def test_a_seed_gives_the_same_plan(seed: int, ranks: int) -> None:
    def one() -> Any:
        return faults.plan(seed, duration=50, every=1, ranks=ranks, kinds=faults.KINDS)

    plan = one()
    assert plan == one()
    assert [fault.at_s for fault in plan] == sorted(fault.at_s for fault in plan)
    for fault in plan:
        assert 0 < fault.at_s < 50
        assert 0 <= fault.rank < ranks
        assert (fault.for_s == 0) == (fault.kind == "kill")
        assert fault.for_s <= 1
        assert (fault.delay_s > 0) == (fault.kind == "slow")


def test_another_seed_gives_another_plan() -> None:
    plans = {faults.plan(seed, duration=20, every=1, ranks=8) for seed in range(20)}
    assert len(plans) == 20


def test_faults_are_as_frequent_as_was_asked_for() -> None:
    plan = faults.plan(7, duration=10_000, every=2, ranks=[3, 5], kinds={"kill": 3, "stop": 1})
    assert 4500 < len(plan) < 5500
    count = Counter(fault.kind for fault in plan)
    assert 2.5 < count["kill"] / count["stop"] < 3.5
    assert {fault.rank for fault in plan} == {3, 5}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kinds": ["burn"]}, "give some of kill, stop, slow, partition"),
        ({"kinds": []}, "give some of"),
        ({"every": 0}, "every=0"),
        ({"duration": -1}, "duration=-1"),
        ({"longest": float("nan")}, "longest=nan"),
        ({"ranks": 0}, "at least one rank"),
        ({"kinds": {"kill": 0}}, "weights"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        faults.plan(1, **{"duration": 1, "every": 1, "ranks": 2, **given})
