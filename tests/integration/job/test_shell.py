"""`shell`: a terminal on a host, used through a real pseudo-terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch.actor import this_host
from monarch.job import shell
from tests.integration.programs import PATIENCE_S, watched
from tests.integration.terminals import Terminal, terminal

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import monarch.actor
from monarch.actor import SupervisionError, this_host
from monarch.job import shell

if __name__ == "__main__":
    monarch.actor.unhandled_fault_hook = lambda failure: None  # the call tells of it
    try:
        sys.exit(shell(this_host(), env={"WORD": "hello"}, workdir="/tmp", cmd=["/bin/sh"]))
    except SupervisionError:
        print("the host was lost")
        sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    return str(script)


@pytest.fixture
def screen(program: str) -> Iterator[Terminal]:
    with terminal([program]) as screen:
        screen.expect("ready> ")
        yield screen


def test_it_has_a_terminal_of_the_same_size_and_the_status_of_the_shell(screen: Terminal) -> None:
    assert screen.is_raw()
    screen.type("stty size; tty; echo $TERM $WORD in $(pwd)\n")
    screen.expect(r"\r\n30 100\r\n/dev/\S+\r\nxterm hello in /tmp\r\n")
    screen.type("exit 7\n")
    assert screen.end() == 7


def test_it_follows_changes_of_the_size(screen: Terminal) -> None:
    screen.resize(40, 120)
    screen.type('until [ "$(stty size)" = "40 120" ]; do :; done; echo fol""lowed\n')
    screen.expect("followed")
    screen.type("exit\n")
    assert screen.end() == 0


def test_ctrl_c_interrupts_the_program_on_the_host_and_nothing_here(screen: Terminal) -> None:
    shell_process = psutil.Process(_shell_of(screen))
    screen.type("sleep 6000\n")
    # Before that the key would interrupt the shell, which reads on.
    while not any(child.name() == "sleep" for child in shell_process.children()):
        assert screen.process.poll() is None
    screen.type("\x03")
    screen.expect("ready> ")
    screen.type('echo still he""re; exit 4\n')
    screen.expect("still here")
    assert screen.end() == 4


def test_much_output_comes_whole_and_in_order(screen: Terminal) -> None:
    screen.type("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done\n")
    screen.expect("\r\nline 1\r\n")
    shown = screen.until("ready> ")
    assert shown == "".join(f"line {n}\r\n" for n in range(2, 20001))
    screen.type("exit\n")
    assert screen.end() == 0


def test_what_is_pasted_comes_whole(screen: Terminal) -> None:
    # Lines, as a terminal in canonical mode takes 4,095 bytes without a newline at most.
    lines = [f"line {n:05} {'x' * 50}" for n in range(4000)]
    screen.type('stty -echo; cat > /dev/null <<END; echo to""ok it\n')
    for begin in range(0, len(lines), 20):
        screen.type("".join(f"{line}\n" for line in lines[begin : begin + 20]))
    screen.type("END\n")
    screen.expect("took it")
    screen.type("exit\n")
    assert screen.end() == 0


def test_the_end_of_the_terminal_ends_the_shell_and_what_runs_in_it(program: str) -> None:
    with terminal([program]) as screen:
        screen.expect("ready> ")
        pids = [one.pid for one in psutil.Process(screen.process.pid).children(recursive=True)]
        with watched(pids) as processes:
            screen.process.kill()
            processes.wait_all_ended()


def test_a_rank_that_dies_is_an_error_and_the_terminal_is_as_before(screen: Terminal) -> None:
    rank = psutil.Process(_shell_of(screen)).parent()
    assert rank is not None
    rank.kill()
    screen.expect("the host was lost")
    assert not screen.is_raw()
    assert screen.end() == 3


def test_input_from_a_pipe_runs_and_ends_the_shell(program: str) -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, program], input=b"echo six times seven is $((6*7))\n", capture_output=True,
        env={**os.environ, "PYTHONPATH": path}, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"six times seven is 42\r\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"env": {"A": 1}}, TypeError, "names and values are text"),
        ({"cmd": "bash"}, TypeError, r"give words, as in \['bash', '-l'\]"),
        ({}, RuntimeError, "run `monarch shell` in a terminal"),
    ],
)
def test_bad_input_is_refused(
    arguments: dict[str, Any], error: type[Exception], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(error, match=why):
        shell(this_host(), **arguments)


def _shell_of(screen: Terminal) -> int:
    screen.type('echo pid $$; echo pri""nted\n')
    pid = screen.expect(r"pid (\d+)\r\n").group(1)
    screen.expect("printed")
    return int(pid)
