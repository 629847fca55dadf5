"""Where ranks are: seen from outside, whatever they do, and the odd ones named."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from monarch._src.observe.stacks.py_spy import find_py_spy
from monarch.actor import Actor, ProcMesh
from monarch.observe import MeshStacks, Stacks, StacksError, snapshot, stacks
from monarch.supervision import Restart, RestartedError
from tests.conftest import Faults
from tests.integration.callers import Ring
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.programs import run
from tests.integration.sample_actors import AsyncHolder, Echo

Spawn = Callable[..., ProcMesh]


def shown(qualified: str) -> str:
    """How a function is named: before Python 3.11 code does not know its class."""
    return qualified if sys.version_info >= (3, 11) else qualified.rpartition(".")[2]


PASS = shown("Gate.pass_through")


@pytest.fixture
def mesh(spawn_procs: Spawn) -> ProcMesh:
    procs = spawn_procs({"gpus": 4}, name="workers")
    procs.initialized.get()  # one that is starting is told as that
    return procs


def seen(found: Stacks) -> MeshStacks:
    (only,) = found.meshes
    return only


def look_until(headline: str, mesh: ProcMesh | Actor | None = None) -> MeshStacks:
    """Look until the ranks are where they were sent: past the gate's first step."""
    for _ in range(200):
        found = seen(stacks(mesh))
        if found.headline == headline:
            return found
    pytest.fail(f"never came there; last: {found.headline}")


def test_idle_ranks_are_named_idle_and_not_stopped_for_it(mesh: ProcMesh) -> None:
    found = seen(stacks())
    assert (found.name, found.sizes, found.headline) == ("workers", {"gpus": 4}, "4 idle")
    assert [group.ranks for group in found.groups] == [(0, 1, 2, 3)]


def test_ranks_in_the_same_place_are_one_group_and_the_odd_one_is_named(
    mesh: ProcMesh, gate: GateKeeper
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    answer = faulty.hold_on.call([0, 1, 3], gate.gate)
    gate.wait_entered(3)
    found = look_until(f"3 in {PASS}, 1 idle: gpus=2")
    group = found.groups[0]
    assert group.points == ({"gpus": 0}, {"gpus": 1}, {"gpus": 3})
    (thread,) = group.threads
    assert [frame.name for frame in thread.frames] == [shown("Faulty.hold_on"), PASS]
    assert thread.frames[0].filename.endswith("failing_actors.py")
    assert "_src" not in found.text
    gate.open(3)
    answer.get()


def test_a_rank_that_holds_the_gil_is_seen(mesh: ProcMesh, gate: GateKeeper) -> None:
    faulty = mesh.spawn("faulty", Faulty).slice(gpus=1)
    answer = faulty.hold_the_gil.call_one(gate.gate)
    gate.wait_entered()
    found = look_until("1 in stand_with_the_gil", faulty)
    assert found.groups[0].ranks == (1,)
    gate.open()
    answer.get()


def test_a_rank_that_is_stopped_is_seen_told_as_such_and_stays_stopped(
    mesh: ProcMesh, gate: GateKeeper
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pid = faulty.pid.call().get().item(gpus=2)
    answer = faulty.hold_on.call([2], gate.gate)
    gate.wait_entered()
    look_until(f"1 in {PASS}", mesh.slice(gpus=2))
    os.kill(pid, signal.SIGSTOP)
    try:
        look_until(f"1 stopped by a signal, in {PASS}", mesh.slice(gpus=2))
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    finally:
        os.kill(pid, signal.SIGCONT)
    gate.open()
    answer.get()


def test_a_rank_that_waits_for_another_is_told_so(mesh: ProcMesh, gate: GateKeeper) -> None:
    ring, faulty = mesh.spawn("ring", Ring), mesh.spawn("faulty", Faulty)
    answer = ring.slice(gpus=0).hold_by.call_one(faulty.slice(gpus=1), gate.gate)
    gate.wait_entered()
    found = look_until(
        f"1 in {shown('Ring.hold_by')}, waiting for an answer, 1 in {PASS}: gpus=1",
        mesh.slice(gpus=slice(0, 2)),
    )
    assert found.groups[0].threads[0].waits
    gate.open()
    answer.get()


def test_a_coroutine_that_awaits_is_told_by_its_endpoint(mesh: ProcMesh, gate: GateKeeper) -> None:
    holder = mesh.spawn("holder", AsyncHolder).slice(gpus=0)
    answer = holder.hold.call_one(gate.gate.entered)
    gate.wait_entered()
    look_until("1 in AsyncHolder.hold, awaiting asyncio.Event.wait of self.may_go", holder)
    holder.let_go.call_one().get()
    answer.get()


def test_ranks_go_on_after_a_look(mesh: ProcMesh) -> None:
    echo = mesh.spawn("echo", Echo)
    for number in range(5):
        answers = [echo.same.call(number) for _ in range(20)]
        stacks(idle=True)
        assert all(answer.get().values() == [number] * 4 for answer in answers)


def test_a_dead_rank_is_told_as_such(mesh: ProcMesh, faults: Faults) -> None:
    mesh.spawn("faulty", Faulty).slice(gpus=1).exit_hard.call_one(3).exception(timeout=60)
    faults.take()
    assert seen(stacks()).headline == "3 idle, 1 failed: exited with status 3: gpus=1"


def test_a_rank_that_is_to_be_started_again_is_told_as_such(spawn_procs: Spawn) -> None:
    policy = Restart(back_off="600s", longest="600s")
    mesh = spawn_procs({"gpus": 2}, name="workers", restart=policy)
    faulty = mesh.spawn("faulty", Faulty)
    for _ in range(2):  # the first time it is started again at once
        with pytest.raises(RestartedError):
            faulty.slice(gpus=0).exit_hard.call_one(3).get(timeout=60)
    look_until("1 starting again: exited with status 3, 1 idle: gpus=1")


def test_full_shows_the_runtime_too(mesh: ProcMesh) -> None:
    found = seen(stacks(mesh, full=True, idle=True))
    assert found.headline == "4 idle"
    assert "_src" in found.text
    assert "thread monarch-io" in found.text


def test_no_time_is_said_of_each_rank(mesh: ProcMesh) -> None:
    said = seen(stacks(mesh, idle=True, timeout=0)).headline
    assert said == "4 not read: the 0 s were over"


def test_nothing_to_look_into_is_no_error() -> None:
    assert str(stacks()) == "no ranks"


def test_what_is_no_mesh_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a mesh of procs or actors"):
        stacks("workers")  # pyright: ignore[reportArgumentType]


def test_looks_at_the_same_time_are_each_answered(mesh: ProcMesh) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda rank: seen(stacks(mesh.slice(gpus=rank))), range(4)))
    assert [one.groups[0].ranks for one in found] == [(0,), (1,), (2,), (3,)]


# --- where it cannot be done ----------------------------------------------------------------------

LOOK = """
    import ctypes, sys
    from monarch.actor import Actor, endpoint, this_host
    from monarch.observe import StacksError, stacks

    class Shy(Actor):
        def __init__(self):
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: others may not look
        @endpoint
        def one(self):
            return 1

    procs = this_host().spawn_procs({"gpus": 2})
    print(procs.spawn("shy", Shy).one.call().get().values())
    try:
        stacks(procs, idle=True)
    except StacksError as error:
        print(error)
    print(procs.spawn("other", Shy).one.call().get().values())
"""


def test_without_py_spy_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An environment whose interpreter has no py-spy beside it.
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = run(tmp_path / "run", LOOK, command=[str(python)])
    assert (status, err) == (0, "")
    first, said, last = out.splitlines()
    assert (first, last) == ("[1, 1]", "[1, 1]")
    assert said == (
        f"py-spy is not installed beside {python}, which the host agent runs under; "
        "pip install 'monarch-jupyter[stacks]'"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_where_nobody_may_look_the_remedy_is_said(tmp_path: Path) -> None:
    command = [sys.executable]
    if os.getuid() == 0:  # root may look at everything, unless it has given that up
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("without setpriv root cannot give up its right to look")
        command = [setpriv, "--bounding-set", "-sys_ptrace", sys.executable]
    status, out, err = run(tmp_path, LOOK, command=command)
    assert (status, err) == (0, "")
    first, said, last = out.splitlines()
    assert (first, last) == ("[1, 1]", "[1, 1]")
    assert said.startswith("py-spy may not read other processes here (")
    assert "SYS_PTRACE" in said


# --- the command line -----------------------------------------------------------------------------


def test_the_command_takes_meshes_slices_and_sessions(
    mesh: ProcMesh, gate: GateKeeper, own_base_directory: Path
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    answer = faulty.hold_on.call([1], gate.gate)
    gate.wait_entered()
    look_until(f"3 idle, 1 in {PASS}: gpus=1")
    here = ("--in", str(own_base_directory))
    (directory,) = own_base_directory.glob("monarch-*")
    session = directory.name.removeprefix("monarch-")
    for which in ((), ("workers",), (session,), (session[:5],)):
        status, out, err = monarch("stacks", *here, *which)
        assert (status, err) == (0, "")
        head, _, group, first, *_ = out.splitlines()
        assert head == f"session {session}: workers, 4 ranks: 3 idle, 1 in {PASS}: gpus=1"
        assert group.startswith(f"1 in {PASS}: gpus=1, for ")
        assert first.endswith(f"in {shown('Faulty.hold_on')}")
    status, out, _ = monarch("stacks", *here, "workers[gpus=0:1]")
    assert (status, out) == (0, f"session {session}: workers, 1 rank: 1 idle\n")
    gate.open()
    answer.get()


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("nobody", "there is no session or mesh 'nobody'; meshes: workers (see `monarch ps`)"),
        ("workers[gpus=9]", "workers: slice: gpus=9 is out of range"),
        ("workers[cpus=0]", "workers: slice: no dim 'cpus'"),
        ("workers[gpus]", "'gpus' selects nothing; write dim=3 or dim=0:4"),
    ],
)
def test_the_command_says_what_it_does_not_find(
    mesh: ProcMesh, own_base_directory: Path, which: str, said: str
) -> None:
    status, out, err = monarch("stacks", "--in", str(own_base_directory), which)
    assert (status, out) == (1, "")
    assert err.startswith(f"monarch stacks: {said}")


def test_a_snapshot_is_answered_while_a_look_is_taken(mesh: ProcMesh) -> None:
    looking = threading.Thread(target=lambda: stacks(mesh, idle=True))
    looking.start()
    while looking.is_alive():
        assert len(snapshot()[0].rows) == 4
    looking.join()


def test_py_spy_is_part_of_what_tests_run_with() -> None:
    assert find_py_spy() is not None, StacksError.__doc__
