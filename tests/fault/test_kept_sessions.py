"""A session that is kept outlives its client, however that ends, and is told what was meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import monarch.actor
from monarch.actor import SupervisionError, get_or_spawn_controller, shutdown_context, this_host
from monarch.observe import on_output
from monarch.session import SessionError, attach, detach, keep, sessions
from tests.conftest import Faults
from tests.fault.keepers import (
    KEEPS,
    RENEWED,
    TREE,
    info,
    keeper,
    kept_name,
    standing_still,
)
from tests.integration.gates import PATIENCE_S, GateKeeper
from tests.integration.programs import Watched, running, watched
from tests.integration.sample_actors import Counter, Echo, Teller

pytestmark = pytest.mark.slow


@pytest.fixture
def name(own_base_directory: Path) -> Iterator[str]:
    """A name for a session; what is kept under it is ended after the test."""
    with kept_name(own_base_directory) as found:
        yield found


def state_of(base: Path, name: str) -> str:
    return info(base, name).state


def wait_ended(pids: list[int]) -> None:
    """Return when those that are still there have ended."""
    living = [pid for pid in pids if psutil.pid_exists(pid)]
    found = Watched(living)
    try:
        found.wait_all_ended()
    finally:
        found.close()


# --- the client ends ------------------------------------------------------------------------------


def test_a_client_killed_in_the_middle_of_a_call_leaves_actors_that_finish_it(
    name: str, tmp_path: Path, gate: GateKeeper
) -> None:
    with keeper(tmp_path, name) as first:
        passes = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
        first.do(f"answer = mine.add_at.call({passes}, 10)")
        gate.wait_entered(2)
        first.program.signal(signal.SIGKILL)
        assert first.program.end()[0] == -9
        session = attach(name)
        later = session["mine"].add.call(100)
        gate.open(2)
        assert later.get(timeout=60).values() == [111, 111]


@pytest.mark.parametrize(
    "ending",
    ["sys.exit(0)", "os._exit(3)", "os.kill(os.getpid(), 15)", "detach()", "os.abort()"],
)
def test_however_the_client_ends_the_next_one_finds_the_state(
    name: str, tmp_path: Path, ending: str
) -> None:
    with keeper(tmp_path, name) as first:
        first.program.say(ending)
        if ending == "detach()":
            assert first.said() == []
        else:
            assert first.program.end()[2] == ""
        session = attach(name)
        assert session["mine"].add.call(1).get(timeout=60).values() == [2, 2]


def test_what_is_not_kept_ends_with_the_client_and_what_is_kept_does_not(
    name: str, tmp_path: Path, own_base_directory: Path
) -> None:
    with keeper(tmp_path, name) as first:
        first.do("tied = this_host().spawn_procs({'gpus': 2}, name='tied')")
        tied = json.loads(first.value("tied.spawn('t', Teller).pid.call().get().values()"))
        kept = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
        with watched(tied) as processes:
            first.program.signal(signal.SIGKILL)
            first.program.end()
            processes.wait_all_ended()
        assert all(psutil.pid_exists(pid) for pid in kept)
        assert info(own_base_directory, name).kept is not None
        session = attach(name)
        assert [mesh.name for mesh in session.proc_meshes] == ["workers"]
        assert session["t"].pid.call().get(timeout=60).values() == kept


def test_letting_go_returns_when_what_was_tied_is_gone(name: str) -> None:
    kept = this_host().spawn_procs({"gpus": 2}, name="kept")
    keep(name, [kept])
    pids = this_host().spawn_procs({"gpus": 2}).spawn("t", Teller).pid.call().get().values()
    detach()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(SessionError, match="this process holds no kept session"):
        detach()
    # What is spawned from here on is another session.
    assert this_host().spawn_procs().spawn("c", Counter).add.call_one().get() == 1


def test_a_client_without_a_kept_mesh_leaves_nothing(
    name: str, tmp_path: Path, own_base_directory: Path
) -> None:
    with keeper(tmp_path, name) as first:
        agent = info(own_base_directory, name).agent
        assert agent is not None
        first.do("procs.stop().get()")
        with watched([agent.pid]) as processes:
            first.program.signal(signal.SIGKILL)
            first.program.end()
            processes.wait_all_ended()
    assert [one for one in sessions() if one.kept_as == name] == []


def test_all_that_a_client_spawns_is_kept_if_it_names_none(name: str, tmp_path: Path) -> None:
    setup = KEEPS.replace("keep(name, [procs])", "keep(name)")
    with keeper(tmp_path, name, setup) as first:
        first.do("later = this_host().spawn_procs({'gpus': 1}, name='later')")
        first.do("later.spawn('counter', Echo).nothing.call().get()")
        first.program.signal(signal.SIGKILL)
        first.program.end()
        session = attach(name)
        assert list(session.procs) == ["workers", "later"]
        assert session["counter"].same.call_one(5).get(timeout=60) == 5


ASKS = """
    class Asks(Actor):
        @endpoint
        def ask(self, controller, gate):
            waits = controller.pass_gate.call_one(gate)
            try:
                return waits.get()
            except SupervisionError as error:
                self.error = str(error)

        @endpoint
        def what_came(self):
            return self.error

        @endpoint
        def ask_again(self, controller):
            return str(controller.same.call_one(1).exception())

        @endpoint
        def ask_the_next(self):
            return get_or_spawn_controller("echo", Echo).get().same.call_one(7).get()
"""


FLOOD = """
    from monarch.actor import Channel

    class Flood(Actor):
        @endpoint
        def run(self, port, gate, count):
            gate.pass_through()
            for number in range(count):
                port.send(bytes(1 << 16))
                print("x" * 1000)

        def _handle_undeliverable_message(self, message):
            return True
"""


# --- meanwhile ------------------------------------------------------------------------------------


def test_what_is_sent_to_a_client_that_is_gone_is_dropped_and_grows_nothing(
    name: str, tmp_path: Path, gate: GateKeeper, own_base_directory: Path
) -> None:
    with keeper(tmp_path, name, KEEPS + FLOOD) as first:
        first.do("port, receiver = Channel.open()")
        first.do("flood = procs.spawn('flood', Flood); flood.initialized.get()")
        gates = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
        first.do(f"flood.run.broadcast(port, {gates}, 2000)")
        gate.wait_entered(2)
        pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
        agent = info(own_base_directory, name).agent
        assert agent is not None
        first.program.signal(signal.SIGKILL)
        first.program.end()
    everybody = [psutil.Process(pid) for pid in (*pids, agent.pid)]
    before = [process.memory_info().rss for process in everybody]
    session = attach(name)  # the procs have heard by now that the client is gone
    detach()
    gate.open(2)
    end = on_output(lambda _: None)  # what was written meanwhile is not for whoever reads this test
    try:
        session = attach(name)
        session["flood"].initialized.get(timeout=60)  # it has sent 125 MiB to nobody
        grown = [p.memory_info().rss - rss for p, rss in zip(everybody, before, strict=True)]
        assert max(grown) < 32 << 20
        shutdown_context()
    finally:
        end()


def test_what_failed_meanwhile_is_told_to_the_next_client_once(
    name: str, tmp_path: Path, gate: GateKeeper, faults: Faults, own_base_directory: Path
) -> None:
    with keeper(tmp_path, name) as first:
        first.do("procs.spawn('faulty', Faulty).pid.call().get()")
        pid = first.value("procs.spawn('t', Teller).slice(gpus=1).pid.call_one().get()")
        gates = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
        first.do(f"mine.slice(gpus=0).fail_at.broadcast({gates})")
        gate.wait_entered()
        first.program.signal(signal.SIGKILL)
        first.program.end()
    with watched([int(pid)]) as processes:
        os.kill(int(pid), signal.SIGKILL)
        processes.wait_all_ended()
    gate.open()
    session = attach(name)
    told = [faults.take(), faults.take()]
    by_mesh = {fault.mesh_name: fault for fault in told}
    (dead,) = by_mesh["workers"].failures
    assert (dead.kind, dead.rank, dead.message) == ("proc died", 1, "killed by SIGKILL")
    (failed,) = by_mesh["mine"].failures
    assert (failed.kind, failed.exception_type) == ("nobody waited", "ValueError")
    detach()
    session = attach(name)
    with pytest.raises(SupervisionError, match="after the client"):
        session["mine"].slice(gpus=0).add.call_one(1).get(timeout=60)
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        session["mine"].slice(gpus=1).add.call_one(1).get(timeout=60)
    assert session["t"].slice(gpus=0).pid.call_one().get(timeout=60) > 0
    assert faults.untaken() == []


def test_what_one_client_has_heard_is_no_news_to_the_next(
    name: str, tmp_path: Path, faults: Faults
) -> None:
    with keeper(tmp_path, name) as first:
        first.do("faulty = procs.spawn('faulty', Faulty)")
        first.do("faulty.slice(gpus=1).exit_hard.call_one(3).exception()")
        first.do("procs.spawn('failing', Failing)")  # refused: a proc is dead
        first.do("import threading; threading.Event().wait(0) or told")
        while first.value("len(told)") == "0":
            pass
        # The agent answers behind what it was told of that; who is killed takes along what waits.
        first.do("import monarch.observe; monarch.observe.snapshot()")
        first.program.signal(signal.SIGKILL)
        first.program.end()
    session = attach(name)
    with pytest.raises(SupervisionError, match="exited with status 3"):
        session["mine"].slice(gpus=1).add.call_one(1).get(timeout=60)
    assert faults.untaken() == []


def test_what_fails_before_its_process_has_heard_of_the_next_client_is_told_to_that_one_once(
    name: str, tmp_path: Path, gate: GateKeeper, faults: Faults
) -> None:
    with keeper(tmp_path, name) as first:
        first.do("failing = procs.spawn('failing', Failing)")
        first.do("failing.fine.call().get()")
        gates = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
        first.do(f"failing.slice(gpus=0).fail_before_others_run.broadcast({gates})")
        gate.wait_entered()
        first.do("detach()")
        session = attach(name)  # of which that process hears nothing before it goes on
        gate.open()
        (failed,) = faults.take().failures
        assert (failed.exception_type, failed.rank) == ("ValueError", 0)
        with pytest.raises(SupervisionError, match="nobody else had a turn"):
            session["failing"].slice(gpus=0).fine.call_one().get(timeout=60)
        detach()
        attach(name)["mine"].add.call(1).get(timeout=60)
        assert faults.untaken() == []


def test_what_fails_after_it_was_taken_up_is_told_to_who_holds_it(
    name: str, tmp_path: Path, faults: Faults
) -> None:
    with keeper(tmp_path, name) as first:
        first.do("procs.spawn('failing', Failing).fine.call().get()")
        first.do("detach()")
        session = attach(name)
        session["failing"].slice(gpus=1).raise_value_error.broadcast("told to the heir")
        fault = faults.take()
        assert "told to the heir" in str(fault)
        assert fault.mesh_name == "failing"


def test_actors_that_use_a_controller_of_the_client_are_told_that_it_is_gone(
    name: str, tmp_path: Path, gate: GateKeeper
) -> None:
    with keeper(tmp_path, name, KEEPS + ASKS) as first:
        gates = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
        first.do("echo = get_or_spawn_controller('echo', Echo).get()")
        first.do("asks = procs.slice(gpus=0).spawn('asks', Asks)")
        first.do(f"asks.ask.broadcast(echo, {gates})")
        gate.wait_entered()
        first.program.signal(signal.SIGKILL)
        first.program.end()
    session = attach(name)
    came = session["asks"].what_came.call_one().get(timeout=60)
    assert came.startswith("client is out of reach: process ")
    assert "has ended" in came
    # There is a new client now, with controllers of its own.
    assert session["asks"].ask_the_next.call_one().get(timeout=60) == 7
    mine = get_or_spawn_controller("echo", Echo).get(timeout=60)
    assert mine.same.call_one(3).get(timeout=60) == 3


PARENT = """
    class Child(Actor):
        def __init__(self, gate):
            gate.pass_through()

        @endpoint
        def ask(self):
            return get_or_spawn_controller("echo", Echo).get().same.call_one(7).get()

    class Parent(Actor):
        @endpoint
        def spawn_at(self, gate):
            gate.pass_through()
            self.child = this_host().spawn_procs().spawn("child", Child, gate)

        @endpoint
        def ask(self):
            return self.child.ask.call_one().get()
"""


def test_procs_that_begin_while_nobody_is_attached_know_the_next_client(
    name: str, tmp_path: Path, gate: GateKeeper
) -> None:
    with keeper(tmp_path, name, KEEPS + PARENT) as first:
        first.do("parent = procs.slice(gpus=0).spawn('parent', Parent)")
        first.do(f"parent.spawn_at.broadcast(Gate({gate.gate.entered!r}, {gate.gate.leave!r}))")
        gate.wait_entered()
        first.do("detach()")
    gate.open()
    gate.wait_entered()  # the child is there, and nobody is attached
    session = attach(name)
    gate.open()
    assert session["parent"].ask.call_one().get(timeout=PATIENCE_S) == 7


LEAVES, CLIENTS = 8, 30


def test_procs_that_are_called_by_others_know_the_next_client_as_soon_as_it_has_attached(
    name: str, tmp_path: Path
) -> None:
    with keeper(tmp_path, name, KEEPS + TREE) as first:
        first.do(f"tree = procs.slice(gpus=0).spawn('tree', Tree, {LEAVES})")
        assert first.value("tree.ask.call_one().get()") == str([7] * LEAVES)
        first.do("detach()")
    for _ in range(CLIENTS):
        session = attach(name)
        assert session["tree"].ask.call_one().get(timeout=PATIENCE_S) == [7] * LEAVES
        detach()


def test_what_is_started_again_later_knows_who_has_attached_since(
    name: str, tmp_path: Path
) -> None:
    with keeper(tmp_path, name, KEEPS + RENEWED) as first:
        first.do(f"nest = procs.slice(gpus=0).spawn('nest', Nest, {LEAVES})")
        assert first.value("nest.renew.call_one().get()") == str([7] * LEAVES)
        first.do("detach()")
    session = attach(name)
    for _ in range(10):
        assert session["nest"].renew.call_one().get(timeout=PATIENCE_S) == [7] * LEAVES


def test_a_rank_that_stands_still_holds_up_neither_attaching_nor_the_others(
    name: str, tmp_path: Path
) -> None:
    with keeper(tmp_path, name, KEEPS + TREE) as first:
        pid = int(first.value("procs.spawn('t', Teller).slice(gpus=1).pid.call_one().get()"))
        first.do("tree = procs.slice(gpus=0).spawn('tree', Tree, 2)")
        assert first.value("tree.ask.call_one().get()") == "[7, 7]"
        first.do("detach()")
    with standing_still(pid):
        session = attach(name)
        assert session["tree"].ask.call_one().get(timeout=PATIENCE_S) == [7, 7]
    assert session["mine"].add.call(1).get(timeout=PATIENCE_S).values() == [2, 2]


# --- the end of it --------------------------------------------------------------------------------


def test_a_kept_session_ends_when_its_agent_does_and_nothing_is_left(
    name: str, tmp_path: Path, own_base_directory: Path
) -> None:
    with keeper(tmp_path, name) as first:
        pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
        first.do("detach()")
    agent = info(own_base_directory, name).agent
    assert agent is not None
    with watched([agent.pid, *pids]) as processes:
        os.kill(agent.pid, signal.SIGKILL)
        processes.wait_all_ended()
    with pytest.raises(SessionError, match="there is no kept session"):
        attach(name)
    this_host().spawn_procs().initialized.get(timeout=60)  # sweeps the directory
    assert len(list(own_base_directory.glob("monarch-*"))) == 1


def test_a_fault_that_ends_a_script_ends_no_kept_session(name: str, tmp_path: Path) -> None:
    program = """
        import sys
        from monarch.actor import this_host
        from monarch.session import keep
        from tests.integration.sample_actors import Counter
        from tests.integration.failing_actors import Faulty
        procs = this_host().spawn_procs({"gpus": 2}, name="workers")
        counter = procs.spawn("counter", Counter)
        counter.add.call(5).get()
        keep(sys.argv[1])
        procs.spawn("faulty", Faulty).slice(gpus=1).exit_hard.broadcast(3)
        sys.stdin.readline()
    """
    with running(tmp_path, program, name) as script:
        status, _, err = script.process.wait(60), *script.end()[1:]
        assert status == 1
        assert "exited with status 3" in err
    session = attach(name)
    assert session["counter"].slice(gpus=0).add.call_one(1).get(timeout=60) == 6


def test_the_client_that_shuts_down_on_purpose_ends_what_it_kept(
    name: str, own_base_directory: Path
) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="workers")
    pids = procs.spawn("t", Teller).pid.call().get(timeout=60).values()
    keep(name)
    monarch.actor.shutdown_context()
    wait_ended(pids)
    assert list(own_base_directory.glob("monarch-*")) == []


def test_the_actors_of_a_dead_rank_are_counted_as_heard_only_by_who_heard(
    name: str, tmp_path: Path, faults: Faults
) -> None:
    # A client that dies in the moment of a failure has not told anybody of it.
    with keeper(tmp_path, name) as first:
        pid = int(first.value("procs.spawn('t', Teller).slice(gpus=0).pid.call_one().get()"))
        first.program.signal(signal.SIGSTOP)
        with watched([pid]) as processes:
            os.kill(pid, signal.SIGKILL)
            processes.wait_all_ended()
        first.program.signal(signal.SIGKILL)
        first.program.end()
    attach(name)
    (failure,) = faults.take().failures
    assert failure.message == "killed by SIGKILL"
    assert failure.rank == 0
