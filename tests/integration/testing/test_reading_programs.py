"""How tests read programs: every line is had, however many come at once."""

from __future__ import annotations

from pathlib import Path

from tests.integration.programs import running


def test_lines_that_come_at_once_are_had_one_by_one(tmp_path: Path) -> None:
    source = """
        import os
        os.write(1, b"one\\ntwo\\nthree\\nrest")
    """
    with running(tmp_path, source) as program:
        assert [program.line(), program.line()] == ["one", "two"]
        assert program.end() == (0, "three\nrest", "")


def test_a_line_that_comes_in_parts_is_had_whole(tmp_path: Path) -> None:
    source = """
        import os, sys
        os.write(1, b"on")
        sys.stdin.readline()
        os.write(1, b"e\\n")
    """
    with running(tmp_path, source) as program:
        program.say("go on")
        assert program.line() == "one"
        assert program.end() == (0, "", "")
