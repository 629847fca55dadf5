"""Who is asked for the figures of a mesh, and what comes of those who do not answer."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._src.actor.runtime import runtime
from monarch.actor import (
    MeshStoppedError,
    ProcMesh,
    SupervisionError,
    get_or_spawn_controller,
    shutdown_context,
)
from monarch.observe import Process, metrics, snapshot
from tests.conftest import Faults
from tests.integration.callers import Ring
from tests.integration.counted import Talker, callee, caller, rows
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Counter, Echo, Teller

Spawn = Callable[..., ProcMesh]

# --- ranks that are asked -------------------------------------------------------------------------


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


# --- ranks that do not answer ---------------------------------------------------------------------


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
    faulty = four.spawn("holding", Faulty)
    faulty.pid.call().get()
    answer = faulty.slice(gpus=1).hold_the_gil.call_one(gate.gate)
    gate.wait_entered()
    calls = len(runtime().calls)
    seen = metrics(faulty, timeout=0.5)
    (missing,) = seen.missing
    assert missing.process == Process("workers", 1, {"gpus": 1})
    assert missing.reason.startswith("busy in Faulty.hold_the_gil for ")
    assert missing.reason.endswith(" s; no answer within 0.5 s")
    (pid,) = [row for row in seen.endpoints if (row.endpoint, row.side) == ("pid", "callee")]
    assert (pid.calls, pid.processes) == (3, 3)
    assert len(runtime().calls) == calls, "nothing waits for its answer any more"
    gate.open()
    answer.get()
    assert callee(faulty, "pid").calls == 4
    assert callee(faulty, "hold_the_gil").calls == 1


def test_of_a_rank_that_dies_its_caller_has_the_error_and_nobody_its_figures(
    spawn_procs: Spawn, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 3}, name="failing")
    faulty = procs.spawn("faulty", Faulty)
    faulty.pid.call().get()
    assert isinstance(faulty.kill_self_on.call([2], 9).exception(), SupervisionError)
    faults.take()
    seen = metrics(faulty, timeout=60)
    assert [(m.process.rank, m.reason) for m in seen.missing] == [(2, "killed by SIGKILL")]
    by = {(row.endpoint, row.side): row for row in seen.endpoints}
    assert (by["pid", "callee"].calls, by["pid", "callee"].errors) == (2, 0)
    assert by["kill_self_on", "callee"].calls == 2
    called = by["kill_self_on", "caller"]
    assert (called.calls, called.errors, called.in_flight) == (1, 1, 0)
    with pytest.raises(SupervisionError):
        faulty.pid.broadcast()
    (refused,) = [row for row in metrics(faulty, timeout=60).endpoints if row.adverb == "broadcast"]
    assert (refused.calls, refused.errors, refused.in_flight) == (1, 1, 0)
    (snapped,) = [seen for seen in snapshot() if seen.uid == procs.uid]
    first = snapped.rows[2].busy_s
    (snapped,) = [seen for seen in snapshot() if seen.uid == procs.uid]
    assert snapped.rows[2].busy_s == pytest.approx(first, abs=1e-6), "the dead are not busy"


def test_a_rank_that_dies_while_it_is_asked_ends_the_question(
    spawn_procs: Spawn, gate: GateKeeper, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 2}, name="failing")
    faulty = procs.spawn("faulty", Faulty)
    pids = faulty.pid.call().get().values()
    held = faulty.slice(gpus=1).hold_the_gil.call_one(gate.gate)
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
