"""`monarch debug`: breakpoints from a terminal, while the client is busy with something else."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch._src.net.observer import AgentLink
from monarch._src.session.directories import find_sessions
from monarch._src.wire.messages import AskDebugger, DebuggerAnswered
from monarch._src.wire.messages.debugger import COMMAND
from monarch.actor import ProcMesh
from monarch.debug import DebugError, WaitingRanks, attach, resume, waiting
from tests.integration.commands import monarch
from tests.integration.debugging import Stepper, news
from tests.integration.programs import PATIENCE_S


@pytest.fixture(scope="module")
def steppers(four: ProcMesh) -> Stepper:
    return four.spawn("steppers", Stepper)


@pytest.fixture
def until() -> Iterator[Callable[[int], WaitingRanks]]:
    with news() as found:
        yield found
        resume()


@pytest.fixture
def debug(own_base_directory: Path) -> Callable[..., tuple[int, str, str]]:
    """`monarch debug`, with these commands."""

    def run(*lines: str) -> tuple[int, str, str]:
        given = [word for line in lines for word in ("-c", line)]
        return monarch("debug", "--in", str(own_base_directory), *given)

    return run


def test_a_terminal_lists_casts_and_lets_go(
    steppers: Stepper,
    until: Callable[[int], WaitingRanks],
    debug: Callable[..., tuple[int, str, str]],
) -> None:
    answer = steppers.step.call(5, (1, 2, 3))
    until(3)
    status, out, err = debug(
        "list", "cast steppers ranks(1,2) p doubled", "cast workers ranks(gpus=3) p value"
    )
    assert (status, err) == (0, "")
    assert "workers[gpus=1..3]  steppers  Stepper.step" in out
    assert "2 ranks: workers[gpus=1], workers[gpus=2]\n    10" in out
    assert "1 rank: workers[gpus=3]\n    5" in out
    status, out, err = debug(
        "continue steppers 1", "continue steppers ranks(2:3)", "continue", "help"
    )
    assert (status, err) == (0, "")
    assert out.startswith("resumed 1 rank\n" * 3 + "list ")
    assert answer.get(timeout=PATIENCE_S).values() == [110] * 4


IDLE = """
import sys
from monarch.actor import this_host
this_host().spawn_procs({"gpus": 1}).initialized.get()
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_only_session_with_a_paused_rank_needs_no_name(
    steppers: Stepper,
    until: Callable[[int], WaitingRanks],
    debug: Callable[..., tuple[int, str, str]],
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        status, out, err = debug("list")
        assert (status, out) == (1, "")
        assert "several sessions are running; name one: " in err
        answer = steppers.step.call(5, (1,))
        until(1)
        status, out, err = debug("list", "continue")
        assert (status, err) == (0, "")
        assert "workers[gpus=1]  steppers  Stepper.step" in out
        assert answer.get(timeout=PATIENCE_S).values()[0] == 110
        other.stdin.close()
        assert other.wait(PATIENCE_S) == 0


def test_a_terminal_talks_to_one_rank(
    steppers: Stepper,
    until: Callable[[int], WaitingRanks],
    own_base_directory: Path,
) -> None:
    answer = steppers.step.call(5, (2,))
    until(1)
    ran = subprocess.run(
        [sys.executable, "-m", "monarch", "debug", "--in", str(own_base_directory)],
        input="attach steppers 2\np doubled\ndoubled = 1000\ndetach\nattach steppers 2\nc\n",
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "(Pdb) 10\n" in ran.stdout
    assert "workers[gpus=2] stays paused" in ran.stdout
    assert "workers[gpus=2] has resumed" in ran.stdout
    assert answer.get(timeout=PATIENCE_S).values() == [110, 110, 1100, 110]


class Terminal:
    """A real terminal in which a command runs, in the hands of a test."""

    def __init__(self, *command: str) -> None:
        self._keys, tty = pty.openpty()
        # `setsid -c` makes it the controlling one, so that Ctrl-C is a signal.
        self._ran = subprocess.Popen(
            ["setsid", "-c", *command], stdin=tty, stdout=tty, stderr=tty,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "dumb"},
        )  # fmt: skip
        os.close(tty)
        self._said = ""

    def until(self, text: str) -> str:
        """What is shown up to and with that."""
        while text not in self._said:
            ready, _, _ = select.select([self._keys], [], [], PATIENCE_S)
            assert ready, f"{text!r} was not shown: {self._said}"
            self._said += os.read(self._keys, 4096).decode().replace("\r\n", "\n")
        shown, found, self._said = self._said.partition(text)
        return shown + found

    def type(self, text: str) -> None:
        """These keys."""
        os.write(self._keys, text.encode())

    @property
    def status(self) -> int:
        """What it ended with."""
        return self._ran.wait(PATIENCE_S)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._ran.kill()
        self._ran.wait(PATIENCE_S)
        os.close(self._keys)


def test_in_a_real_terminal_a_rank_is_stepped_and_changed_with_history_and_ctrl_c(
    steppers: Stepper,
    until: Callable[[int], WaitingRanks],
    own_base_directory: Path,
) -> None:
    answer = steppers.step.call(5, (1, 2))
    until(2)
    command = [sys.executable, "-m", "monarch", "debug", "--in", str(own_base_directory)]
    with Terminal(*command) as terminal:
        assert "workers[gpus=1..2]  steppers  Stepper.step" in terminal.until("monarch debug> ")
        terminal.type("attach steppers ranks(2)\n")
        assert "-> breakpoint()" in terminal.until("(Pdb) ")
        terminal.type("p doubled\n")
        assert "\n10\n" in terminal.until("(Pdb) ")
        terminal.type("doubled = 1000\n")
        terminal.until("(Pdb) ")
        terminal.type("half a line")
        terminal.until("half a line")
        terminal.type("\x03")  # Ctrl-C forgets it
        terminal.until("(Pdb) ")
        terminal.type("\x1b[A\x1b[A")  # up, up: what was asked before
        terminal.until("p doubled")
        terminal.type("\n")
        assert "\n1000\n" in terminal.until("(Pdb) ")
        terminal.type("next\n")
        assert "-> result = doubled + self.total" in terminal.until("(Pdb) ")
        terminal.type("continue\n")
        terminal.until("workers[gpus=2] has resumed")
        terminal.type("continue\n")
        terminal.until("resumed 1 rank")
        terminal.type("quit\n")
    assert terminal.status == 0
    assert answer.get(timeout=PATIENCE_S).values() == [110, 110, 1100, 110]


def test_what_cannot_be_done_is_said_and_told_by_the_status(
    steppers: Stepper, debug: Callable[..., tuple[int, str, str]]
) -> None:
    for line, said in (
        ("attach steppers 2", "no rank of steppers 2 is paused"),
        ("cast steppers ranks(1)", "cast needs a command"),
        ("cast steppers ranks(x) p 1", "'x' selects no ranks"),
        ("cast steppers ranks(1) p 1", "no rank of steppers ranks(1) is paused"),
        ("continue steppers 1 2 3", "'1 2 3' selects no ranks"),
        ("continue steppers rank(1)", "'rank(1)' selects no ranks"),
        ("post-mortem", "write `post-mortem on` or"),
        ("dance", "unknown command 'dance'"),
    ):
        status, _, err = debug(line)
        assert (status, err.startswith(f"monarch debug: {said}")) == (1, True), err
    status, _, err = monarch("debug", "--in", "/nowhere", "x")
    assert (status, err) == (1, "monarch debug: you have no sessions on this machine\n")


def test_a_terminal_that_dies_lets_go_of_what_it_held(
    steppers: Stepper, until: Callable[[int], WaitingRanks], own_base_directory: Path
) -> None:
    answer = steppers.step.call(5, (2,))
    until(1)
    terminal = subprocess.Popen(
        [sys.executable, "-m", "monarch", "debug", "--in", str(own_base_directory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    with terminal:
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        terminal.stdin.write("attach steppers 2\n")
        while not terminal.stdout.readline().startswith("->"):  # of `where`, when it is attached
            pass
        while not waiting()[0].holder:
            pass
        with pytest.raises(DebugError, match="is attached to it"):
            attach()
        terminal.kill()
    while waiting()[0].holder:
        pass
    attach().send("continue")
    answer.get(timeout=PATIENCE_S)


def test_a_terminal_is_told_that_its_session_has_ended(
    own_base_directory: Path, run_python: Callable[..., str]
) -> None:
    ran = run_python(ENDS, str(own_base_directory))
    assert ran == "DebugError session gone has ended; `monarch ps` lists live sessions\n" * 2


ENDS = """
import sys
from pathlib import Path
from monarch.debug import DebugError
from monarch._src.debug.terminal_connection import TerminalConnection
from monarch._src.net.node import Node
from monarch._src.session.directories import Session
from monarch._src.wire.messages import ListPaused

folder = Path(sys.argv[1]) / "gone"
folder.mkdir(mode=0o700)
class Named:
    name, label, directory = "gone", "session gone", folder

def told(work):
    try:
        work()
    except DebugError as error:
        print("DebugError", error)

told(lambda: TerminalConnection(Named))
agent = Node("agent", "agent", f"ipc://{folder}/agent", lambda *_: agent.router.close())
agent.start()
line = TerminalConnection(Named)
told(lambda: line.request(lambda number: ListPaused(number, []), 1).wait(None))
line.close()
agent.close()
folder.rmdir()
"""


def test_an_observer_may_look_and_not_debug(
    steppers: Stepper, until: Callable[[int], WaitingRanks], own_base_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    answer = steppers.step.call(5, (2,))
    (one,) = until(1)
    (session,) = find_sessions([str(own_base_directory)])
    monkeypatch.setattr("monarch._src.net.observer.DEBUGGER", "observer-")
    link = AgentLink(session.directory)
    try:
        target = (int(one.mesh_uid, 16), one.rank, one.session)
        link.send(AskDebugger(7, COMMAND, [target], "!self.total = 0", False))
        refused = link.receive(PATIENCE_S)
    finally:
        link.close()
    assert isinstance(refused, DebuggerAnswered)
    assert "is an observer and may not debug" in refused.problem
    resume()
    assert answer.get(timeout=PATIENCE_S).values() == [110] * 4
