"""Which tracebacks are cut to what the user wrote: those of what the runtime has refused."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from monarch_jupyter.cells.tracebacks import (
    MACHINERY,
    PICKLED,
    RUNTIME,
    without_cause,
    without_refusal,
)

USER = "/home/somebody/train.py"


def raised(*programs: tuple[str, str]) -> tuple[BaseException, TracebackType | None]:
    """What the first program raises; each is the text of `step`, calls `inner`, and has a file."""
    inner: Callable[[], Any] | None = None
    for file, text in reversed(programs):
        names: dict[str, Any] = {"inner": inner}
        lines = "\n    ".join(text.split("\n"))
        exec(compile(f"def step():\n    {lines}", file, "exec"), names)
        inner = names["step"]
    assert inner is not None
    with pytest.raises(Exception) as found:  # noqa: PT011, whichever it is
        inner()
    return found.value, found.tb.tb_next


def files(trace: TracebackType | None) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(trace)]


def test_what_the_runtime_raises_ends_at_the_users_line() -> None:
    error, trace = raised(
        (MACHINERY[0] + "shell.py", "inner()"),
        (USER, "inner()"),
        (RUNTIME + "api.py", "inner()"),
        (RUNTIME + "_src/check.py", "raise ValueError('no such dim')"),
    )
    assert files(without_refusal(error, trace)) == [MACHINERY[0] + "shell.py", USER]
    assert len(files(trace)) == 4  # and what it was made of is as it was


def test_the_runtime_between_two_lines_of_the_user_is_left_out() -> None:
    error, trace = raised(
        (USER, "inner()"),
        (RUNTIME + "api.py", "inner()"),
        (USER, "inner()"),
        (RUNTIME + "api.py", "raise ValueError"),
    )
    assert files(without_refusal(error, trace)) == [USER, USER]


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param([(USER, "raise ValueError")], id="of the user"),
        pytest.param(
            [(RUNTIME + "api.py", "inner()"), (USER, "raise ValueError")], id="that it calls"
        ),
        pytest.param([(USER, "inner()"), (RUNTIME + "api.py", "{}[0]")], id="a fault"),
        pytest.param([(USER, "inner()"), (RUNTIME + "api.py", "assert False")], id="an assertion"),
        pytest.param(
            [(USER, "inner()"), (RUNTIME + "api.py", "import json\njson.loads('?')")],
            id="of a library",
        ),
        pytest.param(
            [
                (USER, "inner()"),
                (RUNTIME + "api.py", "try:\n    {}[0]\nfinally:\n    raise ValueError"),
            ],
            id="with a context",
        ),
        pytest.param(
            [(USER, "inner()"), (RUNTIME + "api.py", "raise ValueError from KeyError()")],
            id="with a cause",
        ),
        pytest.param(
            [(MACHINERY[0] + "shell.py", "inner()"), (RUNTIME + "api.py", "raise ValueError")],
            id="that nobody asked for",
        ),
    ],
)
def test_everything_else_is_shown_whole(programs: list[tuple[str, str]]) -> None:
    assert without_refusal(*raised(*programs)) is None


def test_a_cause_that_the_runtime_leaves_out_hides_nothing() -> None:
    error, trace = raised(
        (USER, "inner()"),
        (
            RUNTIME + "api.py",
            "try:\n    {}[0]\nexcept KeyError:\n    raise ValueError('0 is no dim') from None",
        ),
    )
    assert files(without_refusal(error, trace)) == [USER]


PICKLING = """\
try:
    inner()
except TypeError as error:
    raise TypeError(f'x: {error}') from error"""


@pytest.mark.parametrize(
    ("file", "is_told"), [(PICKLED[1] + "cloudpickle.py", True), (USER, False)]
)
def test_a_cause_that_is_told_in_the_error_is_left_out_unless_the_user_led_to_it(
    file: str, is_told: bool
) -> None:
    """As of an argument that cannot be pickled, and of one whose own `__reduce__` fails."""
    error, trace = raised(
        (USER, "inner()"),
        (RUNTIME + "api.py", PICKLING),
        (file, "raise TypeError('cannot pickle')"),
    )
    shown = without_refusal(error, trace)
    assert (files(shown) if shown else None) == ([USER] if is_told else None)


def test_an_error_that_is_shown_without_its_cause_has_it_again_afterwards() -> None:
    error = ValueError("no")
    cause = error.__cause__ = KeyError("why")
    error.__suppress_context__ = False
    with without_cause(error):
        assert "KeyError" not in "".join(traceback.format_exception(error))
    assert error.__cause__ is cause
    assert not error.__suppress_context__


def test_there_is_nothing_to_cut_without_a_traceback() -> None:
    assert without_refusal(ValueError(), None) is None
    assert sys.exc_info() == (None, None, None)
