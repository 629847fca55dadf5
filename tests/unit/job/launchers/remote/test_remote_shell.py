"""What leads from a shell to the program of a job there: run by a real shell, on this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from monarch._src.job.launchers.remote import remote_program, remote_shell
from monarch._src.job.launchers.remote.remote_shell import Arrived, arrived_problem, status_problem
from monarch._src.version import VERSION

PATH = os.pathsep.join(p for p in sys.path if p)


def arrive(
    env: dict[str, str], cwd: str = "", python: str = sys.executable
) -> tuple[int, list[Arrived], str]:
    """Run the lines for a call that there is none of: what is answered up to it."""
    said = remote_shell.lines("start", env, cwd)
    done = subprocess.run(
        ["sh", "-c", remote_shell.command(python)], input=said, capture_output=True, check=False
    )
    answers = [
        msgspec.json.decode(line[len(remote_program.ANSWER) :], type=Arrived)
        for line in done.stdout.splitlines()
        if line.startswith(remote_program.ANSWER)
    ]
    return done.returncode, answers, done.stderr.decode()


def monarch_at(folder: Path, version: str | None) -> dict[str, str]:
    """An environment in which another monarch is imported; None: one of somebody else."""
    package = folder / "monarch"
    (package / "_src").mkdir(parents=True)
    (package / "__init__.py").touch()
    if version is not None:
        (package / "_src" / "version.py").write_text(f"VERSION = {version!r}\n")
    return {"PYTHONPATH": str(folder)}


def test_an_interpreter_that_fits_says_so_and_goes_on() -> None:
    status, (arrived, after), _ = arrive({"PYTHONPATH": PATH})
    assert (arrived.why, arrived.monarch, arrived.at) == ("", VERSION, sys.executable)
    assert arrived_problem("h1", arrived) == ""
    assert status == 1  # there was no line that says what to start
    assert after.text


def test_the_arguments_of_what_runs_there_say_nothing() -> None:
    assert "env" not in remote_shell.command("python3")
    assert remote_shell.command("~/a b/python").startswith("exec ~/'a b/python' -c ")


def test_another_version_is_a_table_of_both(tmp_path: Path) -> None:
    status, (arrived,), _ = arrive(monarch_at(tmp_path, "0.0.1"))
    assert status == 0
    problem = arrived_problem("h1", arrived)
    assert f"{sys.executable} on h1 speaks another version" in problem
    assert "0.0.1" in problem
    assert "<-- differs" in problem
    assert f"-m pip install monarch-jupyter=={VERSION}` on h1" in problem


def test_no_monarch_says_what_to_install_where(tmp_path: Path) -> None:
    _, (arrived,), _ = arrive(monarch_at(tmp_path, None))
    problem = arrived_problem("h1", arrived)
    assert "has no monarch (ModuleNotFoundError: No module named 'monarch._src.version')" in problem
    assert f"`{sys.executable} -m pip install monarch-jupyter=={VERSION}` on h1" in problem


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    status, (arrived,), _ = arrive({}, str(tmp_path / "none"))
    assert status == 1
    assert "the working directory does not exist on h1: " in arrived_problem("h1", arrived)
    assert str(tmp_path / "none") in arrived_problem("h1", arrived)


@pytest.mark.parametrize(
    ("python", "status", "why"),
    [
        ("no-such-python", 127, "no-such-python cannot be run on h1: "),
        ("/", 126, "/ cannot be run on h1: "),
        ("false", 1, "false on h1 ended with status 1: it printed nothing"),
    ],
)
def test_what_is_no_python_is_told_by_its_status(python: str, status: int, why: str) -> None:
    found, answers, said = arrive({}, python=python)
    assert (found, answers) == (status, [])
    problem = status_problem("h1", python, found, said.splitlines(), "ssh h1 true")
    assert problem.startswith(why)
    assert "give python=" in problem


def test_what_ssh_itself_could_not_do_is_told_with_a_command_to_try() -> None:
    said = ["Warning: of no interest", "ssh: connect to host h1 port 22: Connection refused"]
    assert status_problem("h1", "python3", 255, said, "ssh -o BatchMode=yes h1 true") == (
        "ssh cannot connect: ssh: connect to host h1 port 22: Connection refused; "
        "`ssh -o BatchMode=yes h1 true` has to work without a prompt"
    )


def test_the_lines_are_ascii_whatever_the_environment_says() -> None:
    lines = remote_shell.lines("start", {"NAME": "Zoë\n"}, "/tmp/ü").decode("ascii").splitlines()
    assert len(lines) == 4
    assert json.loads(lines[1]) == {"env": {"NAME": "Zoë\n"}, "cwd": "/tmp/ü"}
