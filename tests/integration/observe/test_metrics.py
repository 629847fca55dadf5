"""What is counted of endpoints: exactly what was called and run, on both sides."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from monarch.actor import Accumulator, Channel, ProcMesh, as_endpoint, send
from monarch.observe import Process, metrics, snapshot
from tests.integration.counted import Talker, callee, caller, rows
from tests.integration.failing_actors import Failing, Faulty
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Counter, Echo, Meeting

Spawn = Callable[..., ProcMesh]

# --- counts ---------------------------------------------------------------------------------------


def test_each_adverb_counts_a_call_and_each_rank_that_runs_it_another(four: ProcMesh) -> None:
    echo = four.spawn("every_adverb", Echo)
    port, received = Channel[int].open()
    for number in range(5):
        echo.same.call(number).get()
        echo.slice(gpus=number % 4).same.call_one(number).get()
        echo.same.choose(number).get()
        for answer in echo.same.stream(number):
            answer.get()
        echo.same.broadcast(number)
        send(echo.same, (number,), {}, port)
        for _ in range(4):
            received.recv().get()
    Accumulator(echo.same, 0, lambda a, b: a + b).accumulate(1).get()
    echo.nothing.call().get()  # behind the broadcasts
    ran = callee(echo, "same")
    called = {row.adverb: row for row in rows(echo, "same", "caller")}
    counted = {adverb: row.calls for adverb, row in called.items()}
    assert counted == {
        "call": 6, "call_one": 5, "choose": 5, "stream": 5, "broadcast": 5, "send": 5,
    }  # fmt: skip
    assert ran.calls == 6 * 4 + 5 + 5 + 5 * 4 + 5 * 4 + 5 * 4
    assert (ran.mesh, ran.mesh_uid, ran.processes) == ("workers", four.uid, 4)
    assert (ran.actor_class, ran.actor, ran.adverb) == ("Echo", "every_adverb", None)
    assert ran.bytes_in == sum(row.bytes_out for row in called.values())
    answered = sum(called[a].bytes_in for a in ("call", "call_one", "choose", "stream"))
    assert (called["broadcast"].bytes_in, called["send"].bytes_in) == (0, 0)
    assert answered < ran.bytes_out, "some answers went to a port"
    for row in (ran, *called.values()):
        assert (row.errors, row.in_flight) == (0, 0)
        assert row.calls_per_s == pytest.approx(row.calls / row.observed_s)
        assert row.observed_s > 0
    for name in ("broadcast", "send"):
        assert called[name].mean_s is called[name].p99_s is called[name].slowest is None
        assert called[name].histogram == ()


def test_sizes_are_those_of_arguments_and_answers(four: ProcMesh) -> None:
    echo = four.spawn("sizes", Echo)
    data = os.urandom(100_000)  # travels out of band
    echo.length.call(data).get()
    echo.same.call(data).get()
    length, same = callee(echo, "length"), callee(echo, "same")
    for ran, called in (
        (length, caller(echo, "length", "call")),
        (same, caller(echo, "same", "call")),
    ):
        assert called.bytes_out == ran.bytes_in
        assert called.bytes_in == ran.bytes_out
    assert 400_000 < length.bytes_in < 402_000
    assert length.bytes_out < 200
    assert 400_000 < same.bytes_out < 402_000


def test_what_fails_is_counted_by_each_rank_and_once_by_its_caller(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 4})
    failing, echo = procs.spawn("failing", Failing), procs.spawn("echo", Echo)
    assert failing.raise_on.call([1, 3]).exception() is not None
    assert failing.raise_on.call([]).get() is not None
    assert echo.slice(gpus=0).unpicklable.call_one().exception() is not None
    ran, called = callee(failing, "raise_on"), caller(failing, "raise_on", "call")
    assert (ran.calls, ran.errors, ran.in_flight) == (8, 2, 0)
    assert (called.calls, called.errors, called.in_flight) == (2, 1, 0)
    assert called.bytes_in == ran.bytes_out, "failures have a size too"
    assert (callee(echo, "unpicklable").errors, callee(echo, "unpicklable").calls) == (1, 1)
    assert caller(echo, "unpicklable", "call_one").errors == 1
    (seen,) = [seen for seen in snapshot() if seen.uid == procs.uid]
    assert [row.errors for row in seen.rows] == [1, 1, 0, 1]
    assert [row.messages for row in seen.rows] == [3, 2, 2, 2]


def test_explicit_answers_are_counted_like_others(four: ProcMesh) -> None:
    talker = four.spawn("talker", Talker)
    for number in range(3):
        assert talker.plus_one.call(number).get().values() == [number + 1] * 4
    assert isinstance(talker.give_exception.call().exception(), KeyError)
    talker.nothing.call().get()  # an endpoint ends after it has answered
    ran, called = callee(talker, "plus_one"), caller(talker, "plus_one", "call")
    assert (ran.calls, ran.errors, ran.in_flight) == (12, 0, 0)
    assert (called.calls, called.errors, called.in_flight) == (3, 0, 0)
    assert called.bytes_in == ran.bytes_out > 0
    assert callee(talker, "give_exception").errors == 4
    assert caller(talker, "give_exception", "call").errors == 1


def test_a_method_that_is_no_endpoint_is_counted_as_one(four: ProcMesh) -> None:
    talker = four.spawn("plain", Talker)
    for _ in range(2):
        assert as_endpoint(talker.plain).call(2).get().values() == [4] * 4
    assert callee(talker, "plain").calls == 8
    assert caller(talker, "plain", "call").calls == 2


def test_an_endpoint_that_is_not_instrumented_is_counted_by_nobody(four: ProcMesh) -> None:
    talker = four.spawn("quiet", Talker)
    assert talker.uncounted.call(1).get().values() == [1] * 4
    talker.uncounted.broadcast(1)
    assert {answer.get() for answer in talker.uncounted.stream(1)} == {1}
    talker.nothing.call().get()
    assert {row.endpoint for row in metrics(talker).endpoints} == {"nothing"}


def test_calls_that_overlap_are_in_flight_together(four: ProcMesh) -> None:
    meeting = four.spawn("meeting", Meeting).slice(gpus=1)
    first = meeting.meet.call_one(1, 3)
    second = meeting.meet.call_one(2, 3)
    meeting.alone.call_one().get()  # begun after the others were
    ran = callee(meeting, "meet")
    assert (ran.calls, ran.in_flight, ran.mean_s) == (2, 2, None)
    third = meeting.meet.call_one(3, 3)
    for answer in (first, second, third):
        assert answer.get() == [1, 2, 3]
    ran = callee(meeting, "meet")
    assert (ran.calls, ran.in_flight, ran.errors) == (3, 0, 0)


def test_a_call_is_in_flight_until_its_last_rank_has_answered(
    four: ProcMesh, gate: GateKeeper
) -> None:
    faulty = four.spawn("held", Faulty)
    answer = faulty.hold_on.call([2], gate.gate)
    gate.wait_entered()
    assert caller(faulty, "hold_on", "call").in_flight == 1
    assert callee(faulty.slice(gpus=2), "hold_on").in_flight == 1
    gate.open()
    answer.get()
    for row in (caller(faulty, "hold_on", "call"), callee(faulty, "hold_on")):
        assert row.in_flight == 0


# --- times ----------------------------------------------------------------------------------------


def test_a_call_takes_its_caller_longer_than_any_of_its_ranks(four: ProcMesh) -> None:
    counter = four.spawn("timed", Counter)
    for _ in range(20):
        counter.add.call().get()
    ran, called = callee(counter, "add"), caller(counter, "add", "call")
    assert called.max_s is not None
    assert ran.max_s is not None
    assert 0 < ran.max_s < called.max_s
    for row in (ran, called):
        assert row.p50_s is not None
        assert row.p90_s is not None
        assert row.p99_s is not None
        assert row.max_s is not None
        assert row.mean_s == pytest.approx(row.total_s / row.calls)
        assert row.p50_s <= row.p90_s <= row.p99_s <= row.max_s
        assert sum(count for _, count in row.histogram) == row.calls
        bounds = [bound for bound, _ in row.histogram]
        assert bounds == sorted(bounds)
        assert bounds[-1] * 2 ** (-1 / 4) <= row.max_s <= bounds[-1]


def test_the_slowest_rank_is_named_and_so_is_how_long_calls_wait_their_turn(
    four: ProcMesh, gate: GateKeeper
) -> None:
    faulty = four.spawn("waited_for", Faulty)
    held = faulty.hold_on.call([3], gate.gate)
    gate.wait_entered()
    queued = faulty.slice(gpus=3).pid.call_one()
    metrics(four, timeout=60)  # answered behind the call, on the same pipe: by now it waits
    waited_from = time.monotonic()
    metrics(four, timeout=60)
    waited_s = time.monotonic() - waited_from
    gate.open()
    held.get()
    queued.get()
    row = callee(faulty, "hold_on")
    assert row.slowest is not None
    process, mean_s = row.slowest
    assert process == Process("workers", 3, {"gpus": 3})
    assert row.max_s == pytest.approx(mean_s)
    pid = callee(faulty, "pid")
    assert pid.waited_s is not None
    assert pid.waited_s > waited_s
    assert caller(faulty, "hold_on", "call").waited_s is None


def test_busy_seconds_are_those_in_which_anything_ran(spawn_procs: Spawn, gate: GateKeeper) -> None:
    procs = spawn_procs({"gpus": 2})
    faulty = procs.spawn("faulty", Faulty)

    def busy() -> list[float]:
        (seen,) = [seen for seen in snapshot() if seen.uid == procs.uid]
        return [row.busy_s for row in seen.rows]

    faulty.hold_on.call([], gate.gate).get()
    held = faulty.slice(gpus=1).hold_on.call([1], gate.gate)
    gate.wait_entered()
    first, second = busy(), busy()
    assert 0 < first[1] < second[1], "it runs on"
    assert 0 < first[0] == second[0]
    gate.open()
    held.get()
    after = busy()
    assert after[1] >= second[1]
    assert busy() == after
    assert sum(after) == pytest.approx(callee(faulty, "hold_on").total_s)
