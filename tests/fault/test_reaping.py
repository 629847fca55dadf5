"""`monarch reap` ends what nobody owns any more, and touches nothing that somebody does."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from monarch.actor import shutdown_context, this_host
from monarch.session import attach, reap
from tests.fault.keepers import info, keeper, kept_name
from tests.fault.test_leases import Family, directories, family
from tests.integration.commands import Commands
from tests.integration.programs import watched
from tests.integration.sample_actors import Teller

pytestmark = pytest.mark.slow


@pytest.fixture
def shell(own_base_directory: Path) -> Commands:
    """The commands, for sessions of this test run."""
    shutdown_context()
    return Commands(own_base_directory)


@pytest.fixture
def name(own_base_directory: Path) -> Iterator[str]:
    """A name for a session; what is kept under it is ended after the test."""
    with kept_name(own_base_directory) as found:
        yield found


def orphaned(one: Family) -> None:
    """End the client, whose agent cannot act."""
    os.kill(one.agent, signal.SIGSTOP)
    one.program.signal(signal.SIGKILL)
    one.program.end()


def test_there_may_be_nothing_to_reap(shell: Commands) -> None:
    assert shell.reap() == (0, "nothing to reap\n", "")
    assert shell.reap("--dry-run") == (0, "nothing to reap\n", "")


def test_an_orphan_whose_agent_hangs_is_ended(shell: Commands, tmp_path: Path) -> None:
    with family(tmp_path, "100ms") as one:
        orphaned(one)
        (session,) = shell.sessions("--timeout", "0.1")
        assert session["state"] == "orphan"
        said = f"session {session['session']}: would be ended, it is an orphan, its client is gone"
        with watched([one.agent, one.zygote, *one.procs]) as processes:
            assert shell.reap("--dry-run") == (0, f"{said}\n", "")
            assert os.path.exists(f"/proc/{one.agent}")
            status, out, err = shell.reap()
            processes.wait_all_ended()
    assert (status, err) == (0, "")
    assert out == f"session {session['session']}: ended, 6 processes\n"
    assert shell.sessions() == []


def test_a_directory_whose_agent_is_gone_is_removed(
    shell: Commands, tmp_path: Path, own_base_directory: Path
) -> None:
    with family(tmp_path) as one, watched([one.zygote, *one.procs[:2]]) as processes:
        one.program.signal(signal.SIGSTOP)
        os.kill(one.zygote, signal.SIGSTOP)  # it would end a group or two in its last moment
        os.kill(one.agent, signal.SIGKILL)
        one.program.signal(signal.SIGKILL)
        one.program.end()
        processes.wait_all_ended()
    (left,) = directories(own_base_directory)
    session = left.name.removeprefix("monarch-")
    grandchildren = sorted(one.procs[2:])
    why = f"the host agent of its session in {left} is gone"
    assert sorted(shell.reap("--dry-run")[1].splitlines()) == [
        *(f"process {pid}: would be ended, {why}" for pid in grandchildren),
        f"session {session}: would be ended, it is a directory whose host agent is gone",
    ]
    with watched(grandchildren) as processes:
        status, out, err = shell.reap()
        processes.wait_all_ended()
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [
        *(f"process {pid}: ended, {why}" for pid in grandchildren),
        f"session {session}: its host agent is gone; removed its directory",
    ]
    assert directories(own_base_directory) == []


def test_an_agent_without_its_directory_is_ended_with_all_below_it(
    shell: Commands, tmp_path: Path, own_base_directory: Path
) -> None:
    with family(tmp_path, "100ms") as one:
        orphaned(one)
        (left,) = directories(own_base_directory)
        shutil.rmtree(left)
        said = f"process {one.agent}: would be ended, its session directory {left} is gone\n"
        with watched([one.agent, one.zygote, *one.procs]) as processes:
            assert shell.reap("--dry-run") == (0, said, "")
            status, out, err = shell.reap("--timeout", "5")
            processes.wait_all_ended()
    assert (status, err) == (0, "")
    assert out.startswith(f"process {one.agent}: ")
    assert out.endswith(f"its session directory {left} is gone\n")


def test_a_session_that_lives_without_its_directory_is_left_alone(
    shell: Commands, tmp_path: Path, own_base_directory: Path
) -> None:
    with family(tmp_path) as one:
        (left,) = directories(own_base_directory)
        shutil.rmtree(left)
        assert shell.reap() == (0, "nothing to reap\n", "")
        assert psutil.pid_exists(one.agent)
        one.program.say("print(faulty.pid.call().get().values() != [])")
        assert one.program.line() == "True"


def test_what_is_kept_is_never_touched(
    shell: Commands, name: str, tmp_path: Path, own_base_directory: Path
) -> None:
    with keeper(tmp_path, name) as first:
        assert shell.reap()[1] == "nothing to reap\n"  # one that is held
        first.program.signal(signal.SIGKILL)
        first.program.end()
    assert shell.reap()[1] == "nothing to reap\n"  # and one that nobody holds
    session = attach(name)
    assert session["mine"].add.call(1).get(timeout=60).values() == [2, 2]
    # Held by another than who started it, and without its directory.
    shutil.rmtree(info(own_base_directory, name).directory)
    assert shell.reap()[1] == "nothing to reap\n"
    assert session["mine"].add.call(1).get(timeout=60).values() == [3, 3]


def test_a_kept_session_that_nobody_can_reach_any_more_is_ended(
    shell: Commands, name: str, tmp_path: Path, own_base_directory: Path
) -> None:
    with keeper(tmp_path, name) as first:
        first.do("detach()")
        found = info(own_base_directory, name)
        agent = found.agent
        assert agent is not None
        shutil.rmtree(found.directory)
        with watched([agent.pid]) as processes:
            status, out, _ = shell.reap()
            processes.wait_all_ended()
    assert status == 0
    assert out.startswith(f"process {agent.pid}: ended, its session directory ")


def test_our_own_session_is_no_orphan(shell: Commands) -> None:
    teller = this_host().spawn_procs({"gpus": 2}).spawn("t", Teller)
    pids = teller.pid.call().get(timeout=60).values()
    assert shell.reap()[1] == "nothing to reap\n"
    assert teller.pid.call().get(timeout=60).values() == pids


def test_what_another_may_enter_is_not_reaped(shell: Commands, own_base_directory: Path) -> None:
    directory = own_base_directory / "monarch-open"
    directory.mkdir(mode=0o700)
    directory.chmod(0o750)
    try:
        assert shell.reap()[1] == "nothing to reap\n"
        assert directory.exists()
    finally:
        directory.rmdir()


def test_programs_reap_too(own_base_directory: Path) -> None:
    # Dry, since it looks wherever sessions of this user may be.
    assert reap(dry_run=True).complaints == ()


def test_kill_takes_the_name_under_which_a_session_is_kept(
    shell: Commands, name: str, tmp_path: Path
) -> None:
    with keeper(tmp_path, name) as first:
        first.program.signal(signal.SIGKILL)
        first.program.end()
        (session,) = shell.sessions()
        assert session["kept_as"] == name
        assert shell.kill("--orphans") == (0, "no orphaned sessions\n", "")
        status, out, err = shell.kill(name)
    assert (status, err) == (0, "")
    assert out == f"session {name} ({session['session']}): ended, 4 processes\n"
    assert shell.sessions() == []
