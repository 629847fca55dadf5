"""Attribute output lines to their origin, by marks in the pipes of a proc.

An *origin* is a number that a client gives to a unit of work, such as a notebook cell; it travels
with calls. A proc writes a mark into its pipes whenever the origin of its output changes. So a line
is attributed correctly even if it comes long after its cell has ended, or between lines of another
cell. 0 means unknown.

Runs in: procs, which write marks; the agent, which relays them; clients, which read them.
"""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from monarch._src.logs.output_counters import WRITTEN
from monarch._src.system.process import flush_c_stdout, line_buffer_c_stdout

MARK = "\x1emonarch-origin:%d\x1e"
CUT = "\x1emonarch-cut\x1e"
"""Written when a rank answers: an unfinished line ends here, unless it is overwritten further."""
_MARK_HEAD = MARK.partition("%")[0]
_MARKS = re.compile(f"{_MARK_HEAD}([0-9]{{1,19}})\x1e")
_BEGUN_MARK = re.compile(f"{_MARK_HEAD}[0-9]{{1,19}}")
_ANY_MARK = re.compile(f"{_MARK_HEAD}([0-9]{{1,19}})\x1e|{CUT}")
_LAST_MARKS = re.compile(f"(?:{_MARK_HEAD}[0-9]{{1,19}}\x1e|{CUT})+$")


class MarkedFile(io.FileIO):
    """A pipe with marks. Writes a mark before data if its origin differs from the last."""

    def __init__(self, fd: int, origin_now: Callable[[], int | None]) -> None:
        """`origin_now` is called on the writing thread and returns None if it does not know."""
        super().__init__(fd, "w", closefd=False)
        self._origin_now = origin_now
        self._last = 0
        self._flusher = 0  # the thread that flushes data of the previous origin
        self._in_line = False
        self.nbytes = 0  # bytes written through this object, marks included

    def seekable(self) -> bool:
        """Never; asked before the descriptor is the pipe."""
        return False

    def write(self, data: Any, /) -> int:
        """Write data, after a mark if the origin has changed."""
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
        """Call `flush`; data that it writes belongs to the origin marked last."""
        self._flusher = threading.get_ident()
        try:
            flush()
        finally:
            self._flusher = 0

    def end_line(self) -> None:
        """End an unfinished line."""
        if self._in_line:
            self._in_line = False
            self._put(b"\n")

    def cut(self, *, blindly: bool) -> None:
        """Tell the reader to end an unfinished line.

        `blindly`: C code or a subprocess may have begun one.
        """
        if self._in_line or blindly:
            self._in_line = False
            self._put(CUT.encode())

    def mark(self, origin: int) -> None:
        """Mark following data, that of C code included, with that origin."""
        self._last = origin
        self._put((MARK % origin).encode())


class _NotedBytes(io.BufferedWriter):
    """Records that it may hold bytes not yet in the pipe."""

    def write(self, data: Any, /) -> int:
        WRITTEN.held = True
        return super().write(data)


class _NotedText(io.TextIOWrapper):
    """Records that it may hold text not yet in the pipe."""

    def write(self, text: str, /) -> int:
        WRITTEN.held = True
        return super().write(text)


_marked: list[tuple[TextIO, MarkedFile]] = []


def mark_streams(origin_now: Callable[[], int | None]) -> None:
    """Mark stdout and stderr of this process. Called once, before user code runs."""
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
    """Work of another origin begins in this process."""
    for text, raw in _marked:
        raw.flushed(text.flush)
        raw.mark(origin)


def cut_off() -> None:
    """Work was ended by an error, maybe in the middle of a print: end the unfinished line.

    Otherwise the next output, of another cell, would continue that line.
    """
    for text, raw in _marked:
        raw.flushed(text.flush)
        raw.end_line()


def flush_all() -> None:
    """Flush Python's streams and C's stdout into the pipes.

    Buffered data belongs to the work just done, even if the thread's origin has changed since.
    """
    for text, raw in _marked:
        raw.flushed(text.flush)
    flush_c_stdout()


def without_marks(text: str) -> str:
    """The text without its marks, those of answers included."""
    return _ANY_MARK.sub("", text) if "\x1e" in text else text


def split_at_marks(text: str) -> Iterator[tuple[int | None, str]]:
    """The text in pieces: each the origin, if a mark precedes it, and a text or a `CUT`.

    The last piece is a text.
    """
    first, *parts = _ANY_MARK.split(text)
    yield None, first
    for origin, piece in zip(parts[::2], parts[1::2], strict=True):
        if origin is None:
            yield None, CUT
            yield None, piece
        else:
            yield int(origin), piece


def split_last_marks(text: str) -> tuple[str, str]:
    """The text up to the marks at its end, and these marks, which no output follows yet."""
    last = _LAST_MARKS.search(text) if "\x1e" in text else None
    return (text, "") if last is None else (text[: last.start()], last[0])


def incomplete_mark(text: str) -> str:
    """The beginning of a mark with which a text without marks ends; empty if there is none."""
    at = text.rfind("\x1e")
    end = text[at:] if at >= 0 else ""
    is_one = CUT.startswith(end) or _MARK_HEAD.startswith(end) or _BEGUN_MARK.fullmatch(end)
    return end if is_one else ""


def last_mark(text: str) -> str:
    """The last mark in the text; empty if there is none."""
    found = _MARKS.findall(text) if "\x1e" in text else []
    return MARK % int(found[-1]) if found else ""


def last_origin(text: str, before: int) -> int:
    """The origin at the end of a text, if it is `before` at its beginning."""
    found = _MARKS.findall(text) if "\x1e" in text else []
    return int(found[-1]) if found else before


class OriginReader:
    """Reads lines of several pipes; the caller chooses the keys of the pipes."""

    def __init__(self) -> None:
        self._now: dict[object, int] = {}

    def read(self, pipe: object, text: str) -> tuple[str, int]:
        """A line without its marks, and the origin at its end."""
        if "\x1e" in text:
            found = _MARKS.findall(text)
            if found:
                self._now[pipe] = int(found[-1])
                text = _MARKS.sub("", text)
        return text, self._now.get(pipe, 0)

    def forget(self, pipes: Callable[[object], bool]) -> None:
        """Drop the pipes for which `pipes` returns True."""
        for pipe in [pipe for pipe in self._now if pipes(pipe)]:
            del self._now[pipe]
