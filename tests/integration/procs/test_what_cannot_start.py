"""A proc that cannot start is an error that says which rank and why, and the next mesh works."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch._src.mesh.client import session
from monarch.actor import ProcMesh, SupervisionError, this_host
from monarch.config import configured
from tests.integration.programs import run
from tests.integration.sample_actors import Echo

Spawn = Callable[..., ProcMesh]


def spawned_with(python: Path) -> ProcMesh:
    """Two procs under that interpreter."""
    return this_host().with_python_executable(python).spawn_procs({"gpus": 2}, name="other")


def test_an_executable_that_is_not_there_is_named(tmp_path: Path, faults: object) -> None:
    procs = spawned_with(tmp_path / "no-python")
    said = rf"other\[gpus=\d\] never started: {tmp_path}/no-python is not an executable file"
    with pytest.raises(SupervisionError, match=said):
        procs.initialized.get(timeout=60)
    with pytest.raises(SupervisionError, match=said) as caught:
        procs.spawn("echo", Echo).rank.call().get(timeout=60)
    assert {failure.kind for failure in caught.value.failures} == {"never started"}
    procs.stop().get(timeout=60)


def test_an_executable_that_is_no_python_is_told_with_what_it_said(
    tmp_path: Path, faults: object
) -> None:
    python = tmp_path / "not-python"
    python.write_text("#!/bin/sh\necho 'I am no python' >&2\nexit 5\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    procs = spawned_with(python)
    with pytest.raises(SupervisionError, match="never started: exited with status 5") as caught:
        procs.spawn("echo", Echo).rank.call().get(timeout=60)
    assert caught.value.failures[0].death is not None
    assert caught.value.failures[0].death.stderr_tail == ("I am no python",)
    assert "I am no python" in str(caught.value)
    procs.stop().get(timeout=60)


def test_a_process_that_never_says_hello_is_given_up(tmp_path: Path, faults: object) -> None:
    python = tmp_path / "silent"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    with configured(startup_timeout="200ms"):
        procs = spawned_with(python)
    with pytest.raises(SupervisionError, match=r"never started: .*did not answer within"):
        procs.spawn("echo", Echo).rank.call().get(timeout=60)
    procs.stop().get(timeout=60)


def test_a_process_of_another_version_ends_at_once_and_shows_both_versions(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import monarch._src.version as v; v.VERSION='9.9'")
    python = tmp_path / "other"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    program = """
        import sys
        import monarch.actor
        from monarch.actor import this_host
        from tests.integration.sample_actors import Echo

        monarch.actor.unhandled_fault_hook = lambda fault: None
        procs = this_host().with_python_executable(sys.argv[1]).spawn_procs({"gpus": 2})
        print(procs.spawn("echo", Echo).rank.call().exception(timeout=60))
        procs.stop().get(timeout=60)
    """
    status, out, _ = run(tmp_path / "elsewhere", program, str(python))
    assert status == 0
    assert "exited with status 1" in out
    assert "refuses to talk to this process" in out
    assert re.search(r"monarch +\S+ +9\.9 +<-- differs", out)


FEW_DESCRIPTORS = """
    import resource, sys
    limit, count = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    import monarch.actor
    from monarch.actor import Actor, SupervisionError, endpoint, this_host
    monarch.actor.unhandled_fault_hook = lambda fault: None

    class One(Actor):
        @endpoint
        def one(self):
            return 1

    try:
        procs = this_host().spawn_procs({"gpus": count}, name="many")
        procs.spawn("one", One).one.call().get(timeout=60)
    except Exception as error:
        print(type(error).__name__, error)
        procs.stop().get(timeout=60) if "procs" in globals() else None
    few = this_host().spawn_procs({"gpus": 2})
    print(few.spawn("one", One).one.call().get(timeout=60).values())
"""


@pytest.mark.parametrize("limit", [64, 100, 170, 200, 250])
def test_out_of_descriptors_is_an_error_with_the_remedy_and_the_next_mesh_works(
    tmp_path: Path, limit: int
) -> None:
    status, out, err = run(tmp_path, FEW_DESCRIPTORS, str(limit), "100")
    assert (status, err) == (0, "")
    first, *_, last = out.splitlines()
    assert "out of file descriptors" in first
    assert f"limit is {limit}" in first
    assert "ulimit" in first
    assert last == "[1, 1]"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_mesh_whose_status_board_finds_no_room_says_so_and_the_next_one_works(
    spawn_procs: Spawn, faults: object
) -> None:
    spawn_procs({"gpus": 1}).initialized.get(timeout=60)
    agent = psutil.Process(session().agent_pid)
    before = agent.rlimit(psutil.RLIMIT_FSIZE)
    agent.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
    try:
        procs = this_host().spawn_procs({"gpus": 2}, name="roomless", restart="on-failure")
        said = r"never started: its status board .*\.board cannot be made \(File too large\); make"
        with pytest.raises(SupervisionError, match=said) as caught:
            procs.spawn("echo", Echo).rank.call().get(timeout=60)
    finally:
        agent.rlimit(psutil.RLIMIT_FSIZE, before)
    assert {failure.kind for failure in caught.value.failures} == {"never started"}
    procs.stop().get(timeout=60)
    assert spawn_procs({"gpus": 2}).spawn("echo", Echo).rank.call().get(timeout=60).values()
