"""Whatever way the client ends, nothing of it is left: no process, no directory, no socket."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.integration.gates import GateKeeper
from tests.integration.programs import Program, run, running, watched
from tests.workers import TRUST_ALL, worker

pytestmark = pytest.mark.slow

CLIENT = """
    import os, signal, sys, time
    import psutil
    from monarch.actor import Actor, endpoint, this_host
    from tests.integration.sample_actors import Tidy
    from tests.integration.failing_actors import Faulty
    from tests.integration.gates import Gate

    procs = this_host().spawn_procs({"gpus": 3})
    tidy = procs.spawn("tidy", Tidy, sys.argv[1])
    tidy.note.call("here").get()
    faulty = procs.spawn("faulty", Faulty)
    faulty.pid.call().get()
    family = psutil.Process().children(recursive=True)
    print(*(child.pid for child in family), flush=True)
    sys.stdin.readline()
"""


def begin(program: Program, own_base_directory: Path) -> list[int]:
    """Wait until the client's meshes are up; the pids of all it has started."""
    pids = [int(pid) for pid in program.line().split()]
    assert len(pids) == 5  # the agent, its zygote, three procs
    assert len(list(own_base_directory.glob("monarch-*"))) == 1
    return pids


def check_nothing_is_left(own_base_directory: Path) -> None:
    """That there is no session directory, and so no socket and no board."""
    assert list(own_base_directory.glob("monarch-*")) == []


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGHUP, -1), (signal.SIGSEGV, -11)],
)
def test_a_client_ended_by_a_signal(
    tmp_path: Path, own_base_directory: Path, number: signal.Signals, status: int
) -> None:
    said = tmp_path / "said"
    with (
        running(tmp_path, CLIENT, str(said)) as program,
        watched(begin(program, own_base_directory)) as processes,
    ):
        program.signal(number)
        assert program.end()[0] == status
        processes.wait_all_ended()
    check_nothing_is_left(own_base_directory)
    # Its actors still cleaned up after themselves.
    lines = said.read_text().splitlines()
    assert sorted(lines[-3:]) == [f"cleaned up {rank} after None" for rank in range(3)]


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("os._exit(7)", 7),
        ("os.abort()", -6),
        ("sys.exit(4)", 4),
        ("raise SystemExit", 0),
        ("os.execv('/bin/true', ['true'])", 0),
    ],
)
def test_a_client_that_ends_itself(
    tmp_path: Path, own_base_directory: Path, last: str, status: int
) -> None:
    with (
        running(tmp_path, CLIENT + f"    {last}\n", str(tmp_path / "said")) as program,
        watched(begin(program, own_base_directory)) as processes,
    ):
        program.say("go on")
        assert program.end() == (status, "", "")
        processes.wait_all_ended()
    check_nothing_is_left(own_base_directory)


def test_a_client_killed_while_every_rank_is_busy(
    tmp_path: Path, own_base_directory: Path, gate: GateKeeper
) -> None:
    program_text = CLIENT.replace(
        "    family =",
        "    faulty.hold.broadcast(Gate(sys.argv[2], sys.argv[3]))\n    family =",
    ).replace("import Gate\n", "import Gate\n    from monarch.config import configure\n"
              "    configure(cleanup_timeout='200ms')\n")  # fmt: skip
    arguments = (str(tmp_path / "said"), gate.gate.entered, gate.gate.leave)
    with (
        running(tmp_path, program_text, *arguments) as program,
        watched(begin(program, own_base_directory)) as processes,
    ):
        gate.wait_entered(3)
        program.signal(signal.SIGKILL)
        program.end()
        processes.wait_all_ended()
    check_nothing_is_left(own_base_directory)


def test_a_client_killed_while_its_procs_come_up(tmp_path: Path, own_base_directory: Path) -> None:
    program_text = """
        import os, signal
        import psutil
        from monarch.actor import this_host
        procs = this_host().spawn_procs({"gpus": 16})
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with running(tmp_path, program_text) as program:
        agent = int(program.line())
        with watched([agent]) as processes:
            assert program.end()[0] == -9
            processes.wait_all_ended()
    check_nothing_is_left(own_base_directory)


def test_a_client_killed_with_its_agent_leaves_a_directory_that_the_next_one_sweeps(
    tmp_path: Path, own_base_directory: Path
) -> None:
    with running(tmp_path, CLIENT, str(tmp_path / "said")) as program:
        pids = begin(program, own_base_directory)
        with watched(pids) as processes:
            program.signal(signal.SIGSTOP)
            os.kill(pids[0], signal.SIGKILL)
            program.signal(signal.SIGKILL)
            program.end()
            processes.wait_all_ended()
    assert len(list(own_base_directory.glob("monarch-*"))) == 1
    status, _, err = run(tmp_path, "from monarch.actor import this_host\n"
                                   "this_host().spawn_procs().initialized.get()\n")  # fmt: skip
    assert (status, err) == (0, "")
    check_nothing_is_left(own_base_directory)


def test_grandchildren_end_with_the_client(tmp_path: Path, own_base_directory: Path) -> None:
    program_text = CLIENT.replace(
        "    family =",
        "    started = faulty.start_grandchild.call().get().values()\n    family =",
    )
    with running(tmp_path, program_text, str(tmp_path / "said")) as program:
        pids = [int(pid) for pid in program.line().split()]
        assert len(pids) == 8
        with watched(pids) as processes:
            program.signal(signal.SIGKILL)
            program.end()
            processes.wait_all_ended()
    check_nothing_is_left(own_base_directory)


# --- forks of the client --------------------------------------------------------------------------

FORKING = """
    import os, sys
    from monarch.actor import Actor, endpoint, this_host

    class One(Actor):
        @endpoint
        def one(self):
            return 1

    one = this_host().spawn_procs({"gpus": 2}).spawn("one", One)
    print(one.one.call().get().values(), flush=True)
    child = os.fork()
    if child == 0:
        CHILD
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print(one.one.call().get().values(), flush=True)
"""


@pytest.mark.parametrize(
    ("child", "status"), [("os._exit(5)", 5), ("sys.exit(6)", 6), ("raise ValueError('x')", 1)]
)
def test_a_fork_of_the_client_ends_and_the_meshes_of_its_parent_work_on(
    tmp_path: Path, own_base_directory: Path, child: str, status: int
) -> None:
    ended, out, err = run(tmp_path, FORKING.replace("CHILD", child))
    assert ended == 0
    assert out == f"[1, 1]\nchild ended with {status}\n[1, 1]\n"
    assert err == "" or "ValueError: x" in err
    check_nothing_is_left(own_base_directory)


@pytest.mark.parametrize("timeout", ["", "30"])
def test_a_fork_of_the_client_that_calls_a_mesh_of_its_parent_is_told_why_it_cannot(
    tmp_path: Path, own_base_directory: Path, timeout: str
) -> None:
    child = f"""
        try:
            one.one.call().get({timeout})
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    """
    ended, out, err = run(tmp_path, FORKING.replace("CHILD", child.strip()))
    assert (ended, err) == (0, "")
    assert "is a fork of the one that has the mesh, and cannot call it; spawn meshes of its" in out
    assert out.endswith("child ended with 0\n[1, 1]\n")
    check_nothing_is_left(own_base_directory)


def test_a_fork_of_a_client_of_workers_says_nothing_by_its_links(
    tmp_path: Path, own_base_directory: Path
) -> None:
    child = """
        try:
            one.one.call().get(30)
        except RuntimeError as error:
            print(error, flush=True)
        sys.exit(0)
    """
    at_once = 'this_host().spawn_procs({"gpus": 2})'
    with worker("--address", "tcp://127.0.0.1:0", "--keys", TRUST_ALL) as listening:
        far = f'attach_to_workers(ca="{TRUST_ALL}", workers=["{listening.address}"])'
        program = FORKING.replace("this_host\n", "attach_to_workers\n")
        program = program.replace(at_once, f'{far}.spawn_procs({{"gpus": 2}})')
        ended, out, err = run(tmp_path, program.replace("CHILD", child.strip()))
        assert (ended, err) == (0, "")
        assert "is a fork of the one that has the mesh, and cannot call it" in out
        assert out.endswith("child ended with 0\n[1, 1]\n")


def test_a_fork_of_the_client_has_a_session_of_its_own(
    tmp_path: Path, own_base_directory: Path
) -> None:
    child = """
        mine = this_host().spawn_procs({"gpus": 1}).spawn("one", One)
        print("child:", mine.one.call().get().values(), flush=True)
        sys.exit(0)
    """
    ended, out, err = run(tmp_path, FORKING.replace("CHILD", child.strip()))
    assert (ended, err) == (0, "")
    assert out == "[1, 1]\nchild: [1]\nchild ended with 0\n[1, 1]\n"
    check_nothing_is_left(own_base_directory)


def test_multiprocessing_beside_a_mesh_works(tmp_path: Path, own_base_directory: Path) -> None:
    program_text = """
        import multiprocessing, os
        from monarch.actor import Actor, endpoint, this_host

        class One(Actor):
            @endpoint
            def one(self):
                return 1

        if __name__ == "__main__":
            one = this_host().spawn_procs({"gpus": 2}).spawn("one", One)
            one.one.call().get()
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(abs, [-1, -2]), one.one.call().get().values())
            print(one.one.call().get().values())
    """
    assert run(tmp_path, program_text) == (0, "[1, 2] [1, 1]\n[1, 1]\n", "")
    check_nothing_is_left(own_base_directory)
