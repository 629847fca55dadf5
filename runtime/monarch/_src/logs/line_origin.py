"""What caused a line: marks in the pipes of a proc, from which its reader learns that.

An *origin* is a number that whoever calls gives to what it does, such as the cell of a notebook; it
travels with calls. A proc writes a mark into its pipes whenever what it writes next has another
origin than what it wrote last, so that a line that comes long after its cell has ended, or between
lines of another one, is still told from those. 0: unknown.

Runs in: procs, which write marks; clients, which read them; the agent, which passes them on.
"""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from monarch._src.logs.output_counters import WRITTEN
from monarch._src.system.process import flush_c_stdout, line_buffer_c_stdout

MARK = "\x1emonarch-origin:%d\x1e"
CUT = "\x1emonarch-cut\x1e"
"""A rank has answered: what it has begun is a line, unless that is one that is written over."""
_MARKS = re.compile("\x1emonarch-origin:([0-9]{1,19})\x1e")


class MarkedFile(io.FileIO):
    """A pipe that carries marks. What is written follows a mark if its origin is another."""

    def __init__(self, fd: int, origin_now: Callable[[], int | None]) -> None:
        """`origin_now`, called on the thread that writes: None if it can't tell."""
        super().__init__(fd, "w", closefd=False)
        self._origin_now = origin_now
        self._last = 0
        self._flusher = 0  # the thread that flushes what is of the origin before
        self._in_line = False
        self.nbytes = 0  # what was written by way of this, marks too

    def seekable(self) -> bool:
        """Never: it may not be the pipe yet when it is asked."""
        return False

    def write(self, data: Any, /) -> int:
        """Write, behind a mark if need be."""
        if threading.get_ident() != self._flusher:
            origin = self._origin_now()
            if origin is not None and origin != self._last:
                self.mark(origin)
        self._in_line = bytes(data[-1:]) != b"\n"
        return self._put(data)

    def _put(self, data: Any) -> int:
        written = super().write(data)
        self.nbytes += written
        return written

    def flushed(self, flush: Callable[[], None]) -> None:
        """Have `flush` write what is held; it is of the origin that was marked last."""
        self._flusher = threading.get_ident()
        try:
            flush()
        finally:
            self._flusher = 0

    def end_line(self) -> None:
        """What was written is a line, though nobody has ended it."""
        if self._in_line:
            self._in_line = False
            self._put(b"\n")

    def cut(self, *, blindly: bool) -> None:
        """A line that was begun ends here, for who reads; `blindly`: others may have begun one."""
        if self._in_line or blindly:
            self._in_line = False
            self._put(CUT.encode())

    def mark(self, origin: int) -> None:
        """What follows is of that origin, also what C code writes."""
        self._last = origin
        self._put((MARK % origin).encode())


class _NotedBytes(io.BufferedWriter):
    """Says that it may hold bytes that the pipe has not got yet."""

    def write(self, data: Any, /) -> int:
        WRITTEN.held = True
        return super().write(data)


class _NotedText(io.TextIOWrapper):
    """Says that it may hold text that the pipe has not got yet."""

    def write(self, text: str, /) -> int:
        WRITTEN.held = True
        return super().write(text)


_marked: list[tuple[TextIO, MarkedFile]] = []


def mark_streams(origin_now: Callable[[], int | None]) -> None:
    """Have stdout and stderr of this process marked. Once a process, before user code runs."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        before.flush()
        raw = MarkedFile(fd, origin_now)
        text = _NotedText(
            _NotedBytes(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        text.mode = "w"  # pyright: ignore[reportAttributeAccessIssue]
        setattr(sys, name, text)
        _marked.append((text, raw))
    WRITTEN.files = [raw for _, raw in _marked]
    line_buffer_c_stdout()


def begin(origin: int) -> None:
    """Something of another origin begins to run here."""
    for text, raw in _marked:
        raw.flushed(text.flush)
        raw.mark(origin)


def cut_off() -> None:
    """What ran here was ended by an error, maybe in the middle of a print.

    Half a line that it has written ends: else it would stand in front of what is written next, by
    another cell.
    """
    for text, raw in _marked:
        raw.flushed(text.flush)
        raw.end_line()


def flush_all() -> None:
    """Have what is held for the pipes written, by Python and by C's stdout.

    It is of what has just been done here, and that of the thread's context may be another already.
    """
    for text, raw in _marked:
        raw.flushed(text.flush)
    flush_c_stdout()


def cut(text: str) -> str:
    """Text in which each `CUT` has become the end of a line that was begun before it, or nothing.

    A line that is written over goes on.
    """
    *heads, last = text.split(CUT)
    whole = ""
    for head in heads:
        whole += head
        begun = without_marks(whole[whole.rfind("\n") + 1 :])
        if begun and "\r" not in begun:
            whole += "\n"
    return whole + last


def without_marks(text: str) -> str:
    """The text that was written."""
    return _MARKS.sub("", text) if "\x1e" in text else text


def last_mark(text: str) -> str:
    """The last mark in it, as it stands there; nothing if there is none."""
    found = _MARKS.findall(text) if "\x1e" in text else []
    return MARK % int(found[-1]) if found else ""


class OriginReader:
    """Reads the lines of any number of pipes, each named by what the caller likes."""

    def __init__(self) -> None:
        self._now: dict[object, int] = {}

    def read(self, pipe: object, text: str) -> tuple[str, int]:
        """A line without its marks, and its origin: that of its end."""
        if "\x1e" in text:
            found = _MARKS.findall(text)
            if found:
                self._now[pipe] = int(found[-1])
                text = _MARKS.sub("", text)
        return text, self._now.get(pipe, 0)

    def forget(self, pipes: Callable[[object], bool]) -> None:
        """Those pipes are gone."""
        for pipe in [pipe for pipe in self._now if pipes(pipe)]:
            del self._now[pipe]
