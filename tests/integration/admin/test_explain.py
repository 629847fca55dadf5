"""`monarch explain` and `monarch.observe.explain` on sessions that hang, fail, or are well."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from monarch.actor import Actor, ProcMesh, context, endpoint
from monarch.observe import CaseFile, explain
from tests.conftest import Faults
from tests.integration.admin_server import session_name
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import Gate, GateKeeper

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]
PATIENCE_S = 60.0


class Relay(Actor):
    """Calls the next actor, which stands at a gate."""

    @endpoint
    def ask(self, other: Faulty, gate: Gate) -> int:
        return other.hold.call_one(gate).get()


class Loop(Actor):
    """Stands at a gate, one rank in a function of its own."""

    @endpoint
    def run(self, gate: Gate) -> None:
        if context().message_rank.rank == 3:
            self.load_shard(gate)
        else:
            gate.pass_through()

    def load_shard(self, gate: Gate) -> None:
        gate.pass_through()


def explained(sessions: str, *options: str) -> CaseFile:
    """The case file that the command prints."""
    status, out, err = monarch("explain", "--session", sessions, "--json", *options)
    assert (status, err) == (0, "")
    return msgspec.json.decode(out, type=CaseFile)


def test_the_rank_that_all_wait_for_is_named(spawn_procs: Spawn, gate: GateKeeper) -> None:
    mesh = spawn_procs({"gpus": 2}, name="workers")
    relay, faulty = mesh.spawn("relay", Relay).slice(gpus=0), mesh.spawn("faulty", Faulty)
    answer = relay.ask.call_one(faulty.slice(gpus=1), gate.gate)
    gate.wait_entered()
    case = explain(PATIENCE_S)
    assert [(one.where, one.doing) for one in case.blockers] == [("workers[gpus=1]", "Faulty.hold")]
    assert case.verdict.startswith("1 proc waits for workers[gpus=1], which runs Faulty.hold")
    waits = {(one.caller, one.endpoint, one.owing[0]) for one in case.waits}
    assert waits == {
        ("client", "ask", "workers[gpus=0]"), ("workers[gpus=0]", "hold", "workers[gpus=1]"),
    }  # fmt: skip
    assert case.missing == []
    assert "Faulty.hold" in str(case)
    gate.open()
    answer.get(timeout=PATIENCE_S)


def test_the_odd_stack_is_found_from_outside(four: ProcMesh, gate: GateKeeper) -> None:
    answer = four.spawn("loop", Loop).run.call(gate.gate)
    gate.wait_entered(4)
    case = explained(session_name(), "--timeout", "60")
    (odd,) = [group for group in case.stacks if group.odd]
    assert odd.procs == ["workers[gpus=3]"]
    assert any("load_shard" in frame for frame in odd.frames)
    gate.open(4)
    answer.get(timeout=PATIENCE_S)


def test_the_first_failure_and_the_last_lines_of_the_dead_are_shown(
    spawn_procs: Spawn, faults: Faults
) -> None:
    mesh = spawn_procs({"gpus": 2}, name="workers")
    faulty = mesh.spawn("faulty", Faulty)
    faulty.slice(gpus=1).say_on_stderr.call_one("loading", "out of tokens").get(PATIENCE_S)
    os.kill(faulty.slice(gpus=1).pid.call_one().get(PATIENCE_S), signal.SIGKILL)
    faults.take_ranks({1})
    case = explain(PATIENCE_S, stacks=False)
    assert case.failures[0].where == "workers[gpus=1]"
    assert "SIGKILL" in case.failures[0].what
    assert case.verdict.startswith("workers[gpus=1] failed first:")
    lines = {one.where: one.lines for one in case.last_lines}
    assert lines == {"workers[gpus=1]": ["loading", "out of tokens"]}


def test_queries_of_a_case_can_be_run(four: ProcMesh) -> None:
    four.initialized.get()
    for evidence in explain(PATIENCE_S, stacks=False).queries:
        status, _, err = monarch("query", "--session", session_name(), evidence.sql)
        assert status == 0, evidence.shows
        assert all("no process keeps history" in line for line in err.splitlines()), err


def test_without_a_session_a_case_is_empty(run_python: Callable[..., str]) -> None:
    out = run_python("from monarch.observe import explain; print(explain().verdict)")
    assert out == "nothing has failed, and no call is awaited\n"
    with pytest.raises(ValueError, match="give seconds, at least 0 and finite"):
        explain(float("nan"))


def test_sessions_that_are_not_there_are_an_error(own_base_directory: Path, tmp_path: Path) -> None:
    status, out, err = monarch("explain", "--in", str(tmp_path), "--session", "nope")
    assert (status, out) == (1, "")
    assert "there is no session 'nope'; running sessions: none" in err
    status, out, _ = monarch("explain", "--in", str(tmp_path))
    assert (status, out) == (0, "you have no sessions on this machine\n")
    status, out, _ = monarch("explain", "--in", str(tmp_path), "--json")
    assert json.loads(out)["failures"] == []
