"""Three things end a mesh: a stop, a lost lease, the death of a parent. Each alone is enough."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.integration.programs import Program, running, watched

CLIENT = """
    import atexit, os, signal, sys
    import psutil
    from monarch.config import configure
    from monarch.actor import shutdown_context, this_host
    from tests.integration.sample_actors import Tidy
    from tests.integration.failing_actors import Faulty

    configure(cleanup_timeout=sys.argv[2])
    procs = this_host().spawn_procs({"gpus": 2}, name="workers")
    procs.spawn("tidy", Tidy, sys.argv[1]).note.call("here").get()
    faulty = procs.spawn("faulty", Faulty)
    faulty.start_grandchild.call().get()
    agent, = psutil.Process().children()
    zygote, = agent.children()
    print(agent.pid, zygote.pid, *(p.pid for p in zygote.children(recursive=True)), flush=True)
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
"""


class Family:
    """A client, and what it has started: two procs, each with a child."""

    def __init__(self, program: Program, said: Path) -> None:
        self.program = program
        self.said = said
        self.agent, self.zygote, *self.procs = (int(pid) for pid in program.line().split())
        assert len(self.procs) == 4

    @property
    def cleaned_up(self) -> bool:
        """Whether actors have had the time for it."""
        return "cleaned up" in self.said.read_text()


@contextmanager
def family(folder: Path, cleanup: str = "10s") -> Iterator[Family]:
    said = folder / "said"
    with running(folder, CLIENT, str(said), cleanup) as program:
        yield Family(program, said)


def alive(*pids: int) -> bool:
    return all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def directories(base: Path) -> list[Path]:
    return list(base.glob("monarch-*"))


def end_grandchildren(one: Family) -> None:
    """What ranks have started outlives them where nobody is left to end their groups."""
    for pid in one.procs[2:]:
        with suppress(ProcessLookupError):  # the zygote may have come to it in its last moment
            os.kill(pid, signal.SIGKILL)


# --- each alone -----------------------------------------------------------------------------------


def test_a_stop_alone_is_enough(tmp_path: Path) -> None:
    # The client lives on, and so do agent and zygote: no lease is lost and no parent dies.
    with family(tmp_path) as one:
        with watched(one.procs) as processes:
            one.program.say("procs.stop().get()")
            assert one.program.line() == "done"
            processes.wait_all_ended()
        assert one.cleaned_up
        assert alive(one.program.pid, one.agent, one.zygote)


def test_a_lost_lease_alone_is_enough(tmp_path: Path, own_base_directory: Path) -> None:
    # Nobody says stop, and the parents of the procs live until these have ended in order: that
    # actors clean up is what a parent's death would not give them the time for.
    with family(tmp_path) as one, watched([one.agent, one.zygote, *one.procs]) as processes:
        one.program.signal(signal.SIGKILL)
        one.program.end()
        processes.wait_all_ended()
        assert one.cleaned_up
    assert directories(own_base_directory) == []


@pytest.mark.parametrize("which", ["agent", "zygote"])
def test_the_death_of_a_parent_alone_is_enough(tmp_path: Path, which: str) -> None:
    # The client is stopped, and so can say nothing and lose no lease; of agent and zygote the one
    # that lives is stopped too, and so can end nobody.
    with family(tmp_path) as one:
        parents = {"agent": one.agent, "zygote": one.zygote}
        dies = parents.pop(which)
        (other,) = parents.values()
        one.program.signal(signal.SIGSTOP)
        os.kill(other, signal.SIGSTOP)
        with watched([dies, *one.procs[:2]]) as processes:
            os.kill(dies, signal.SIGKILL)
            processes.wait_all_ended()
        assert not one.cleaned_up
        os.kill(one.agent if which == "zygote" else one.zygote, signal.SIGCONT)
        one.program.signal(signal.SIGCONT)
        end_grandchildren(one)


# --- ends of the client are quiet and bounded -----------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("sys.exit(0)", 0),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); os.kill(os.getpid(), 15)", 5),
        ("shutdown_context(); shutdown_context(); sys.exit(0)", 0),
        ("atexit.register(shutdown_context); sys.exit(0)", 0),
        ("faulty.slice(gpus=0).kill_self.call_one(9).exception(); os._exit(0)", 0),
    ],
)
def test_an_end_in_order_says_nothing_and_leaves_nothing(
    tmp_path: Path, own_base_directory: Path, ending: str, status: int
) -> None:
    quiet = "import monarch.actor; monarch.actor.unhandled_fault_hook = lambda failure: None; "
    with family(tmp_path) as one, watched([one.agent, one.zygote, *one.procs]) as processes:
        one.program.say(quiet + ending)
        assert one.program.end() == (status, "", "")
        processes.wait_all_ended()
    assert directories(own_base_directory) == []


def test_an_agent_that_hangs_at_the_end_of_its_client_is_killed(
    tmp_path: Path, own_base_directory: Path
) -> None:
    with family(tmp_path, "100ms") as one:
        os.kill(one.agent, signal.SIGSTOP)
        with watched([one.agent, one.zygote, *one.procs[:2]]) as processes:
            one.program.say("sys.exit(0)")
            status, _, err = one.program.end()
            processes.wait_all_ended()
        assert status == 0
        assert err == "the host agent did not end in 2.1 s and was killed\n"
        end_grandchildren(one)
    assert directories(own_base_directory) == []


def test_an_agent_and_its_client_killed_at_once_leave_only_a_directory(
    tmp_path: Path, own_base_directory: Path
) -> None:
    with family(tmp_path) as one, watched([one.zygote, *one.procs[:2]]) as processes:
        one.program.signal(signal.SIGSTOP)
        os.kill(one.agent, signal.SIGKILL)
        one.program.signal(signal.SIGKILL)
        one.program.end()
        processes.wait_all_ended()
        end_grandchildren(one)
    (left,) = directories(own_base_directory)
    assert sorted(path.name for path in left.iterdir() if path.is_dir()) == []
    shutil.rmtree(left)
