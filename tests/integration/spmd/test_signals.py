"""`monarch torchrun` and `monarch exec` hand signals on to their ranks and commands."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from monarch._src.spmd import torchrun as runs
from tests.integration.spmd.scripts import HEAD, environment, records

PATIENCE_S = 120.0
TORCHRUN = ("torchrun", "--nproc-per-node", "2")
# A rank that saves its work when it is asked to end.
SAVES = """
import atexit, signal, time
def save(number, _frame): note(f"handles {number}"); sys.exit(0)
for name in sys.argv[1:]: signal.signal(getattr(signal, name), save)
atexit.register(note, "exit")
note("ready")
try:
    while True: time.sleep(0.05)
except KeyboardInterrupt:
    note("interrupted")
    raise
finally:
    note("finally")
"""
RUNS_ON = """
import signal, time
for name in sys.argv[1:]: signal.signal(getattr(signal, name), lambda *_: note("runs on"))
note("ready")
while True: time.sleep(0.05)
"""


class Begun:
    """A command that runs, and the records of its ranks."""

    def __init__(self, process: subprocess.Popen[str], into: Path) -> None:
        self._process = process
        self.into = into

    def wait_for(self, *lines: str) -> None:
        """Wait until the record of each rank has these lines."""
        deadline = time.monotonic() + PATIENCE_S
        while records(self.into) != [list(lines)] * 2:
            assert time.monotonic() < deadline, records(self.into)
            assert self._process.poll() is None, self._process.communicate()

    def send(self, number: int) -> None:
        """Send a signal to the command, and to nothing else."""
        self._process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for its end: the status, and what it has written to stderr."""
        _, err = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, err


Begin = Callable[..., Begun]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begin a command in the folder of `script.py`, which has this source."""
    with ExitStack() as stack:

        def begin(
            *words: str, source: str = "", program: Sequence[str] = ("-m", "monarch"),
            ignored: signal.Signals | None = None,
        ) -> Begun:  # fmt: skip
            into = tmp_path / "into"
            into.mkdir()
            (tmp_path / "script.py").write_text(HEAD + source)
            with _inherited(ignored):
                process = subprocess.Popen(
                    [sys.executable, *program, *words], cwd=tmp_path, env=environment(into),
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return Begun(process, into)

        yield begin


@contextmanager
def _inherited(ignored: signal.Signals | None) -> Generator[None]:
    """Ignore a signal in processes that are started here, as `nohup` does."""
    if ignored is None:
        yield
        return
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(ignored, before)


SLOW = pytest.mark.slow
OTHERS = [pytest.param(name, marks=SLOW) for name in ("SIGHUP", "SIGINT")]


@pytest.mark.parametrize(
    "name",
    ["SIGTERM", *(pytest.param(name, marks=SLOW) for name in ("SIGHUP", "SIGINT", "SIGQUIT"))],
)
def test_a_handler_of_the_script_runs(begin: Begin, name: str) -> None:
    number = signal.Signals[name]
    run = begin(*TORCHRUN, "script.py", name, source=SAVES)
    run.wait_for("ready")
    run.send(number)
    status, err = run.end()
    assert records(run.into) == [["ready", f"handles {number}", "finally", "exit"]] * 2
    assert (status, err) == (128 + number, f"monarch torchrun: {name} has ended the run\n")


@SLOW
def test_without_a_handler_sigint_interrupts_and_sigterm_ends_the_script(begin: Begin) -> None:
    run = begin(*TORCHRUN, "script.py", source=SAVES)
    run.wait_for("ready")
    run.send(signal.SIGINT)
    assert run.end()[0] == 128 + signal.SIGINT
    assert records(run.into) == [["ready", "interrupted", "finally", "exit"]] * 2


@SLOW
def test_sigterm_ends_a_script_without_a_handler(begin: Begin) -> None:
    run = begin(*TORCHRUN, "script.py", source=SAVES)
    run.wait_for("ready")
    run.send(signal.SIGTERM)
    assert run.end()[0] == 128 + signal.SIGTERM
    assert records(run.into) == [["ready"]] * 2


def test_ranks_that_run_on_are_killed_after_the_shutdown_timeout(begin: Begin) -> None:
    run = begin(
        *TORCHRUN, "--shutdown-timeout", "1", "script.py", "SIGTERM", source=RUNS_ON
    )  # fmt: skip
    run.wait_for("ready")
    run.send(signal.SIGTERM)
    assert run.end() == (143, "monarch torchrun: SIGTERM has ended the run\n")
    assert records(run.into) == [["ready", "runs on"]] * 2


@SLOW
def test_a_second_signal_kills_ranks_that_run_on(begin: Begin) -> None:
    run = begin(
        *TORCHRUN, "--shutdown-timeout", "600", "script.py", "SIGTERM", source=RUNS_ON
    )  # fmt: skip
    run.wait_for("ready")
    run.send(signal.SIGTERM)
    run.wait_for("ready", "runs on")
    run.send(signal.SIGINT)
    assert run.end()[0] == 128 + signal.SIGINT
    assert records(run.into) == [["ready", "runs on"]] * 2


@SLOW
def test_other_signals_are_handed_on_if_they_are_named(begin: Begin) -> None:
    run = begin(
        *TORCHRUN, "--signals-to-handle", "SIGUSR1,SIGTERM", "script.py", "SIGUSR1", source=SAVES
    )  # fmt: skip
    run.wait_for("ready")
    run.send(signal.SIGUSR1)
    assert run.end()[0] == 128 + signal.SIGUSR1
    assert records(run.into) == [["ready", f"handles {int(signal.SIGUSR1)}", "finally", "exit"]] * 2


@SLOW
def test_a_hangup_that_is_ignored_stays_ignored(begin: Begin) -> None:
    run = begin(
        *TORCHRUN, "script.py", "SIGTERM", source=SAVES, ignored=signal.SIGHUP
    )  # fmt: skip
    run.wait_for("ready")
    run.send(signal.SIGHUP)
    run.send(signal.SIGTERM)
    assert run.end()[0] == 128 + signal.SIGTERM
    saved = ["ready", f"handles {int(signal.SIGTERM)}", "finally", "exit"]
    assert records(run.into) == [saved] * 2


@SLOW
def test_a_program_that_is_no_python_gets_the_signal(begin: Begin) -> None:
    text = (
        "trap 'echo saved >> \"$INTO/record$RANK\"; exit 0' TERM\n"
        'echo ready >> "$INTO/record$RANK"\n'
        "while true; do sleep 0.05; done"
    )
    run = begin(*TORCHRUN, "--no-python", "bash", "-c", text)
    run.wait_for("ready")
    run.send(signal.SIGTERM)
    assert run.end()[0] == 128 + signal.SIGTERM
    assert records(run.into) == [["ready", "saved"]] * 2


def test_an_interrupted_program_hands_the_interrupt_on(begin: Begin) -> None:
    program = (
        "from monarch.spmd import torchrun\n"
        "try: torchrun(['--nproc-per-node', '2', 'script.py'])\n"
        "except KeyboardInterrupt: raise SystemExit(7)"
    )
    run = begin("-c", program, program=(), source=SAVES)
    run.wait_for("ready")
    run.send(signal.SIGINT)
    assert run.end() == (7, "")
    assert records(run.into) == [["ready", "interrupted", "finally", "exit"]] * 2


def test_an_interrupt_while_the_script_begins_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script may be ahead of the program that has called it."""
    begin = runs.begin_script

    def begin_and_interrupt(*arguments: Any) -> Any:
        answers = begin(*arguments)
        while records(tmp_path) != [["ready"]] * 2:
            pass
        signal.raise_signal(signal.SIGINT)
        return answers

    monkeypatch.setattr(runs, "begin_script", begin_and_interrupt)
    monkeypatch.setenv("INTO", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        runs.torchrun(["--nproc-per-node", "2"], source=HEAD + SAVES)
    assert records(tmp_path) == [["ready", "interrupted", "finally", "exit"]] * 2


@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(n, marks=SLOW) for n in ("SIGHUP", "SIGINT"))]
)
def test_exec_ends_its_command_by_sigterm(begin: Begin, name: str) -> None:
    text = (
        "trap 'echo saved >> \"$INTO/record$MONARCH_RANK_GPUS\"; exit 0' TERM\n"
        'echo ready >> "$INTO/record$MONARCH_RANK_GPUS"\n'
        "while true; do sleep 0.05; done"
    )
    run = begin("exec", "--here", "--per-host", "gpus=2", "--all", "--", "bash", "-c", text)
    run.wait_for("ready")
    run.send(signal.Signals[name])
    status, err = run.end()
    assert records(run.into) == [["ready", "saved"]] * 2
    assert status == 128 + signal.Signals[name]
    assert err.endswith(f"monarch exec: {name} has ended the command\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--signals-to-handle", "SIGNONE"], "'SIGNONE' is no signal that a program can handle"),
        (["--signals-to-handle", "SIGTERM,SIGKILL"], "'SIGKILL' is no signal that a program can"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout -1 is not a number of seconds from 0"),
    ],
)
def test_bad_options_are_refused_before_a_rank_starts(
    begin: Begin, options: list[str], text: str
) -> None:
    run = begin(*TORCHRUN, *options, "script.py", source="note('never')")
    status, err = run.end()
    assert (status, err.count(text), records(run.into)) == (2, 1, [[], []])
    assert len(err.splitlines()) == 1
