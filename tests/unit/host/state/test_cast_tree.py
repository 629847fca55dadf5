"""The tree of a cast: everybody in it once, in order, whoever dies on the way.

`MONARCH_TREE_SCHEDULES` says how many schedules (`make stress`: 5,000).
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.host.state.cast_relay import HELD_S, merge, packed, unpacked
from monarch._src.host.state.cast_tree import (
    MOST_ROWS,
    Answered,
    CastOrder,
    Done,
    HostRange,
    Key,
    SendToHead,
    Stuck,
    TreeRelays,
    TreeSender,
    behind,
    cut,
    in_runs,
    part_of,
    sites_of,
)

ROOT = "root"
MESH = 7
SCHEDULES = int(os.environ.get("MONARCH_TREE_SCHEDULES", "25"))


def everybody_in(stretch: HostRange, fanout: int) -> list[int]:
    return [stretch.first] + [
        place for part in cut(stretch.rest, fanout) for place in everybody_in(part, fanout)
    ]


def depth(stretch: HostRange, fanout: int) -> int:
    return 1 + max((depth(part, fanout) for part in cut(stretch.rest, fanout)), default=0)


@given(st.integers(0, 600), st.integers(1, 40))
def test_each_place_is_reached_once_and_no_one_sends_to_more_than_the_fanout(
    count: int, fanout: int
) -> None:
    parts = cut(HostRange(0, count), fanout)
    assert len(parts) <= fanout
    assert [at for part in parts for at in everybody_in(part, fanout)] == list(range(count))
    sizes = {part.count for part in parts}
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("count", "fanout", "levels"), [(16, 16, 1), (272, 16, 2), (10_000, 32, 3)]
)
def test_a_tree_is_no_deeper_than_it_has_to_be(count: int, fanout: int, levels: int) -> None:
    assert max(depth(part, fanout) for part in cut(HostRange(0, count), fanout)) == levels


@given(st.integers(1, 300), st.integers(1, 9), st.data())
def test_what_is_behind_a_place_is_what_it_would_pass_on(
    count: int, fanout: int, data: st.DataObject
) -> None:
    stretch = HostRange(3, count)
    place = data.draw(st.integers(3, 2 + count))
    found = behind(stretch, fanout, place)
    assert found.first == place
    todo = [stretch]
    while todo:
        one = todo.pop()
        if one.first == place:
            assert one == found
        todo += cut(one.rest, fanout)


@given(st.lists(st.integers(0, 3), max_size=30), st.data())
def test_a_part_of_runs_is_the_part_of_what_they_are_of(values: list[int], data: Any) -> None:
    first = data.draw(st.integers(0, len(values)))
    count = data.draw(st.integers(0, len(values) - first))
    assert part_of(in_runs(values), first, count) == in_runs(values[first : first + count])


def test_hosts_of_ranks_are_in_order_and_those_that_are_gone_left_out() -> None:
    assert sites_of((6, (2, 3), (24, 1)), 8) == (0, 1, 3, 4)
    assert sites_of((6, (2, 3), (24, 1)), 8, (1,)) == (0, 3, 4)


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=2)), max_size=20), st.randoms())
def test_answers_are_merged_alike_in_whichever_order_they_come(
    answers: list[tuple[int, bytes]], chance: random.Random
) -> None:
    alone = [(at, 1, status, body) for at, (status, body) in enumerate(answers)]
    mixed = list(alone)
    chance.shuffle(mixed)
    half = len(mixed) // 2
    found = merge([*merge(mixed[:half]), *merge(mixed[half:])])
    assert [(f + n, s, b) for f, c, s, b in found for n in range(c)] == [
        (f, s, b) for f, _, s, b in alone
    ]
    assert all(a[2:] != b[2:] for a, b in pairwise(found))
    assert list(unpacked(*packed(found))) == found


def test_what_stands_is_told_in_rows_and_no_more_than_is_useful() -> None:
    forest: TreeSender[str] = TreeSender(4)
    for number in range(1, 101):
        forest.cast(number, (0, 1), "", 10)
    assert forest.standing() == [(1, 100)]
    assert forest.held == 1000
    for number in range(2, 101, 2):
        for place in (0, 1):
            forest.done(number, place)
    rows = forest.standing()
    assert len(rows) == MOST_ROWS
    assert rows[:2] == [(1, 1), (3, 3)]
    assert rows[-1][1] == 100
    assert forest.held == 500


def test_a_host_keeps_what_it_has_answered_while_the_root_waits_for_it() -> None:
    boughs = TreeRelays()
    for number in range(1, 201):
        key = (ROOT, MESH, number)
        boughs.taken(key, "up", 0, number, {}, owes=True)
        boughs.own_done(key, [(0, 1, 0, b"x")], 0.0)
        boughs.standing(ROOT, MESH, [(3, 3)], number)
    assert next(call for _, call, _ in boughs.kept(MESH)) == 3
    assert len(boughs.kept(MESH)) < 80
    (again,) = boughs.asked_again((ROOT, MESH, 3), 5)
    assert again == Done(ROOT, (ROOT, MESH, 3), 5, 3, [(0, 1, 0, b"x")])


def test_what_is_held_for_long_is_told_at_once_and_goes_up_all_the_same() -> None:
    boughs, key = TreeRelays(), (ROOT, MESH, 7)
    boughs.taken(key, "up", 0, 3, {4: "h4", 5: "h5"}, owes=True)
    assert boughs.next_deadline() is None
    boughs.own_done(key, [(0, 1, 0, b"x")], 1.0)
    boughs.child_done(key, 4, 3, [(1, 1, 0, b"x")], [], 1.1)
    assert boughs.next_deadline() == 1.0 + HELD_S
    assert boughs.time_passed(1.1) == []
    assert boughs.time_passed(1.0 + HELD_S) == [(ROOT, 3, [(0, 2, 0, b"x")])]
    assert boughs.next_deadline() is None
    (done,) = boughs.child_done(key, 5, 3, [(2, 1, 0, b"x")], [], 9.0)
    assert done == Done("up", key, 0, 3, [(0, 3, 0, b"x")])
    assert boughs.next_deadline() is None


# --- many hosts, any order, any deaths ------------------------------------------------------------


def as_told(done: Done) -> tuple[Key, int, int, Sequence[Answered], Sequence[int]]:
    return done.key, done.place, done.call, done.answers, done.missing


class Host:
    """One host of the model: it does as `host.cast_relay`; the answer of its rank takes a while."""

    def __init__(self, world: World, site: int) -> None:
        self.world, self.site, self.name = world, site, f"h{site}"
        self.arrivals: CastOrder[tuple[str, SendToHead, tuple[int, ...]]] = CastOrder()
        self.boughs = TreeRelays()
        self.took: list[int] = []
        self.working: list[tuple[int, tuple[int, ...]]] = []
        self.cut_off: set[str] = set()

    def cast(self, peer: str, what: SendToHead, sites: tuple[int, ...]) -> None:
        again = peer == ROOT and what.stretch.count == 1
        ready = self.arrivals.on_cast(
            what.number, what.before[0][1], (peer, what, sites), again=again
        )
        if ready is None:
            if again:
                self.do(self.boughs.asked_again((ROOT, MESH, what.number), what.stretch.first))
            return
        for up, one, among in ready:
            self.take(up, one, among)

    def take(self, up: str, what: SendToHead, sites: tuple[int, ...]) -> None:
        self.took.append(what.number)
        parts = cut(what.stretch.rest, self.world.forest.fanout)
        children = {part.first: f"h{sites[part.first]}" for part in parts}
        key = (ROOT, MESH, what.number)
        self.do(self.boughs.taken(key, up, what.stretch.first, what.number, children, owes=True))
        self.working.append((what.number, sites))
        for part in parts:
            before = part_of(what.before, part.first - what.stretch.first, part.count)
            below = SendToHead(what.number, sites[part.first], part, before)
            child = children[part.first]
            if child in self.cut_off:
                self.do(self.boughs.host_lost(child))
            else:
                self.world.send(self.name, child, ("cast", below, sites))

    def work(self) -> None:
        number, sites = self.working.pop(self.world.chance.randrange(len(self.working)))
        answer = (sites.index(self.site), 1, 0, b"x")
        self.do(self.boughs.own_done((ROOT, MESH, number), [answer], self.world.now))

    def wait(self) -> None:
        for to, call, answers in self.boughs.time_passed(self.world.now):
            self.world.send(self.name, to, ("answers", call, answers))
        deadline = self.boughs.next_deadline()
        assert deadline is None or deadline > self.world.now

    def lost(self, name: str) -> None:
        self.cut_off.add(name)
        self.do(self.boughs.host_lost(name))

    def do(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Stuck):
                self.world.send(self.name, ROOT, ("stuck", action.key[2], action.place))
            elif action.to not in self.cut_off:
                self.world.send(self.name, action.to, ("done", action))


class World:
    """A root and hosts, with a queue between any two."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.count = self.chance.choice([2, 5, 12, 40])
        self.forest: TreeSender[tuple[int, ...]] = TreeSender(self.chance.choice([1, 2, 3, 8]))
        self.hosts = {f"h{n}": Host(self, n) for n in range(self.count)}
        self.queues: dict[tuple[str, str], deque[Any]] = {}
        self.casts: dict[int, tuple[int, ...]] = {}
        self.answered: dict[int, set[int]] = {}
        self.dead: set[int] = set()
        self.now = 0.0
        # A root on one of these hosts ends with it: that one is not lost, nor out of its reach.
        self.own = self.chance.choice([None, self.chance.randrange(self.count)])

    def send(self, source: str, target: str, what: Any) -> None:
        if target == ROOT or target in self.hosts:
            self.queues.setdefault((source, target), deque()).append(what)

    def send_all(self, heads: list[SendToHead]) -> None:
        for head in heads:
            if head.site in self.dead:
                self.send_all(self.forest.stuck(head.number, head.stretch.first, alive=False))
            else:
                sites = self.forest.sites(head.number)
                self.send(ROOT, f"h{head.site}", ("cast", head, sites))

    def cast(self) -> None:
        number = len(self.casts) + 1
        living = [n for n in range(self.count) if n not in self.dead]
        some = self.chance.choice([len(living), self.chance.randint(0, len(living))])
        sites = tuple(sorted(self.chance.sample(living, some)))
        self.casts[number] = sites
        self.answered[number] = set()
        self.send_all(self.forest.cast(number, sites, sites, 1, self.own))

    def deliver(self) -> None:
        source, target = self.chance.choice([pair for pair, q in self.queues.items() if q])
        what = self.queues[source, target].popleft()
        if target == ROOT:
            self.to_root(what)
        elif what[0] == "cast":
            self.hosts[target].cast(source, what[1], what[2])
        else:
            done: Done = what[1]
            host = self.hosts[target]
            host.do(host.boughs.child_done(*as_told(done), self.now))

    def to_root(self, what: Any) -> None:
        if what[0] == "stuck":
            self.send_all(self.forest.stuck(what[1], what[2], alive=True))
            return
        if what[0] == "answers":
            self.came(what[1], what[2])
            return
        done: Done = what[1]
        number = done.key[2]
        self.came(number, done.answers)
        self.send_all(self.forest.done(number, done.place, done.missing))

    def came(self, number: int, answers: list[Any]) -> None:
        for first, count, _, _ in answers:
            self.answered[number].update(self.casts[number][first : first + count])

    def kill(self) -> None:
        living = [host.site for host in self.hosts.values() if host.site != self.own]
        if living:
            site = self.chance.choice(living)
            name = f"h{site}"
            self.dead.add(site)
            del self.hosts[name]
            self.queues = {p: q for p, q in self.queues.items() if name not in p}
            self.send_all(self.forest.lost(site))
            for host in self.hosts.values():
                host.lost(name)

    def part(self) -> None:
        """Two hosts can't reach each other any more, but the root both."""
        if len(self.hosts) > 1:
            one, other = self.chance.sample(list(self.hosts), 2)
            for pair in ((one, other), (other, one)):
                self.queues.pop(pair, None)
                self.hosts[pair[0]].lost(pair[1])

    @property
    def is_busy(self) -> bool:
        return any(self.queues.values()) or any(h.working for h in self.hosts.values())

    def step(self, trouble: float) -> None:
        chance = self.chance.random()
        working = [host for host in self.hosts.values() if host.working]
        if chance < trouble:
            self.chance.choice([self.kill, self.part])()
        elif chance < 0.2:
            self.cast()
        elif chance < 0.25:
            self.now += self.chance.choice([HELD_S / 2, HELD_S])
            for host in self.hosts.values():
                host.wait()
        elif chance < 0.5 and working:
            self.chance.choice(working).work()
        elif any(self.queues.values()):
            self.deliver()
        self.forest.validate()

    def settle(self) -> None:
        while self.is_busy:
            for host in list(self.hosts.values()):
                while host.working:
                    host.work()
            if any(self.queues.values()):
                self.deliver()
            self.forest.validate()


@pytest.mark.parametrize("trouble", [0.0, 0.01, 0.05])
def test_every_host_that_lives_takes_each_cast_once_in_order_and_its_answer_comes(
    trouble: float,
) -> None:
    for seed in range(SCHEDULES):
        world = World(seed)
        for _ in range(120):
            world.step(trouble)
        world.settle()
        assert world.forest.standing() == [], seed
        for host in world.hosts.values():
            theirs = [number for number, sites in world.casts.items() if host.site in sites]
            assert host.took == theirs, (seed, host.site)
            assert all(host.site in world.answered[number] for number in theirs), seed


@given(st.integers(1, 60), st.integers(1, 9), st.data())
def test_the_host_of_the_root_itself_gets_it_from_the_root_and_passes_it_on_to_none(
    count: int, fanout: int, data: st.DataObject
) -> None:
    own = data.draw(st.integers(0, count - 1))
    forest: TreeSender[str] = TreeSender(fanout)
    heads = forest.cast(1, tuple(range(count)), "", 1, own)
    assert [head.site for head in heads] == forest.heads(tuple(range(count)), own)
    assert [head.stretch.count for head in heads if head.site == own] == [1]
    everybody = [at for head in heads for at in everybody_in(head.stretch, fanout)]
    assert everybody == list(range(count))


def test_without_trouble_the_root_hears_of_each_stretch_once_and_of_all_answers_merged() -> None:
    world = World(0)
    world.count = 1000
    world.hosts = {f"h{n}": Host(world, n) for n in range(1000)}
    world.forest, world.own = TreeSender(10), None
    world.cast()
    sent = sum(len(q) for pair, q in world.queues.items() if pair[0] == ROOT)
    assert sent == min(10, len(world.casts[1]))
    heard: list[Done] = []
    to_root = world.to_root
    world.to_root = lambda what: (heard.append(what[1]), to_root(what))[1]
    world.settle()
    assert len(heard) == sent
    assert all(len(done.answers) == 1 for done in heard)
