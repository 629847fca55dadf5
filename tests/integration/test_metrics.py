"""What is counted of endpoints: exactly what was called and run, on both sides."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._src.actor.runtime import runtime
from monarch.actor import (
    Accumulator,
    Actor,
    Channel,
    MeshStoppedError,
    Port,
    ProcMesh,
    SupervisionError,
    as_endpoint,
    endpoint,
    get_or_spawn_controller,
    send,
    shutdown_context,
)
from monarch.observe import EndpointMetrics, Process, metrics, snapshot
from tests.conftest import Faults
from tests.integration.actors import Counter, Echo, Failing, Meeting, Mortal, Ring, Teller
from tests.integration.gates import GateKeeper, write_byte

Spawn = Callable[..., ProcMesh]


class Talker(Actor):
    """Answers through ports, or is not counted, or computes."""

    @endpoint(explicit_response_port=True)
    def plus_one(self, port: Port[int], number: int) -> None:
        port.send(number + 1)

    @endpoint(explicit_response_port=True)
    def give_exception(self, port: Port[int]) -> None:
        port.exception(KeyError("as it is"))

    @endpoint(instrument=False)
    def uncounted(self, value: int) -> int:
        return value

    @endpoint
    def compute_until(self, entered: str, path: str) -> int:
        """In Python, all the time."""
        write_byte(entered)
        number = 0
        while not os.path.exists(path):
            for _ in range(10_000):
                number += 1
        return number

    @endpoint
    def nothing(self) -> None:
        return None

    @endpoint
    def read(self, mesh: Any) -> list[tuple[str, str, int, int]]:
        found = metrics(mesh, timeout=60)
        assert found.missing == ()
        return [(r.side, r.endpoint, r.calls, r.in_flight) for r in found.endpoints]

    def plain(self, number: int) -> int:
        return 2 * number


def rows(
    mesh: Any, name: str = "", side: str = "callee", adverb: str | None = None
) -> list[EndpointMetrics]:
    """The rows of one endpoint, or of all."""
    found = metrics(mesh, timeout=60)
    assert found.missing == ()
    return [
        row
        for row in found.endpoints
        if row.side == side and name in ("", row.endpoint) and adverb in (None, row.adverb)
    ]


def callee(mesh: Any, name: str) -> EndpointMetrics:
    """What those who run it have counted."""
    (row,) = rows(mesh, name)
    return row


def caller(mesh: Any, name: str, adverb: str) -> EndpointMetrics:
    """What those who call it have counted."""
    (row,) = rows(mesh, name, "caller", adverb)
    return row


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
    mortal = four.spawn("held", Mortal)
    answer = mortal.hold_on.call([2], gate.gate)
    gate.wait_entered()
    assert caller(mortal, "hold_on", "call").in_flight == 1
    assert callee(mortal.slice(gpus=2), "hold_on").in_flight == 1
    gate.open()
    answer.get()
    for row in (caller(mortal, "hold_on", "call"), callee(mortal, "hold_on")):
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
    mortal = four.spawn("waited_for", Mortal)
    held = mortal.hold_on.call([3], gate.gate)
    gate.wait_entered()
    queued = mortal.slice(gpus=3).pid.call_one()
    metrics(four, timeout=60)  # answered behind the call, on the same pipe: by now it waits
    waited_from = time.monotonic()
    metrics(four, timeout=60)
    waited_s = time.monotonic() - waited_from
    gate.open()
    held.get()
    queued.get()
    row = callee(mortal, "hold_on")
    assert row.slowest is not None
    process, mean_s = row.slowest
    assert process == Process("workers", 3, {"gpus": 3})
    assert row.max_s == pytest.approx(mean_s)
    pid = callee(mortal, "pid")
    assert pid.waited_s is not None
    assert pid.waited_s > waited_s
    assert caller(mortal, "hold_on", "call").waited_s is None


def test_busy_seconds_are_those_in_which_anything_ran(spawn_procs: Spawn, gate: GateKeeper) -> None:
    procs = spawn_procs({"gpus": 2})
    mortal = procs.spawn("mortal", Mortal)

    def busy() -> list[float]:
        (seen,) = [seen for seen in snapshot() if seen.uid == procs.uid]
        return [row.busy_s for row in seen.rows]

    held = mortal.hold_on.call([1], gate.gate)
    gate.wait_entered()
    first, second = busy(), busy()
    assert 0 < first[1] < second[1], "it runs on"
    assert first[0] == second[0]
    gate.open()
    held.get()
    after = busy()
    assert after[1] >= second[1]
    assert busy() == after
    assert sum(after) == pytest.approx(callee(mortal, "hold_on").total_s)


# --- who is asked ---------------------------------------------------------------------------------


def test_a_slice_has_the_figures_of_its_ranks_and_none_of_callers(grid: ProcMesh) -> None:
    teller = grid.spawn("sliced", Teller)
    teller.pid.call().get()
    teller.slice(hosts=1).pid.call().get()
    teller.slice(hosts=1, gpus=2).pid.call_one().get()
    assert callee(teller, "pid").calls == 10
    assert callee(teller.slice(hosts=0), "pid").calls == 3
    assert callee(teller.slice(hosts=1), "pid").calls == 7
    (last,) = metrics(teller.slice(hosts=1, gpus=slice(2, 3))).endpoints
    assert (last.calls, last.processes, last.side) == (3, 1, "callee")
    assert last.slowest is not None
    assert last.slowest[0] == Process("grid", 5, {"hosts": 1, "gpus": 2})
    of_procs = [row for row in rows(grid.slice(gpus=2)) if row.actor == "sliced"]
    assert [row.calls for row in of_procs] == [4]
    assert rows(grid.slice(gpus=2), side="caller") == []
    assert {row.adverb: row.calls for row in rows(teller, side="caller")} == {
        "call": 2,
        "call_one": 1,
    }


def test_a_mesh_that_was_spawned_on_a_slice_is_a_whole_one(four: ProcMesh) -> None:
    counter = four.slice(gpus=slice(1, 3)).spawn("on_two", Counter)
    counter.add.call().get()
    assert callee(counter, "add").calls == 2
    assert caller(counter, "add", "call").calls == 1


def test_actors_that_call_actors_are_callers_too(four: ProcMesh) -> None:
    ring, echo = four.spawn("ring", Ring), four.spawn("asked", Echo)
    ring.ask.call(echo.slice(gpus=0), "x").get()
    ring.slice(gpus=1).ask_all.call_one(echo, "y").get()
    by_one = caller(echo, "same", "call_one")
    assert (by_one.calls, by_one.processes) == (4, 4)
    assert by_one.slowest is not None
    assert by_one.slowest[0].mesh == "workers"
    by_all = caller(echo, "same", "call")
    assert (by_all.calls, by_all.processes) == (1, 1)
    assert by_all.slowest is not None
    assert by_all.slowest[0] == Process("workers", 1, {"gpus": 1})
    assert callee(echo, "same").calls == 8
    by_client = caller(ring, "ask", "call")
    assert by_client.slowest is not None
    assert by_client.slowest[0] == Process("client", None, {})


def test_a_rank_may_ask_too_and_finds_itself_at_it(four: ProcMesh) -> None:
    talker = four.spawn("asking", Talker)
    talker.nothing.call().get()
    one = talker.slice(gpus=2)
    assert one.read.call_one(talker).get() == [
        ("callee", "nothing", 4, 0),
        ("callee", "read", 1, 1),
    ]
    assert one.read.call_one(talker.slice(gpus=1)).get() == [("callee", "nothing", 1, 0)]
    assert ("callee", "nothing", 1, 0) in one.read.call_one(None).get(), "what is counted there"


def test_controllers_are_counted_in_the_client(four: ProcMesh) -> None:
    counter = get_or_spawn_controller("counted", Counter).get()
    counter.add.call_one().get()
    ran = callee(counter, "add")
    assert (ran.mesh, ran.mesh_uid, ran.calls, ran.processes) == ("client", "0", 1, 1)
    assert caller(counter, "add", "call_one").calls == 1
    everything = [row for row in metrics().endpoints if row.actor == "counted"]
    assert [(row.side, row.calls) for row in everything] == [("callee", 1), ("caller", 1)]


def test_actors_of_one_name_on_one_mesh_are_counted_together_and_others_apart(
    spawn_procs: Spawn,
) -> None:
    procs = spawn_procs({"gpus": 2})
    for _ in range(3):
        counter = procs.spawn("again", Counter)
        counter.add.call().get()
        counter.stop().get()
    procs.spawn("another", Counter).add.call().get()
    assert [(r.actor, r.calls) for r in rows(procs)] == [("again", 6), ("another", 2)]


def test_figures_end_with_their_mesh(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2})
    counter = procs.spawn("counter", Counter)
    counter.add.call().get()
    uid = procs.uid
    assert uid in {row.mesh_uid for row in metrics().endpoints}
    procs.stop().get(timeout=60)
    assert uid not in {row.mesh_uid for row in metrics().endpoints}
    for stopped in (procs, counter):
        with pytest.raises(MeshStoppedError):
            metrics(stopped)


def test_other_things_have_no_metrics(four: ProcMesh) -> None:
    for wrong in (7, "workers", Counter, four.extent):
        with pytest.raises(TypeError, match="a proc mesh or an actor mesh"):
            metrics(wrong)  # type: ignore[arg-type]
    for timeout in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="give seconds"):
            metrics(four, timeout)


# --- who does not answer --------------------------------------------------------------------------


def test_ranks_that_compute_answer(four: ProcMesh, gate: GateKeeper, tmp_path: Path) -> None:
    talker = four.spawn("computing", Talker)
    until = tmp_path / "enough"
    answer = talker.compute_until.call(gate.gate.entered, str(until))
    gate.wait_entered(4)
    assert callee(talker, "compute_until").in_flight == 4
    until.touch()
    assert min(answer.get().values()) > 0
    assert callee(talker, "compute_until").in_flight == 0


def test_a_rank_that_holds_the_interpreter_is_missed_and_named(
    four: ProcMesh, gate: GateKeeper
) -> None:
    mortal = four.spawn("holding", Mortal)
    mortal.pid.call().get()
    answer = mortal.slice(gpus=1).hold_the_gil.call_one(gate.gate)
    gate.wait_entered()
    calls = len(runtime().calls)
    seen = metrics(mortal, timeout=0.5)
    (missing,) = seen.missing
    assert missing.process == Process("workers", 1, {"gpus": 1})
    assert missing.reason.startswith("busy in Mortal.hold_the_gil for ")
    assert missing.reason.endswith(" s; no answer within 0.5 s")
    (pid,) = [row for row in seen.endpoints if (row.endpoint, row.side) == ("pid", "callee")]
    assert (pid.calls, pid.processes) == (3, 3)
    assert len(runtime().calls) == calls, "nothing waits for its answer any more"
    gate.open()
    answer.get()
    assert callee(mortal, "pid").calls == 4
    assert callee(mortal, "hold_the_gil").calls == 1


def test_of_a_rank_that_dies_its_caller_has_the_error_and_nobody_its_figures(
    spawn_procs: Spawn, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 3}, name="mortals")
    mortal = procs.spawn("mortal", Mortal)
    mortal.pid.call().get()
    assert isinstance(mortal.kill_self_on.call([2], 9).exception(), SupervisionError)
    faults.take()
    seen = metrics(mortal, timeout=60)
    assert [(m.process.rank, m.reason) for m in seen.missing] == [(2, "killed by SIGKILL")]
    by = {(row.endpoint, row.side): row for row in seen.endpoints}
    assert (by["pid", "callee"].calls, by["pid", "callee"].errors) == (2, 0)
    assert by["kill_self_on", "callee"].calls == 2
    called = by["kill_self_on", "caller"]
    assert (called.calls, called.errors, called.in_flight) == (1, 1, 0)
    with pytest.raises(SupervisionError):
        mortal.pid.broadcast()
    (refused,) = [row for row in metrics(mortal, timeout=60).endpoints if row.adverb == "broadcast"]
    assert (refused.calls, refused.errors, refused.in_flight) == (1, 1, 0)
    (snapped,) = [seen for seen in snapshot() if seen.uid == procs.uid]
    first = snapped.rows[2].busy_s
    (snapped,) = [seen for seen in snapshot() if seen.uid == procs.uid]
    assert snapped.rows[2].busy_s == pytest.approx(first, abs=1e-3), "the dead are not busy"


def test_a_rank_that_dies_while_it_is_asked_ends_the_question(
    spawn_procs: Spawn, gate: GateKeeper, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 2}, name="mortals")
    mortal = procs.spawn("mortal", Mortal)
    pids = mortal.pid.call().get().values()
    held = mortal.slice(gpus=1).hold_the_gil.call_one(gate.gate)
    gate.wait_entered()
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(metrics(procs, timeout=300)))
    asking.start()
    os.kill(pids[1], 9)
    asking.join(60)
    assert [(m.process.rank, m.reason) for m in found[0].missing] == [(1, "killed by SIGKILL")]
    assert isinstance(held.exception(), SupervisionError)
    faults.take()


def test_procs_that_are_not_up_are_not_waited_for(
    spawn_procs: Spawn, gate: GateKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"from tests.integration.gates import Gate\n{gate.gate!r}.pass_through()\n"
    (tmp_path / "waits_on_import.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    procs = spawn_procs({"gpus": 2}, preload=["waits_on_import"])
    gate.wait_entered()
    found = metrics(procs, timeout=60)
    assert (found.endpoints, found.missing) == ((), ())
    gate.open()
    procs.initialized.get(timeout=60)


@pytest.mark.usefixtures("four")
def test_without_a_session_there_is_nothing_to_read() -> None:
    """Last in this file: it ends the session of the others."""
    shutdown_context()
    assert metrics().endpoints == ()
    assert metrics().missing == ()
