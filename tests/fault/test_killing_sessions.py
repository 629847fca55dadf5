"""`monarch kill` ends sessions from outside: their clients are told, and nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch._src.cli.program import main
from monarch._src.session import directories
from monarch.actor import ProcMesh, SupervisionError, shutdown_context, this_host
from tests.conftest import Faults
from tests.fault.test_host_deaths import agent
from tests.integration.commands import Commands
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.programs import Program, running, watched
from tests.integration.sample_actors import Echo, Teller, Tidy

pytestmark = pytest.mark.slow

Spawn = Callable[..., ProcMesh]

CLIENT = """
    import sys
    import psutil
    from monarch.actor import SupervisionError, this_host
    import monarch.actor
    from monarch.config import configure
    from tests.integration.sample_actors import Tidy
    from tests.integration.failing_actors import Faulty
    from tests.integration.gates import Gate

    configure(cleanup_timeout=sys.argv[4])
    monarch.actor.unhandled_fault_hook = lambda failure: None
    procs = this_host().spawn_procs({"gpus": 2}, name="workers")
    tidy = procs.spawn("tidy", Tidy, sys.argv[1])
    tidy.note.call("here").get()
    faulty = procs.spawn("faulty", Faulty)
    faulty.start_grandchild.call().get()
    held = faulty.slice(gpus=0).hold.call_one(Gate(sys.argv[2], sys.argv[3]))
    family = psutil.Process().children(recursive=True)
    print(*(child.pid for child in family), flush=True)
    try:
        held.get()
    except SupervisionError as error:
        print(error.failures[0].kind, error, flush=True)
    again = this_host().spawn_procs(name="again")
    again.initialized.get()
    print("a new session works", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def shell(own_base_directory: Path) -> Commands:
    """The commands, for sessions of this test run."""
    shutdown_context()
    return Commands(own_base_directory)


@pytest.fixture
def arguments(tmp_path: Path, gate: GateKeeper) -> list[str]:
    """What the client above takes, but for the time for clean-up."""
    return [str(tmp_path / "said"), gate.gate.entered, gate.gate.leave]


def begin(program: Program, gate: GateKeeper) -> list[int]:
    """Wait until its call is in flight; the pids of all it has started."""
    pids = [int(pid) for pid in program.line().split()]
    assert len(pids) == 6  # agent, zygote, two procs, a child of each
    gate.wait_entered()
    return pids


def check_told_and_going_on(program: Program) -> None:
    """That the call in flight has ended as it should, and a new session can be had."""
    assert program.line().startswith("host lost the host agent of workers[gpus=0] is gone: ")
    assert program.line() == "a new session works"
    program.say("end")
    assert program.end() == (0, "", "")


@pytest.mark.parametrize("cleanup", ["200ms", "10s"])
def test_a_client_with_a_call_in_flight_is_told_and_works_on_and_actors_clean_up(
    shell: Commands, tmp_path: Path, gate: GateKeeper, arguments: list[str], cleanup: str
) -> None:
    with running(tmp_path, CLIENT, *arguments, cleanup) as program:
        pids = begin(program, gate)
        (session,) = shell.sessions()
        with watched(pids) as processes:
            # A rank that is held has to be killed: by the agent, or, if that would wait on, by us.
            status, out, err = shell.kill(session["session"], "--timeout", "1")
            processes.wait_all_ended()
        assert (status, err) == (0, "")
        assert out.startswith(f"session {session['session']}: ended, 6 processes")
        assert ("killed after 1 s" in out) == (cleanup == "10s")
        lines = (tmp_path / "said").read_text().splitlines()
        # In its process nothing is in the way of the other rank.
        assert "cleaned up 1 after None" in lines
        assert not Path(session["directory"]).exists()
        check_told_and_going_on(program)
    assert shell.sessions() == []


def test_the_client_is_told_that_it_was_asked_for(
    shell: Commands, tmp_path: Path, gate: GateKeeper, arguments: list[str]
) -> None:
    with running(tmp_path, CLIENT, *arguments, "200ms") as program:
        begin(program, gate)
        assert shell.kill("--all")[0] == 0
        assert "after a SIGTERM (`monarch kill` sends one)" in program.line()
        assert program.line() == "a new session works"
        program.say("end")
        program.end()


def test_an_agent_that_is_stopped_is_woken_and_ends_in_order(
    shell: Commands, tmp_path: Path, gate: GateKeeper, arguments: list[str]
) -> None:
    with running(tmp_path, CLIENT, *arguments, "200ms") as program:
        pids = begin(program, gate)
        os.kill(pids[0], signal.SIGSTOP)
        with watched(pids) as processes:
            status, out, err = shell.kill("--all")
            processes.wait_all_ended()
        assert (status, err) == (0, "")
        assert out.endswith("ended, 6 processes\n")
        assert "cleaned up 1 after None" in (tmp_path / "said").read_text()
        check_told_and_going_on(program)


def test_an_agent_that_cannot_act_is_killed_with_all_that_is_its_own(
    shell: Commands, tmp_path: Path, gate: GateKeeper, arguments: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_base_directory: Path,
) -> None:  # fmt: skip
    # An agent that hangs: it gets the signals, and does nothing.
    monkeypatch.setattr("monarch._src.session.reap.KILLED_S", 0.2)
    kill = os.kill

    def deaf(pid: int, number: int) -> None:
        if number == signal.SIGKILL:
            kill(pid, number)

    with running(tmp_path, CLIENT, *arguments, "10s") as program:
        pids = begin(program, gate)
        kill(pids[0], signal.SIGSTOP)
        with watched(pids) as processes, monkeypatch.context() as patch:
            patch.setattr(os, "kill", deaf)
            assert main(["kill", "--in", str(own_base_directory), "--timeout", "0", "--all"]) == 0
            processes.wait_all_ended()
        assert "ended, 6 processes, 6 of them killed after 0 s" in capsys.readouterr().out
        assert "cleaned up" not in (tmp_path / "said").read_text()
        check_told_and_going_on(program)


def test_only_the_session_that_is_named_ends(
    shell: Commands, spawn_procs: Spawn, tmp_path: Path, gate: GateKeeper, arguments: list[str]
) -> None:
    with running(tmp_path, CLIENT, *arguments, "200ms") as program:
        begin(program, gate)
        mine = spawn_procs({"gpus": 2}, name="mine").spawn("teller", Teller)
        pids = mine.pid.call().get().values()
        by_client = {session["client_pid"]: session for session in shell.sessions()}
        other = by_client[program.pid]
        # A directory names it too, as does the beginning of its name.
        assert shell.kill(other["directory"])[0] == 0
        check_told_and_going_on(program)
        (left,) = shell.sessions()
        assert left["session"] == by_client[os.getpid()]["session"]
        assert mine.pid.call().get(timeout=60).values() == pids


def test_the_client_of_a_session_is_not_touched(shell: Commands, faults: Faults) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="lost")
    pids = procs.spawn("teller", Teller).pid.call().get().values()
    (session,) = shell.sessions()
    with watched([*pids, session["agent_pid"]]) as processes:
        status, out, err = shell.kill(session["session"][:4])
        processes.wait_all_ended()
    assert (status, err) == (0, "")
    assert out == f"session {session['session']}: ended, 4 processes\n"
    assert {failure.kind for failure in faults.take().failures} == {"host lost"}
    with pytest.raises(SupervisionError, match=r"the host agent of lost\[gpus=0\] is gone"):
        procs.spawn("echo", Echo).rank.call().get(timeout=60)
    again = this_host().spawn_procs(name="again")
    assert again.spawn("teller", Teller).pid.call_one().get(timeout=60) not in pids
    again.stop().get(timeout=60)


def test_orphans_end_and_sessions_with_a_client_do_not(
    shell: Commands, spawn_procs: Spawn, tmp_path: Path, gate: GateKeeper, arguments: list[str]
) -> None:
    mine = spawn_procs(name="mine").spawn("teller", Teller)
    pid = mine.pid.call_one().get()
    assert shell.kill("--orphans") == (0, "no orphaned sessions\n", "")
    with running(tmp_path, CLIENT, *arguments, "200ms") as program:
        pids = begin(program, gate)
        os.kill(pids[0], signal.SIGSTOP)  # or it would end by itself
        program.signal(signal.SIGKILL)
        program.end()
        with watched(pids) as processes:
            status, out, err = shell.kill("--orphans")
            processes.wait_all_ended()
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    assert "ended, 6 processes" in out
    assert len(shell.sessions()) == 1
    assert mine.pid.call_one().get(timeout=60) == pid


def test_all_end_at_once(
    shell: Commands, faults: Faults, tmp_path: Path, gate: GateKeeper, arguments: list[str]
) -> None:
    with running(tmp_path, CLIENT, *arguments, "200ms") as program:
        begin(program, gate)
        this_host().spawn_procs(name="mine").initialized.get(timeout=60)
        status, out, err = shell.kill("--all")
        assert (status, err) == (0, "")
        assert out.count(": ended, ") == 2
        faults.take()
        check_told_and_going_on(program)


def test_what_cannot_be_meant_ends_nothing(
    shell: Commands, spawn_procs: Spawn, own_base_directory: Path
) -> None:
    spawn_procs(name="mine").initialized.get(timeout=60)
    made = [own_base_directory / f"monarch-zz{number}" for number in range(2)]
    for directory in made:
        directory.mkdir(mode=0o700)
    try:
        status, out, err = shell.kill("zz", "nothing-like-it", "")
        assert (status, out) == (1, "")
        assert err.splitlines() == [
            "monarch kill: several sessions begin with 'zz': zz0, zz1",
            "monarch kill: there is no session 'nothing-like-it'; `monarch ps` lists them",
            "monarch kill: there is no session ''; `monarch ps` lists them",
        ]
    finally:
        for directory in made:
            directory.rmdir()
    assert len(shell.sessions()) == 1


def test_sessions_of_other_users_are_refused(
    shell: Commands, spawn_procs: Spawn, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], own_base_directory: Path,
) -> None:  # fmt: skip
    spawn_procs(name="mine").initialized.get(timeout=60)
    (session,) = shell.sessions()
    where = ["--in", str(own_base_directory)]
    with monkeypatch.context() as patch:
        me = os.getuid()
        patch.setattr(os, "getuid", lambda: me + 1)
        assert main(["kill", *where, session["session"]]) == 1
        assert (
            f"is not yours: {session['directory']} belongs to user {me}" in capsys.readouterr().err
        )
        assert main(["kill", *where, "--all"]) == 0
        assert main(["ps", *where]) == 0
    assert capsys.readouterr().out == "you have no sessions on this machine\n" * 2
    assert len(shell.sessions()) == 1


def test_a_directory_that_no_agent_ever_took_is_removed(
    shell: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    own_base_directory: Path,
) -> None:  # fmt: skip
    directory = own_base_directory / "monarch-never"
    directory.mkdir(mode=0o700)
    monkeypatch.setattr(directories, "STARTING_S", -1.0)  # it has had its time
    where = ["--in", str(own_base_directory)]
    assert main(["ps", *where]) == 0
    assert "no host agent has ever come" in capsys.readouterr().out
    assert main(["kill", *where, "--orphans"]) == 0
    assert "removed its directory" in capsys.readouterr().out
    assert not directory.exists()


def test_a_directory_of_another_program_is_kept_though_its_name_is_like_a_sessions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    directory = tmp_path / "monarch-data"
    directory.mkdir(mode=0o700)
    (directory / "weights").write_text("of a month")
    monkeypatch.setattr(directories, "STARTING_S", -1.0)
    where = ["--in", str(tmp_path)]
    assert main(["ps", *where]) == 0
    assert capsys.readouterr().out == "you have no sessions on this machine\n"
    assert main(["kill", *where, "--orphans"]) == 0
    assert main(["reap", *where]) == 0
    assert (directory / "weights").read_text() == "of a month"


# --- the agent, told to end -----------------------------------------------------------------------


def test_an_agent_that_is_told_to_end_lets_actors_clean_up(
    spawn_procs: Spawn, faults: Faults, tmp_path: Path
) -> None:
    tidy = spawn_procs({"gpus": 2}).spawn("tidy", Tidy, str(tmp_path / "said"))
    tidy.note.call("here").get()
    os.kill(agent().pid, signal.SIGTERM)
    faults.take()
    lines = (tmp_path / "said").read_text().splitlines()
    assert sorted(lines[2:]) == ["cleaned up 0 after None", "cleaned up 1 after None"]


def test_an_agent_that_is_told_twice_ends_at_once(
    shell: Commands, spawn_procs: Spawn, faults: Faults, gate: GateKeeper
) -> None:
    procs = spawn_procs({"gpus": 2})
    pids = procs.spawn("teller", Teller).pid.call().get().values()
    held = procs.spawn("faulty", Faulty).hold.call(gate.gate)
    gate.wait_entered(2)
    with watched(pids) as processes:
        found: psutil.Process = agent()
        found.terminate()
        while shell.sessions()[0]["state"] != "ending":
            pass  # two signals of a kind are one, until the first is handled
        found.terminate()
        processes.wait_all_ended()
    error = held.exception(timeout=60)
    assert isinstance(error, SupervisionError)
    assert {failure.kind for failure in error.failures} == {"host lost"}
    faults.take()


def test_what_is_asked_of_an_agent_that_ends_is_told_so_too(
    spawn_procs: Spawn, faults: Faults, gate: GateKeeper
) -> None:
    procs = spawn_procs({"gpus": 1}, name="first")
    held = procs.spawn("faulty", Faulty).hold.call(gate.gate)
    gate.wait_entered()
    os.kill(agent().pid, signal.SIGTERM)
    with pytest.raises(SupervisionError):  # at once, or when it has ended
        this_host().spawn_procs(name="late").spawn("teller", Teller).pid.call_one().get(timeout=60)
    gate.open()
    held.exception(timeout=60)  # its value, or the loss: it was under way
    assert {faults.take().mesh_name, faults.take().mesh_name} == {"first", "late"}
