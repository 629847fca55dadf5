"""What goes to all ranks of a host again and again is written once; nothing else is different."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import pytest

from monarch._src.net.router import OFTEN
from monarch._src.wire.ring import ROOM
from tests.conftest import Faults
from tests.integration.chorus import Singer, rings

pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and os.uname().machine == "x86_64"),
    reason="only there do several processes hear of one write",
)

RANKS = 5
ENOUGH = OFTEN + 4  # calls, until the last of them went by one write


@pytest.fixture
def chorus(spawn_procs: Any) -> Any:
    """Five ranks that hear the client's calls to all of them by one write."""
    made = spawn_procs({"gpus": RANKS}).spawn("chorus", Singer)
    for number in range(ENOUGH):
        assert made.note.call(number).get().values() == [number] * RANKS
    assert made.take.call().get().values() == [list(range(ENOUGH))] * RANKS
    return made


def test_calls_to_all_ranks_are_heard_by_a_ring(chorus: Any) -> None:
    assert rings() == 1
    assert chorus.rings.call().get().values() == [1] * RANKS


def test_all_ways_to_call_keep_one_order(chorus: Any) -> None:
    draw = random.Random(5)
    expected: list[list[Any]] = [[] for _ in range(RANKS)]
    for number in range(4_000):
        what = number if draw.random() < 0.9 else (number, bytes(draw.choice([5_000, 200_000])))
        start = draw.choice([0, 0, 0, 0, *range(RANKS)])
        stop = draw.choice([RANKS] * 8 + list(range(start + 1, RANKS + 1)))
        chorus.slice(gpus=slice(start, stop)).note.broadcast(what)
        for rank in range(start, stop):
            expected[rank].append(what)
    assert chorus.take.call().get().values() == expected


def test_a_rank_that_is_stopped_keeps_no_other_waiting_and_misses_nothing(chorus: Any) -> None:
    pid = chorus.slice(gpus=2).pid.call_one().get()
    sent = ROOM // 60  # a message takes more than that, so the ring is full long before
    os.kill(pid, signal.SIGSTOP)
    try:
        for number in range(sent):
            chorus.note.broadcast(number)
        for rank in (0, 1, 3, 4):
            told = chorus.slice(gpus=rank).take.call_one().get()
            assert told == list(range(sent))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert chorus.slice(gpus=2).take.call_one().get() == list(range(sent))


def test_an_actor_reaches_others_so_too(chorus: Any, spawn_procs: Any) -> None:
    leader = spawn_procs({"gpus": 1}).spawn("leader", Singer)
    assert leader.lead.call_one(chorus, ENOUGH).get() == 1
    assert chorus.rings.call().get().values() == [2] * RANKS
    assert chorus.take.call().get().values() == [list(range(ENOUGH))] * RANKS


def test_casts_are_passed_on_by_one_write(few_are_many: None, spawn_procs: Any) -> None:
    ranks = 8
    chorus = spawn_procs({"gpus": ranks}).spawn("chorus", Singer)
    for number in range(ENOUGH):
        assert chorus.note.call(number).get().values() == [number] * ranks
    assert chorus.rings.call().get().values() == [1] * ranks
    assert rings() == 0, "it is the agent that writes"
    assert chorus.take.call().get().values() == [list(range(ENOUGH))] * ranks


def test_casts_to_a_mesh_are_where_those_to_a_slice_of_it_were_before(
    few_are_many: None, spawn_procs: Any
) -> None:
    ranks = 9
    chorus = spawn_procs({"gpus": ranks}).spawn("chorus", Singer)
    some = chorus.slice(gpus=slice(1, ranks))
    for number in range(ENOUGH):
        assert some.note.call(number).get().values() == [number] * (ranks - 1)
    assert chorus.rings.call().get().values() == [0] + [1] * (ranks - 1)
    for number in range(ENOUGH):
        assert chorus.note.call(number).get().values() == [number] * ranks
    assert chorus.rings.call().get().values() == [1] * ranks
    assert some.take.call().get().values() == [2 * list(range(ENOUGH))] * (ranks - 1)


def test_a_fork_of_a_rank_hears_nothing(chorus: Any) -> None:
    assert chorus.rings_of_a_fork.call().get().values() == [0] * RANKS
    assert chorus.note.call("still here").get().values() == ["still here"] * RANKS


def test_a_rank_that_dies_ends_it_and_the_rest_is_answered(chorus: Any, faults: Faults) -> None:
    chorus.note.broadcast("last")
    os.kill(chorus.slice(gpus=2).pid.call_one().get(), signal.SIGKILL)
    died = chorus.note.call("more").exception()
    assert died is not None
    rest = chorus.slice(gpus=slice(3, RANKS))
    assert rest.take.call().get().values() == [["last", "more"]] * 2
