"""Probes find every cycle of waits, and nothing else: against reachability in random graphs."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.core.waiting import Waiting


def found_by_probes(waits: dict[int, set[int]]) -> set[int]:
    """The actors that learn that they wait in a cycle, if each sends one probe."""
    actors = {name: Waiting("node", name) for name in waits}
    for name, others in waits.items():
        if others:
            actors[name].begin(call=100 + name)
    told: set[int] = set()
    for name in waits:
        probe = actors[name].probe()
        if probe is None:
            continue
        on_the_way = deque(waits[name])
        steps = 0
        while on_the_way:
            steps += 1
            assert steps <= len(waits) ** 2 + 1, "a probe is passed on once by each actor"
            at = on_the_way.popleft()
            verdict = actors[at].probed(probe)
            if verdict == "cycle":
                told.add(name)
            elif verdict == "forward":
                on_the_way.extend(waits[at])
    return told


def in_cycles(waits: dict[int, set[int]]) -> set[int]:
    """The actors from which one comes back to where one was."""

    def reachable(start: int) -> set[int]:
        seen: set[int] = set()
        todo = [*waits[start]]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += waits[at]
        return seen

    return {name for name in waits if name in reachable(name)}


@given(
    st.dictionaries(st.integers(0, 6), st.sets(st.integers(0, 6)), min_size=1).map(
        lambda waits: {n: set(waits.get(n, set())) for n in range(7)}
    )
)
def test_who_waits_in_a_cycle_is_told_and_nobody_else(waits: dict[int, set[int]]) -> None:
    assert found_by_probes(waits) == in_cycles(waits)


def test_a_probe_of_a_wait_that_is_over_finds_nothing() -> None:
    actor = Waiting("node", 1)
    actor.begin(call=5)
    old = actor.probe()
    assert old is not None
    actor.end()
    assert actor.probed(old) == "drop"
    actor.begin(call=6)
    assert actor.probed(old) == "drop"


def test_an_actor_that_waits_for_nothing_sends_no_probe() -> None:
    assert Waiting("node", 1).probe() is None


def test_a_probe_is_passed_on_once_a_wait() -> None:
    actor = Waiting("node", 1)
    actor.begin(call=5)
    assert actor.probed(("other", 2, 9)) == "forward"
    assert actor.probed(("other", 2, 9)) == "drop"
    actor.end()
    actor.begin(call=6)
    assert actor.probed(("other", 2, 9)) == "forward"
