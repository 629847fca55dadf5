"""Allowances of processes for other hosts: bounded, and never in the way for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.net.state.flow_control import ALLOWANCE, GatewayCredit, SenderCredit

STEP = st.tuples(
    st.sampled_from(["give", "pass", "full", "empty"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, ALLOWANCE),
)


@given(st.lists(STEP, max_size=60))
def test_what_is_under_way_is_bounded_and_whoever_waits_goes_on_when_there_is_room(
    steps: list[tuple[str, str, int]],
) -> None:
    spending, allowances = SenderCredit(), GatewayCredit()
    given_, passed = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    pipe: dict[str, list[int]] = {"a": [], "b": []}
    full: set[str] = set()

    def pass_one(site: str) -> None:
        size = pipe[site].pop(0)
        passed[site] += size
        limit = allowances.passed("proc", site, size, lambda: site not in full)
        if limit is not None:
            spending.on_limit_raised(site, limit)

    def empty(site: str) -> None:
        full.discard(site)
        for node, limit in allowances.room(site):
            assert node == "proc"
            spending.on_limit_raised(site, limit)

    for what, site, size in steps:
        if what == "give" and spending.has_room(site):
            spending.spent(site, size)
            given_[site] += size
            pipe[site].append(size)
        elif what == "pass" and pipe[site]:
            pass_one(site)
        elif what == "full":
            full.add(site)
        elif what == "empty":
            empty(site)
        assert given_[site] - passed[site] <= 2 * ALLOWANCE
    for site in ("a", "b"):
        while pipe[site]:
            pass_one(site)
        empty(site)
        assert spending.has_room(site)


def test_a_host_that_is_full_takes_one_allowance_and_no_more() -> None:
    spending, allowances = SenderCredit(), GatewayCredit()
    count = 0
    while spending.has_room("slow"):
        count += 1
        spending.spent("slow", 1 << 20)
        assert allowances.passed("proc", "slow", 1 << 20, lambda: False) is None
    assert count == ALLOWANCE >> 20
    assert spending.has_room("quick")
    ((node, limit),) = allowances.room("slow")
    spending.on_limit_raised("slow", limit)
    assert (node, spending.has_room("slow")) == ("proc", True)


def test_another_gateway_begins_to_count_anew_and_the_dead_are_forgotten() -> None:
    spending, allowances = SenderCredit(), GatewayCredit()
    spending.spent("site", ALLOWANCE)
    assert not spending.has_room("site")
    spending.reset()
    assert spending.has_room("site")
    allowances.passed("proc", "site", 1, lambda: False)
    allowances.forget("proc")
    assert allowances.room("site") == []
