"""Meshes that outlive their kernel: killed, restarted or let go of, and bound again in the next."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fault.keepers import info
from tests.integration.commands import Commands
from tests.integration.gates import gate_in
from tests.integration.programs import watched
from tests.notebook.kernel import PATIENCE, Kernel, running_kernel

pytestmark = pytest.mark.slow

TRAINER = """
from monarch.actor import Actor, endpoint
class Trainer(Actor):
    def __init__(self):
        self.steps = 0
    @endpoint
    def step(self, gate=None):
        if gate is not None:
            gate.pass_through()
        self.steps += 1
        return self.steps
trainers = {name}.spawn("trainers", Trainer)
print(trainers.step.call().get().values())
"""
PIDS = """
from tests.integration.sample_actors import Teller
print(*{name}.spawn("tellers", Teller).pid.call().get().values())
"""


@pytest.fixture
def name() -> str:
    """A name for a mesh, and so for the session that keeps it: no other user of it may be near."""
    return f"w{secrets.token_hex(4)}"


@contextmanager
def a_kernel() -> Iterator[Kernel]:
    with tempfile.TemporaryDirectory() as folder, running_kernel(Path(folder)) as kernel:
        yield kernel


@contextmanager
def ending(kernel: Kernel) -> Iterator[None]:
    """What is kept ends with the test, also if that fails."""
    try:
        yield
    finally:
        kernel.run("%monarch stop --all")


def begin(kernel: Kernel, name: str) -> None:
    """A kept mesh of two ranks, with actors of a class of a cell that have made one step."""
    kernel.ok(f"%monarch spawn {name} gpus=2 --keep")
    assert kernel.ok(TRAINER.replace("{name}", name)).stdout == "[1, 1]\n"


def test_a_kernel_killed_in_the_middle_of_a_call_is_followed_by_one_that_finds_the_state(
    name: str, tmp_path: Path
) -> None:
    with gate_in(tmp_path) as gate:
        with a_kernel() as first:
            begin(first, name)
            first.ok(f"%%monarch on {name}\nfound = rank * 10")
            first.ok("from tests.integration.gates import Gate")
            first.ok(f"gate = Gate({gate.gate.entered!r}, {gate.gate.leave!r})")
            pid = int(first.value("__import__('os').getpid()"))
            first.client.execute("trainers.step.call(gate).get()")
            gate.wait_entered(2)
            os.kill(pid, signal.SIGKILL)
            provisioner: Any = first.manager.provisioner
            provisioner.process.wait()
        with a_kernel() as second, ending(second):
            shown = second.ok(f"%monarch attach {name}").stdout.splitlines()
            assert shown == [
                f"attached to {name}",
                f"  {name}: processes, 2 ranks",
                f"  trainers: Trainer on {name}, 2 ranks",
            ]
            gate.open(2)
            assert second.value("trainers.step.call().get().values()") == "[3, 3]"
            assert second.value(f"trainers.slice(gpus=0).step.call_one().get(), {name}.sizes") == (
                "(4, {'gpus': 2})"
            )
            # What cells on ranks have bound is there too, and a new class can be spawned.
            second.ok(f"%%monarch on {name}\nfound")
            assert second.value("_.values()") == "[0, 10]"
            assert f"{name} " in second.ok("%monarch ls").result["text/plain"]
            assert second.ok(TRAINER.replace("{name}", name)).stdout == "[1, 1]\n"


def test_a_restart_ends_what_is_tied_and_lets_what_is_kept_live(
    name: str, own_base_directory: Path
) -> None:
    with a_kernel() as kernel, ending(kernel):
        begin(kernel, name)
        kernel.ok("%monarch spawn tied gpus=2")
        tied = [int(pid) for pid in kernel.ok(PIDS.format(name="tied")).stdout.split()]
        kept = kernel.ok(PIDS.format(name=name)).stdout
        with watched(tied) as processes:
            kernel.manager.restart_kernel(now=False)
            processes.wait_all_ended()
        kernel.client.wait_for_ready(timeout=PATIENCE)
        assert info(own_base_directory, name).state == "detached"
        waits = f"{name} was kept and waits; `%monarch attach {name}` takes it up"
        assert waits in kernel.ok("%load_ext monarch_jupyter").stdout.splitlines()
        kernel.hold_output(PATIENCE)
        listed = kernel.ok("%monarch ls").result
        assert waits in listed["text/plain"].splitlines()
        assert waits in listed["text/html"]
        assert name in kernel.complete("%monarch attach ")
        kernel.ok("trainers = 5")
        shown = kernel.ok(f"%monarch attach {name}").stdout
        assert f"attached to {name}\n" in shown
        assert waits not in kernel.ok("%monarch ls").result["text/plain"]
        assert "not bound, since trainers is a int here; `del trainers` first" in shown
        assert kernel.value("'tied' in globals()") == "False"
        assert kernel.ok("print(*tellers.pid.call().get().values())").stdout == kept


def test_detach_lets_go_and_attach_takes_up_in_the_same_kernel(name: str) -> None:
    with a_kernel() as kernel, ending(kernel):
        assert "this kernel has no kept mesh" in kernel.refused("%monarch detach")
        begin(kernel, name)
        said = kernel.ok("%monarch detach").stdout
        assert said == f"detached from {name}; `%monarch attach {name}` attaches to it again\n"
        shown = kernel.run("trainers.step.call().get()")
        assert f"this process has released the session '{name}'" in shown.traceback
        text = kernel.ok(name).result["text/plain"]
        assert text == f"{name} {{gpus: 2}}, no longer of this kernel"
        said = kernel.refused(f"%%monarch on {name}\n1")
        assert said.startswith(f"{name} no longer belongs to this kernel; `%monarch attach`")
        shown = kernel.run(f"{name}.spawn('another', Trainer)").traceback
        assert "'another' is not spawned: they belong to a session that this process no" in shown
        kernel.ok(f"%monarch attach {name}")
        assert kernel.value("trainers.step.call().get().values()") == "[2, 2]"


SHOWING = """
from monarch.actor import Actor, endpoint
from typing import Any
class Showing(Actor):
    @endpoint
    def show(self):
        display("seen")
        return 7
showing = {name}.spawn("showing", Showing)
"""


def test_what_ranks_display_is_shown_by_the_kernel_that_has_them(name: str) -> None:
    with a_kernel() as second:
        with a_kernel() as first:
            first.ok(f"%monarch spawn {name} gpus=2 --keep\n" + SHOWING.replace("{name}", name))
            assert len(first.ok("showing.show.call().get();").displays) == 1
            first.ok("%monarch detach")
        with ending(second):
            second.ok(f"%monarch attach {name}")
            (data,) = second.ok("showing.show.call().get();").displays
            assert data["text/plain"] == "[gpus=0..1] 'seen'"


def test_two_kernels_have_one_session_in_turn(name: str) -> None:
    with a_kernel() as first, a_kernel() as second, ending(second):
        begin(first, name)
        said = second.refused(f"%monarch attach {name}")
        assert "holds it; take=True (--take) takes it over" in said
        said = second.refused(f"%monarch spawn {name} gpus=1 --keep")
        assert f"{name} is already a kept session" in said
        second.ok(f"%monarch attach {name} --take")
        assert second.value("trainers.step.call().get().values()") == "[2, 2]"
        assert "has taken it over" in first.run("trainers.step.call().get()").traceback
        first.ok("%monarch spawn own gpus=1")  # the kernel lives on


def test_what_cannot_be_attached_to_is_told_in_one_line(name: str) -> None:
    with a_kernel() as kernel, ending(kernel):
        said = kernel.refused(f"%monarch attach {name}")
        assert said.startswith(f"there is no kept session '{name}' on this machine")
        assert kernel.refused("%monarch attach a b") == "attach takes the name of one session"
        begin(kernel, name)
        refusal = (
            f"this kernel holds the session {name}; `%monarch detach` lets it go, and its meshes "
            "live on"
        )
        assert kernel.refused(f"%monarch attach {name}") == refusal
        calling = f"import monarch_jupyter; monarch_jupyter.attach({name!r})"
        said = kernel.run(calling).traceback
        assert said.endswith(f"CommandError: {refusal}")
        assert "attach.py" not in said
        said = kernel.run(f"from monarch import session; session.attach({name!r})").traceback
        assert said.endswith(
            f"this process holds the session {name!r}; `%monarch detach` releases it"
        )


def test_a_kept_session_is_headed_by_its_name_in_the_notebook_and_in_a_terminal(
    name: str, own_base_directory: Path
) -> None:
    with a_kernel() as kernel, ending(kernel):
        begin(kernel, name)
        shell = Commands(own_base_directory)
        (session,) = [one for one in shell.sessions() if one["kept_as"] == name]
        head = f"session {name} ({session['session']})"
        (line,) = [
            one for one in kernel.ok("%monarch ps").result["text/plain"].splitlines() if head in one
        ]
        assert line.startswith(f"{head}: live, kept, of this kernel, ")
        assert f"{head}  live, kept, " in shell.ps()
        assert shell("debug", name, "-c", "list")[0] == 0


def test_reap_says_what_it_would_do(kernel: Kernel) -> None:
    assert kernel.ok("%monarch reap --dry-run").stdout
    assert "reap takes no names" in kernel.refused("%monarch reap workers")
