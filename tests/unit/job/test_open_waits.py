"""Waits of jobs: one line of a terminal, and what front ends ask for."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from monarch._src.job.open_waits import open_waits, waiting

PROGRAM = """
from monarch._src.job.open_waits import waiting
with waiting(2) as wait:
    wait.update("pending (Priority)")
    wait.update("pending (Resources)")
"""


def test_a_wait_is_open_from_its_first_text_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting(4) as wait:
        assert open_waits() == []
        wait.update("pending (Priority)")
        first = open_waits()
        wait.update("pending (Resources)")
        assert [(one.text, one.hosts) for one in open_waits()] == [("pending (Resources)", 4)]
        assert (first[0].text, first[0].number) == ("pending (Priority)", open_waits()[0].number)
    assert open_waits() == []
    assert capsys.readouterr() == ("", "")  # no terminal: nothing but the log


def test_a_terminal_has_one_line_which_is_overwritten_and_taken_away() -> None:
    leader, follower = pty.openpty()
    try:
        path = os.pathsep.join(p for p in sys.path if p)
        subprocess.run(
            [sys.executable, "-c", PROGRAM], stderr=follower, check=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        said = os.read(leader, 4096).decode()
    finally:
        os.close(leader)
        os.close(follower)
    clear = "\r\x1b[K"
    lines = said.split(clear)
    assert [line.partition(",")[0] for line in lines] == [
        "", "pending (Priority)", "pending (Resources)", "",
    ]  # fmt: skip
