"""The process table: who descends from whom, and whether a process is still the same one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable

import pytest

from monarch._src.system import process_table
from monarch._src.system.process_table import Entry

Start = Callable[..., "subprocess.Popen[str]"]

FAMILY = """
import os, sys
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["proc", "ps"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where it is read from; each system has one of the two, Linux mostly both."""
    if request.param == "ps":
        if shutil.which("ps") is None:
            pytest.skip("this machine has no `ps`")
        monkeypatch.setattr(process_table, "_HAS_PROC", False)
    elif not process_table._HAS_PROC:
        pytest.skip("this machine has no /proc")
    return request.param


def family(start: Start) -> tuple[subprocess.Popen[str], int]:
    """A process and the pid of its child."""
    parent = start(FAMILY)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def test_a_process_is_found_with_its_parent_group_and_state(
    python_program: Start, source: str
) -> None:
    parent, child = family(python_program)
    found = process_table.entry(child)
    assert found is not None
    assert (found.pid, found.parent, found.group) == (child, parent.pid, child)
    assert found.state in ("R", "S", "D", "I")
    os.kill(child, signal.SIGSTOP)
    stopped = None
    while stopped is None or stopped.state != "T":  # the signal is on its way
        stopped = process_table.entry(child)
    assert stopped == found  # the same process, in another state
    assert len({stopped, found}) == 1
    os.kill(child, signal.SIGCONT)


def test_descendants_are_children_and_theirs_parents_first(
    python_program: Start, source: str
) -> None:
    parent, child = family(python_program)
    mine = [one.pid for one in process_table.descendants(os.getpid())]
    assert mine.index(parent.pid) < mine.index(child)
    assert [one.pid for one in process_table.descendants(parent.pid)] == [child]
    assert process_table.descendants(child) == []


def test_the_dead_are_no_descendants(python_program: Start) -> None:
    everybody = [
        Entry(2, 1, 2, "S", ""), Entry(3, 2, 2, "Z", ""), Entry(4, 2, 4, "R", ""),
        Entry(5, 4, 4, "S", ""), Entry(6, 9, 6, "S", ""),
    ]  # fmt: skip
    assert {one.pid for one in process_table.descendants(1, everybody)} == {2, 4, 5}


def test_a_process_that_has_ended_lives_no_more_though_nobody_has_waited_for_it(
    python_program: Start, source: str
) -> None:
    process = python_program("import sys; sys.stdin.read()")
    known = process_table.entry(process.pid)
    assert known is not None
    assert process_table.lives(known)
    process.kill()
    assert process_table.wait_ended([known], 60.0) == []
    assert not process_table.lives(known)
    process.wait()
    assert process_table.entry(process.pid) is None
    assert not process_table.lives(known)


def test_another_life_of_a_pid_is_another_process(source: str) -> None:
    me = process_table.entry(os.getpid())
    assert me is not None
    assert process_table.lives(me)
    other = Entry(me.pid, me.parent, me.group, me.state, "some other time")
    assert other != me
    assert not process_table.lives(other)


def test_who_does_not_end_in_time_is_named(python_program: Start, source: str) -> None:
    process = python_program("import sys; sys.stdin.read()")
    known = process_table.entry(process.pid)
    assert known is not None
    assert process_table.wait_ended([known], 0.05) == [known]
    assert process_table.wait_ended([], 60.0) == []


def test_where_no_descriptor_tells_of_an_end_it_is_looked_for(
    python_program: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_table, "pidfd", lambda pid: None)
    process = python_program("import sys; sys.stdin.read()")
    known = process_table.entry(process.pid)
    assert known is not None
    assert process_table.wait_ended([known], 0.05) == [known]
    process.kill()
    assert process_table.wait_ended([known], 60.0) == []


def test_a_command_is_told_in_one_line(python_program: Start, source: str) -> None:
    process = python_program("import sys\nprint()\nsys.stdin.read()", "two words")
    assert process.stdout is not None
    process.stdout.readline()  # before it runs, it has none
    command = process_table.command_of(process.pid)
    assert command.endswith("-c import sys print() sys.stdin.read() two words")
    assert process_table.command_of(1 << 30) == ""


def test_a_name_with_parentheses_and_blanks_confuses_nobody() -> None:
    rest = "S 7 8 8 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"
    found = process_table._parse_stat(f"12 (a) b (c) {rest}")
    assert (found.pid, found.parent, found.group) == (12, 7, 8)
    assert (found.state, found.began) == ("S", "4711")
