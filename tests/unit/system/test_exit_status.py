"""The exit status of a SystemExit is the one that Python gives it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from monarch._src.system.interpreter_exit import exit_status


@pytest.mark.parametrize("code", [None, 0, 3, 258, True, "it cannot go on", 2.5])
def test_status_and_text_are_those_of_python(
    code: object, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", f"raise SystemExit({code!r})"]
    python = subprocess.run(command, capture_output=True, text=True, check=False)
    found = exit_status(SystemExit(code))
    assert (found, capsys.readouterr().err) == (python.returncode, python.stderr)
