"""Calls to a mesh with `restart`: every handle goes on working, and no message has two lives."""

from __future__ import annotations

import os
import pickle
import queue
import random
import signal
import threading
from typing import Any

import pytest

from monarch.actor import ActorError, Future, ProcMesh, RestartedError
from monarch.observe import RankRestarting
from monarch.supervision import Restart
from tests.fault.restarted_actors import OFTEN, Counting, Spawn, casts_to_few, counts
from tests.integration.gates import GateKeeper

# --- its callers ----------------------------------------------------------------------------------


def test_every_handle_goes_on_working(renewed: ProcMesh, spawn_procs: Spawn) -> None:
    counting = renewed.spawn("counting", Counting, "first")
    one, pair = counting.slice(gpus=1), counting.slice(gpus=slice(1, 3))
    elsewhere = spawn_procs({"gpus": 2}, name="elsewhere").spawn("e", Counting, "elsewhere")
    knows, fresh = elsewhere.slice(gpus=0), elsewhere.slice(gpus=1)
    knows.keep.call_one(counting).get(timeout=60)
    knows.ask_kept.call_one().get(timeout=60)
    old = pickle.dumps(counting)
    for life in range(3):
        one.die.call_one("killed").exception(timeout=60)
        assert counts(counting)[1] == 1, f"life {life}"
        assert counts(one) == [2]
        assert counts(pair)[0] == 3
        assert knows.ask_kept.call_one().get(timeout=60)[1] == ("first", 4)
        assert counting.slice(gpus=0).ask.call_one(one).get(timeout=60) == [("first", 5)]
    # One that has never heard of the renewed, nor of a rank of it that has died thrice.
    assert fresh.ask_pickled.call_one(old).get(timeout=60)[1] == ("first", 6)
    # And what has died can call, and be given, as before.
    assert one.ask.call_one(elsewhere).get(timeout=60) == [("elsewhere", 1)] * 2


def test_a_handle_that_nobody_has_used_works_while_its_rank_is_down(
    spawn_procs: Spawn, restarts: queue.SimpleQueue[RankRestarting]
) -> None:
    procs = spawn_procs({"gpus": 2}, restart=Restart(back_off="200ms", jitter=0))
    counting = procs.spawn("counting", Counting, "first")
    fresh = spawn_procs(name="elsewhere").spawn("e", Counting, "elsewhere")
    fresh.count.call_one().get(timeout=60)
    for _ in range(2):  # the second restart waits for its time
        counting.slice(gpus=1).die.call_one("killed").exception(timeout=60)
        restarts.get(timeout=60)
    assert fresh.ask.call_one(counting).get(timeout=60) == [("first", 1)] * 2


def test_calls_under_way_are_told_that_the_state_is_lost_and_later_ones_wait(
    renewed: ProcMesh, gate: GateKeeper
) -> None:
    counting = renewed.spawn("counting", Counting, "first")
    pids = counting.pid.call().get().values()
    one = counting.slice(gpus=1)
    under_way = [one.hold.call_one(gate.gate), one.count.call_one(), counting.count.call()]
    streamed = list(counting.pid.stream())
    gate.wait_entered()
    os.kill(pids[1], signal.SIGKILL)
    for answer in under_way:
        error = answer.exception(timeout=60)
        assert isinstance(error, RestartedError)
        (failure,) = error.failures
        assert (failure.rank, failure.kind, failure.restarted) == (1, "proc died", 1)
    assert str(error) == (
        f"mesh[gpus=1] (pid {pids[1]}) died while it ran Counting.hold: killed by SIGKILL\n"
        "  the process is being restarted, and its state in memory is lost; this call may have "
        "been done in part: call again"
    )
    outcomes = [answer.exception(timeout=60) for answer in streamed]
    assert [type(e) for e in outcomes if e is not None] == [RestartedError]
    assert counts(counting)[1] == 1


def test_the_error_travels(renewed: ProcMesh, spawn_procs: Spawn, gate: GateKeeper) -> None:
    counting = renewed.spawn("counting", Counting, "first")
    caller = spawn_procs(name="elsewhere").spawn("caller", Counting, "caller")
    pid = counting.slice(gpus=0).pid.call_one().get()
    answer = caller.ask_and_wait.call_one(counting.slice(gpus=0), gate.gate)
    gate.wait_entered()
    os.kill(pid, signal.SIGKILL)
    assert answer.get(timeout=60) == "RestartedError"
    error = counting.slice(gpus=0).die.call_one("killed").exception(timeout=60)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RestartedError
    assert (str(again), again.failures) == (str(error), getattr(error, "failures"))  # noqa: B009


def test_calls_raise_at_once_while_a_rank_is_down_if_they_are_to(
    spawn_procs: Spawn, restarts: queue.SimpleQueue[RankRestarting], gate: GateKeeper
) -> None:
    def wait_at_gate() -> None:
        gate_.pass_through()

    gate_ = gate.gate
    policy = Restart(at_most=9, back_off=0, while_restarting="raise")
    procs = spawn_procs({"gpus": 2}, restart=policy, bootstrap=wait_at_gate)
    gate.open(2)
    counting = procs.spawn("counting", Counting, "first")
    fresh = spawn_procs(name="elsewhere").spawn("e", Counting, "elsewhere")
    fresh.count.call_one().get(timeout=60)
    gate.wait_entered(2)
    os.kill(counting.slice(gpus=1).pid.call_one().get(timeout=60), signal.SIGKILL)
    restarts.get(timeout=60)
    first = counting.count.call()  # it may be up by now: then its bootstrap function is waited for
    gate.wait_entered()
    gate.open()
    told = [first.exception(timeout=60)]
    while told[-1] is not None:
        assert isinstance(told[-1], RestartedError)
        told.append(counting.count.call().exception(timeout=60))
    (_, calls) = counting.slice(gpus=1).count.call_one().get(timeout=60)
    assert fresh.ask.call_one(counting).get(timeout=60)[1] == ("first", calls + 1)


def test_a_broadcast_to_a_rank_that_is_down_raises_if_calls_do(
    spawn_procs: Spawn, restarts: queue.SimpleQueue[RankRestarting]
) -> None:
    policy = Restart(back_off="1h", longest="1h", while_restarting="raise")
    procs = spawn_procs({"gpus": 2}, restart=policy)
    counting = procs.spawn("counting", Counting, "first")
    fresh = spawn_procs(name="elsewhere").spawn("e", Counting, "elsewhere")
    fresh.count.call_one().get(timeout=60)
    one = counting.slice(gpus=1)
    assert isinstance(one.die.call_one("killed").exception(timeout=60), RestartedError)
    restarts.get(timeout=60)
    while one.count.call_one().exception(timeout=60) is not None:
        pass  # the first restart comes at once
    assert isinstance(one.die.call_one("killed").exception(timeout=60), RestartedError)
    restarts.get(timeout=60)  # and the second in an hour
    for _ in range(3):
        with pytest.raises(RestartedError):
            counting.count.broadcast()
    with pytest.raises(RestartedError):
        counting.count.call().get(timeout=60)
    assert counting.slice(gpus=0).count.call_one().get(timeout=60) == ("first", 2)
    error = fresh.ask.call_one(counting).exception(timeout=60)
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, RestartedError)


def test_casts_reach_the_new_process_and_never_wait_for_the_old_one(
    spawn_procs: Spawn, few_are_many: None
) -> None:
    procs = spawn_procs({"gpus": 8}, restart=OFTEN)
    counting = procs.spawn("counting", Counting, "first")
    caller = spawn_procs(name="elsewhere", bootstrap=casts_to_few)
    elsewhere = caller.spawn("e", Counting, "elsewhere")
    assert len(elsewhere.ask.call_one(counting).get(timeout=60)) == 8
    for dead in (4, 4, 7):
        counting.slice(gpus=dead).count.broadcast()  # something direct, that a cast has to follow
        error = counting.die_on.call([dead]).exception(timeout=60)
        assert isinstance(error, RestartedError)
        assert counts(counting)[dead] == 1
        assert counting.slice(gpus=dead).count.call_one().get(timeout=60)[1] == 2
        assert elsewhere.ask.call_one(counting).get(timeout=60)[dead][1] == 3
        assert elsewhere.ask.call_one(counting).get(timeout=60)[dead][1] == 4
        assert counts(counting)[dead] == 5


# --- once, in order, in one life ------------------------------------------------------------------


def test_no_message_reaches_two_lives_and_each_life_gets_its_own_in_order(
    spawn_procs: Spawn,
) -> None:
    procs = spawn_procs({"gpus": 2}, restart=OFTEN)
    counting = procs.spawn("counting", Counting, "first")
    one = counting.slice(gpus=1)
    chance = random.Random(7)
    answers: list[Future[tuple[int, list[int]]]] = []
    alive: list[int] = []
    for number in range(600):
        answers.append(one.note.call_one(number))
        if chance.random() < 0.05 and answers[-1].exception(timeout=60) is None:
            alive = [answers[-1].get()[0]]
        elif alive and chance.random() < 0.05:  # while it has more to do
            os.kill(alive.pop(), signal.SIGKILL)
    lives: dict[int, list[int]] = {}
    for number, answer in enumerate(answers):
        error = answer.exception(timeout=60)
        if error is None:
            pid, order = answer.get()
            assert order[-1] == number
            lives[pid] = order
        else:
            assert isinstance(error, RestartedError), error
    assert len(lives) > 3
    taken = [number for order in lives.values() for number in order]
    assert taken == sorted(set(taken)), "each once, and lives one after another"


@pytest.mark.parametrize("seed", [1, 2])
def test_while_ranks_die_at_random_every_call_is_answered_or_told_of_a_restart(
    spawn_procs: Spawn, seed: int
) -> None:
    procs = spawn_procs({"gpus": 4}, restart=OFTEN)
    counting = procs.spawn("counting", Counting, "first")
    outside = spawn_procs({"gpus": 2}, name="outside").spawn("o", Counting, "outside")
    chance = random.Random(seed)
    outcomes: list[str] = []

    def call_again_and_again(number: int) -> None:
        mine = random.Random(seed * 100 + number)
        for _ in range(40):
            through = outside.slice(gpus=number % 2)
            target = counting.slice(gpus=mine.randrange(4)) if mine.random() < 0.5 else counting
            answer = through.ask.call_one(target) if number < 2 else target.count.call()
            error = answer.exception(timeout=60)
            if isinstance(error, ActorError):
                error = error.exception
            assert error is None or isinstance(error, RestartedError), error
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=call_again_and_again, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        pid = counting.slice(gpus=chance.randrange(4)).pid.call_one()
        if pid.exception(timeout=60) is None:
            try:
                os.kill(pid.get(), signal.SIGKILL)
            except ProcessLookupError:
                pass  # another one of these
        counts_or_none(counting)
    for thread in threads:
        thread.join()
    assert len(outcomes) == 160, "no thread has ended early"
    assert "NoneType" in outcomes
    assert len(counting.count.call().get(timeout=60).values()) == 4


def counts_or_none(counting: Any) -> list[int] | None:
    """Some work between two deaths."""
    try:
        return counts(counting)
    except RestartedError:
        return None
