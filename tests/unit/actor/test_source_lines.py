"""Source text that came with code is to `linecache`, and to who asks that, as a file's."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._src.actor.serialize import SourceLines, keep_sources, source_of

NAME = "/nowhere/cell.py"
TEXT = '''import os


def inner():
    raise ValueError("no")


class Kept:
    """Kept."""

    def method(self):
        return inner()
'''


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """What the text defines, once it has come."""
    keep_sources({NAME: TEXT})
    found: dict[str, Any] = {"__name__": "cell"}
    exec(compile(TEXT, NAME, "exec"), found)
    yield found
    linecache.cache.pop(NAME, None)


def test_lines_are_those_of_the_text() -> None:
    lines = SourceLines("a\nb\r\n\nlast")
    assert list(lines) == ["a\n", "b\r\n", "\n", "last"]
    assert (len(lines), lines[0], lines[-1], lines[1:3]) == (4, "a\n", "last", ["b\r\n", "\n"])
    assert "".join(lines) == "a\nb\r\n\nlast"
    assert len(SourceLines("")) == 0


def test_a_text_is_taken_apart_once_and_only_if_somebody_looks() -> None:
    lines = SourceLines(TEXT)
    assert lines._lines is None
    first = lines[0]
    assert lines[0] is first


def test_tracebacks_show_them(names: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no") as caught:
        names["Kept"]().method()
    shown = "".join(traceback.format_exception(caught.value))
    assert 'raise ValueError("no")' in shown
    assert "return inner()" in shown


def test_inspect_finds_functions_and_classes_in_them(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inspect.getsource(names["inner"]).startswith("def inner():")
    lines, at = inspect.getsourcelines(names["Kept"].method)
    assert (at, lines[-1]) == (11, "        return inner()\n")


def test_a_check_of_the_cache_leaves_them(names: dict[str, Any]) -> None:
    linecache.checkcache()
    linecache.checkcache(NAME)
    assert linecache.getline(NAME, 5).strip() == 'raise ValueError("no")'
    assert linecache.getline(NAME, 99) == ""


def test_they_may_be_sent_on(names: dict[str, Any]) -> None:
    assert source_of(NAME) == TEXT
