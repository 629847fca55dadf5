"""The command line: help, and `monarch ps`, which looks at sessions and changes nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch._src.cli.program import main
from monarch.actor import ProcMesh, SupervisionError, shutdown_context
from tests.conftest import Faults
from tests.integration.callers import Spawner
from tests.integration.commands import Commands, monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.programs import running, watched
from tests.integration.sample_actors import Echo, Teller

Spawn = Callable[..., ProcMesh]
COMMANDS = ["doctor", "ps", "kill", "stacks", "debug", "version"]


@pytest.fixture
def shell(own_base_directory: Path) -> Commands:
    """The commands, for sessions of this test run."""
    shutdown_context()  # the tests before this one may have left one open
    return Commands(own_base_directory)


def own_agent() -> psutil.Process:
    """The host agent of this process's session."""
    (found,) = [child for child in psutil.Process().children() if child.children()]
    return found


# --- help -----------------------------------------------------------------------------------------


def test_without_a_subcommand_it_prints_help_that_lists_them() -> None:
    status, out, err = monarch()
    assert (status, err) == (0, "")
    assert out.startswith("usage: monarch [-h] [--version] COMMAND")
    for command in COMMANDS:
        assert f"\n    {command} " in out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_subcommand_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "-h"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: monarch {command} [-h]")


def test_an_unknown_subcommand_is_told_those_that_there_are() -> None:
    status, out, err = monarch("sp")
    assert (status, out) == (2, "")
    assert "monarch: error: there is no command 'sp'; there are ps, ls, stacks, " in err
    assert all(command in err for command in COMMANDS)


def test_a_misspelt_subcommand_is_told_the_nearest() -> None:
    status, out, err = monarch("stakcs")
    assert (status, out) == (2, "")
    assert err.endswith("monarch: error: there is no command 'stakcs'; did you mean 'stacks'?\n")


def test_help_is_a_subcommand_and_ls_another_name_of_ps(shell: Commands) -> None:
    assert monarch("help") == monarch("--help")
    assert monarch("help", "kill") == monarch("kill", "--help")
    assert monarch("ls", "--help") == monarch("ps", "--help")
    assert monarch("sql", "--help") == monarch("query", "--help")
    assert monarch("help", "stakcs")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kill"], "one of the arguments SESSION --all --orphans is required"),
        (["kill", "--all", "--orphans"], "not allowed with argument"),
        (["kill", "--all", "some"], "not allowed with argument"),
        (["ps", "--timeout", "-1"], "-1 is not between 0 and"),
        (["ps", "--timeout", "nan"], "nan is not between 0 and"),
        (["ps", "--timeout", "soon"], "invalid _seconds value"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_done(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_version_is_told_without_loading_what_it_does_not_need(
    run_python: Callable[..., str],
) -> None:
    program = (
        "import sys; from monarch.__main__ import main; assert main(['version']) == 0\n"
        "print(*{'zmq', 'msgspec', 'monarch.actor', 'monarch._src.net'} & set(sys.modules))"
    )
    version, loaded = run_python(program).splitlines()
    assert version.count(".") == 2
    assert loaded == ""


def test_the_version_is_told_as_other_programs_tell_theirs() -> None:
    assert monarch("--version") == monarch("version")


def test_the_doctor_tells_what_this_machine_has() -> None:
    status, out, err = monarch("doctor")
    assert err == ""
    assert status in (0, 1)
    assert any(line.startswith("ok  python") for line in out.splitlines())


def test_the_doctor_tells_what_the_environment_sets_and_that_it_cannot_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "1m")
    assert "ok  settings           the environment sets MONARCH_LIVENESS\n" in monarch("doctor")[1]
    monkeypatch.setenv("MONARCH_LIVENESS", "soon")
    status, out, err = monarch("doctor")
    assert (status, err) == (1, "")
    assert "!!  settings           MONARCH_LIVENESS='soon': give a duration" in out


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    command = f"'{sys.executable}' -m monarch doctor | true; exit ${{PIPESTATUS[0]}}"
    process = psutil.Popen(
        ["bash", "-c", command], env={**os.environ, "PYTHONPATH": path}, stderr=-1, text=True
    )
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


# --- ps -------------------------------------------------------------------------------------------


def test_there_may_be_no_sessions(shell: Commands) -> None:
    assert shell.ps() == "you have no sessions on this machine\n"
    assert shell.sessions() == []


def test_a_session_is_shown_with_its_meshes_and_what_each_proc_does(
    shell: Commands, spawn_procs: Spawn, gate: GateKeeper, own_base_directory: Path
) -> None:
    procs = spawn_procs({"hosts": 2, "gpus": 2}, name="workers")
    echo = procs.spawn("echo", Echo)
    pids = procs.spawn("teller", Teller).pid.call().get().values()
    spawn_procs(name="single").initialized.get()
    held = echo.slice(hosts=1, gpus=0).pass_gate.call_one(gate.gate)
    gate.wait_entered()

    (session,) = shell.sessions()
    assert session["state"] == "live"
    assert session["problem"] is None
    assert session["client_pid"] == os.getpid()
    assert session["agent_pid"] == own_agent().pid
    assert "pytest" in session["program"]
    assert session["age_s"] > 0
    (directory,) = own_base_directory.glob("monarch-*")
    assert session["directory"] == str(directory)
    assert session["session"] == directory.name.removeprefix("monarch-")

    workers, single = session["meshes"]
    assert (workers["name"], workers["sizes"]) == ("workers", {"hosts": 2, "gpus": 2})
    assert (workers["uid"], workers["state"]) == (procs.uid, "ready")
    assert workers["owner"] == session["client"]
    assert [proc["pid"] for proc in workers["procs"]] == pids
    assert [proc["point"] for proc in workers["procs"]] == [
        {"hosts": host, "gpus": gpu} for host in range(2) for gpu in range(2)
    ]
    assert [proc["state"] for proc in workers["procs"]] == ["idle", "idle", "busy", "idle"]
    busy = workers["procs"][2]
    assert (busy["actor"], busy["endpoint"], busy["messages"]) == ("Echo", "pass_gate", 2)
    assert busy["rss_bytes"] > 1 << 20
    assert (single["name"], single["sizes"]) == ("single", {})
    assert [proc["point"] for proc in single["procs"]] == [{}]

    text = shell.ps()
    assert f"session {session['session']}  live" in text
    assert f"client {os.getpid()} (" in text
    (row,) = [line for line in text.splitlines() if "busy" in line]
    assert row.split()[:3] == ["workers[hosts=1,", "gpus=0]", str(pids[2])]
    assert "Echo.pass_gate" in row
    assert "MiB" in row
    gate.open()
    held.get()


def test_a_rank_that_has_failed_is_shown_with_the_reason(
    shell: Commands, spawn_procs: Spawn, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    faulty = procs.spawn("faulty", Faulty)
    with pytest.raises(SupervisionError):
        faulty.kill_self_on.call([1], int(signal.SIGKILL)).get(timeout=60)
    (session,) = shell.sessions()
    (mesh,) = session["meshes"]
    assert mesh["state"] == "failed"
    assert [proc["state"] for proc in mesh["procs"]] == ["idle", "failed"]
    assert mesh["procs"][1]["failure"] == "killed by SIGKILL"
    assert "killed by SIGKILL" in shell.ps()


def test_meshes_that_actors_have_spawned_are_shown_with_their_owner(
    shell: Commands, spawn_procs: Spawn
) -> None:
    procs = spawn_procs(name="outer")
    spawner = procs.spawn("spawner", Spawner)
    spawner.spawn.call_one(2).get(timeout=60)
    outer, inner = shell.sessions()[0]["meshes"]
    assert outer["name"] == "outer"
    assert inner["owner"] == f"{procs.uid}.0"
    assert len(inner["procs"]) == 2


def test_looking_leaves_nothing_and_disturbs_nobody(
    shell: Commands, spawn_procs: Spawn, own_base_directory: Path
) -> None:
    teller = spawn_procs({"gpus": 2}).spawn("teller", Teller)
    pids = teller.pid.call().get().values()
    shell.ps()  # what is opened on first use is open now
    agent = own_agent()
    descriptors = agent.num_fds()
    (directory,) = own_base_directory.glob("monarch-*")
    files = sorted(os.listdir(directory))
    for _ in range(5):
        assert len(shell.sessions()) == 1
    assert sorted(os.listdir(directory)) == files
    assert agent.num_fds() <= descriptors
    assert teller.pid.call().get().values() == pids


CLIENT = """
    import sys
    from monarch.actor import this_host
    from tests.integration.sample_actors import Teller

    procs = this_host().spawn_procs({"gpus": 2}, name="of_another")
    procs.spawn("teller", Teller).pid.call().get()
    print("up", flush=True)
    sys.stdin.readline()
"""


def test_all_sessions_of_the_user_are_shown_oldest_first(
    shell: Commands, spawn_procs: Spawn, tmp_path: Path
) -> None:
    with running(tmp_path, CLIENT) as program:
        assert program.line() == "up"
        spawn_procs(name="mine").initialized.get()
        first, second = shell.sessions()
        assert [mesh["name"] for mesh in first["meshes"]] == ["of_another"]
        assert first["client_pid"] == program.pid
        assert "program.py" in first["program"]
        assert [mesh["name"] for mesh in second["meshes"]] == ["mine"]
        assert shell.ps().count("session ") == 2
        program.say("end")
        assert program.end() == (0, "", "")
    assert [session["client_pid"] for session in shell.sessions()] == [os.getpid()]


def test_an_agent_that_is_stopped_is_told_within_the_time_out(
    shell: Commands, spawn_procs: Spawn
) -> None:
    teller = spawn_procs(name="mine").spawn("teller", Teller)
    teller.pid.call_one().get()
    agent = own_agent()
    agent.suspend()
    try:
        (session,) = shell.sessions("--timeout", "0.2")
        assert session["state"] == "live"
        assert session["meshes"] == []
        assert f"`kill -CONT {agent.pid}` resumes it" in session["problem"]
        assert "is stopped by a signal and does not answer" in shell.ps("--timeout", "0.2")
    finally:
        agent.resume()
    (session,) = shell.sessions()
    assert [mesh["name"] for mesh in session["meshes"]] == ["mine"]
    assert teller.pid.call_one().get(timeout=60) > 0


def test_a_session_whose_client_is_gone_is_an_orphan(
    shell: Commands, tmp_path: Path, own_base_directory: Path
) -> None:
    with running(tmp_path, CLIENT) as program:
        assert program.line() == "up"
        agent = psutil.Process(shell.sessions()[0]["agent_pid"])
        agent.suspend()  # it would end by itself
        family = [agent.pid, *(child.pid for child in agent.children(recursive=True))]
        with watched(family) as processes:
            program.signal(signal.SIGKILL)
            program.end()
            (session,) = shell.sessions("--timeout", "0.2")
            assert session["state"] == "orphan"
            assert session["client_pid"] == program.pid
            assert "orphan" in shell.ps("--timeout", "0.2")
            agent.resume()
            processes.wait_all_ended()
    assert shell.sessions() == []
    assert list(own_base_directory.glob("monarch-*")) == []


def test_what_a_killed_agent_has_left_is_shown_as_gone(
    shell: Commands, tmp_path: Path, own_base_directory: Path
) -> None:
    with running(tmp_path, CLIENT) as program:
        assert program.line() == "up"
        agent = psutil.Process(shell.sessions()[0]["agent_pid"])
        family = [agent.pid, *(child.pid for child in agent.children(recursive=True))]
        with watched(family) as processes:
            program.signal(signal.SIGSTOP)
            agent.kill()
            program.signal(signal.SIGKILL)
            program.end()
            processes.wait_all_ended()
    (session,) = shell.sessions()
    assert session["state"] == "gone"
    assert "the next session removes it" in session["problem"]
    assert session["session"] in shell.ps()
    assert shell.kill(session["session"])[0] == 0
    assert list(own_base_directory.glob("monarch-*")) == []


def test_a_directory_that_no_agent_has_taken_yet_is_a_session_that_starts(
    shell: Commands, own_base_directory: Path
) -> None:
    directory = own_base_directory / "monarch-abc"
    directory.mkdir(mode=0o700)
    try:
        (session,) = shell.sessions()
        assert (session["state"], session["problem"]) == ("starting", None)
        status, _, err = shell.kill("abc")
        assert (status, err) == (
            1, "monarch kill: session abc is starting; try again in a moment\n",
        )  # fmt: skip
        assert directory.exists()
    finally:
        directory.rmdir()


def test_what_is_not_private_to_this_user_is_not_looked_at(
    shell: Commands, own_base_directory: Path
) -> None:
    directory = own_base_directory / "monarch-open"
    directory.mkdir(mode=0o700)
    directory.chmod(0o750)
    try:
        assert shell.sessions() == []
        status, _, err = shell.kill("open")
        assert status == 1
        assert "session open is not yours" in err
        assert "others can enter it" in err
    finally:
        directory.rmdir()
