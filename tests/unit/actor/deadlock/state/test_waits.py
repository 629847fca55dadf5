"""Probes find every cycle of waits, and nothing else: against reachability in random graphs."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.actor.deadlock.state.waits import FIRST_S, ActorWaits, Wait

# One wait: for these actors, whether it ends by itself, and whether it keeps its actor from
# answering (a task that nobody awaits does not).
Drawn = tuple[frozenset[int], bool, bool]


def always(_: Wait) -> bool:
    return True


def never(_: Wait) -> bool:
    return False


class Model:
    """Actors whose waits last, and the probes on their way."""

    def __init__(self, drawn: dict[int, list[Drawn]], unowed: set[tuple[int, int]]) -> None:
        self.actors = {name: ActorWaits("node", name) for name in drawn}
        self.drawn = drawn
        self.unowed = unowed  # (who asked, who was asked): it owes that one no answer any more
        self.on_the_way: deque[tuple[int, int, int, tuple[str, int, int, int]]] = deque()
        self.told: set[tuple[int, int]] = set()
        self.waits: dict[tuple[int, int], Wait] = {}
        for name, waits in drawn.items():
            for number, (_, timed, _) in enumerate(waits):
                wait = self.waits[name, number] = Wait(number, None, timed=timed)
                self.actors[name].begin(wait)

    def send_round(self) -> None:
        """Every wait that keeps its actor sends a probe."""
        for (name, number), wait in self.waits.items():
            if self.drawn[name][number][2]:
                self.spread(name, number, self.actors[name].probe(wait))

    def spread(self, name: int, number: int, probe: tuple[str, int, int, int]) -> None:
        for other in self.drawn[name][number][0]:
            self.on_the_way.append((name, number, other, probe))

    def deliver(self) -> None:
        steps = 0
        while self.on_the_way:
            steps += 1
            assert steps < 5_000, "a probe is passed on once by each actor"
            before, _, at, probe = self.on_the_way.popleft()

            def keeps(wait: Wait, before: int = before, at: int = at) -> bool:
                return self.drawn[at][wait.call][2] and (before, at) not in self.unowed

            own, others = self.actors[at].on_probe(probe, keeps)
            if own is not None:
                self.told.add((at, own.call))
            for wait in others:
                self.spread(at, wait.call, probe)


def in_cycles(model: Model) -> set[tuple[int, int]]:
    """The waits from which one comes back to themselves, over none but their own that ends."""

    def next_of(name: int, number: int) -> set[tuple[int, int]]:
        return {
            (other, after)
            for other in model.drawn[name][number][0]
            if (name, other) not in model.unowed
            for after, (_, _, keeps) in enumerate(model.drawn[other])
            if keeps
        }

    def comes_back(start: tuple[int, int]) -> bool:
        seen: set[tuple[int, int]] = set()
        todo = [*next_of(*start)]
        while todo:
            found = todo.pop()
            if found == start:
                return True
            # What its own actor waits for besides is another wait's affair.
            if found in seen or found[0] == start[0] or model.drawn[found[0]][found[1]][1]:
                continue
            seen.add(found)
            todo += next_of(*found)
        return False

    return {wait for wait in model.waits if model.drawn[wait[0]][wait[1]][2] and comes_back(wait)}


NAMES = range(5)
WAITS = st.tuples(st.frozensets(st.sampled_from(NAMES)), st.booleans(), st.booleans())


@given(
    st.fixed_dictionaries({name: st.lists(WAITS, max_size=3) for name in NAMES}),
    st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))),
    st.integers(1, 3),
)
def test_who_waits_in_a_cycle_is_told_and_nobody_else(
    drawn: dict[int, list[Drawn]], unowed: set[tuple[int, int]], rounds: int
) -> None:
    model = Model(drawn, unowed)
    for _ in range(rounds):
        model.send_round()
        model.deliver()
    assert model.told == in_cycles(model)


def test_a_probe_of_a_wait_that_is_over_finds_nothing() -> None:
    actor = ActorWaits("node", 1)
    wait = Wait(5, None)
    actor.begin(wait)
    old = actor.probe(wait)
    assert actor.on_probe(old, always)[0] is wait
    actor.end(wait)
    assert actor.on_probe(old, always) == (None, [])
    actor.begin(Wait(6, None))
    assert actor.on_probe(old, always) == (None, [])


def test_a_probe_is_passed_on_once_a_round() -> None:
    actor = ActorWaits("node", 1)
    wait = Wait(5, None)
    actor.begin(wait)
    assert actor.on_probe(("other", 2, 9, 1), always)[1] == [wait]
    assert actor.on_probe(("other", 2, 9, 1), always)[1] == []
    assert actor.on_probe(("other", 2, 9, 2), always)[1] == [wait]
    actor.end(wait)
    later = Wait(6, None)
    actor.begin(later)
    assert actor.on_probe(("other", 2, 9, 1), always)[1] == [later]


def test_what_one_round_could_not_pass_on_the_next_one_does() -> None:
    """A task began to matter, or the call arrived, after the probe came."""
    actor = ActorWaits("node", 1)
    wait = Wait(5, None)
    actor.begin(wait)
    assert actor.on_probe(("other", 2, 9, 1), never) == (None, [])
    assert actor.on_probe(("other", 2, 9, 1), always)[1] == [wait], "it was not passed on before"


def test_who_has_answered_meanwhile_is_in_no_cycle() -> None:
    """A asks B, whose answer crosses A's probe; by then B waits for what A is to do next."""
    asking, asked = ActorWaits("node", 1), ActorWaits("node", 2)
    first = Wait(5, None)
    asking.begin(first)
    probe = asking.probe(first)
    asked.begin(Wait(7, None))
    assert asked.on_probe(probe, never) == (None, []), "it owes A nothing any more"


def test_a_wait_that_ends_by_itself_is_told_of_its_cycle_and_stands_in_no_other() -> None:
    actor = ActorWaits("node", 1)
    timed = Wait(5, None, timed=True)
    actor.begin(timed)
    assert actor.on_probe(("other", 2, 9, 1), always) == (None, [])
    assert actor.on_probe(actor.probe(timed), always)[0] is timed


def test_the_end_of_one_of_two_waits_for_a_call_leaves_the_other() -> None:
    actor = ActorWaits("node", 1)
    first, second = Wait(5, None), Wait(5, None)
    actor.begin(first)
    actor.begin(second)
    actor.end(first)
    assert actor.waits == {5: second}
    actor.end(second)
    assert actor.waits == {}


def test_each_round_comes_after_twice_the_time_of_the_last() -> None:
    actor, wait = ActorWaits("node", 1), Wait(5, None)
    times: list[float] = []
    for _ in range(4):
        times.append(wait.next_round_s())
        actor.probe(wait)
    assert times == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
