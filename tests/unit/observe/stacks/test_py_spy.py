"""What py-spy complains of is told in a line, with what to do about it."""

from __future__ import annotations

import pytest

from monarch._src.observe.stacks.py_spy import in_short, is_refusal, refusal

DENIED = "Permission Denied: Try running again with elevated permissions by going 'sudo env ...'\n"
ATTACH = (
    "Error: Failed to get stack traces\n\nCaused by:\n    0: Failed to suspend process\n"
    "    1: Operation not permitted (os error 1)\n\nStack backtrace:\n   0: <E as anyhow>\n"
)
NO_PYTHON = "Error: Failed to find python version from target process\n"


@pytest.mark.parametrize(
    ("complaint", "refused", "short"),
    [
        (DENIED, True, DENIED.strip()),
        (ATTACH, True, "Operation not permitted (os error 1)"),
        (NO_PYTHON, False, NO_PYTHON.strip()),
        ("", False, "py-spy gave no reason"),
    ],
)
def test_the_last_cause_is_what_is_told(complaint: str, refused: bool, short: str) -> None:
    assert is_refusal(complaint) is refused
    assert in_short(complaint) == short


def test_a_refusal_says_what_to_do() -> None:
    said = refusal(ATTACH)
    assert said.startswith("py-spy may not read other processes here (Operation not permitted")
    assert "SYS_PTRACE" in said or "sudo" in said
