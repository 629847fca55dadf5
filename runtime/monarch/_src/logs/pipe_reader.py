"""Read the pipes of one proc and split them into lines. No threads; the agent's loop drives it.

The agent reads the pipes, outside the process, so the last line before a crash arrives. A line is
delivered when it ends, reaches 64 KiB, or when its pipe ends. A line that is overwritten, as by a
progress bar, stays one line. `unfinished` gives the current state of an incomplete line.

An answer (`CUT`) ends the line before it, and so does output of another origin: the line belongs to
the cell that it was written for. A line that is being overwritten goes on after an answer if the
next output overwrites it again. So a progress bar stays one line over several calls of a cell.
"""

from __future__ import annotations

import codecs
import os
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from monarch._src.logs.carriage_returns import is_blank, shown
from monarch._src.logs.line_origin import (
    CUT,
    MARK,
    incomplete_mark,
    last_mark,
    last_origin,
    split_at_marks,
    split_last_marks,
    without_marks,
)

_OVERWRITES = "\r\n\b\x1b"  # what the continuation of a line that is being overwritten begins with
STDOUT, STDERR = 1, 2
# Added to the number of a stream for an unfinished line.
WRITTEN_OVER, BEGUN, ANSWERED = 2, 4, 6
LONGEST = 1 << 16
TAIL = 50
_CHUNK = 1 << 16
MOST = 64 * _CHUNK


def end_lines(text: str, origin: int) -> str:
    """Put a newline behind each unfinished line that later output does not belong to.

    A line that was overwritten with blanks, as by a progress bar that leaves nothing behind, is
    removed. A line that may go on after an answer stays, with the `CUT` of that answer.

    Args:
        text: all output from the beginning of a line on, marks included.
        origin: the origin at its beginning.
    """
    if "\x1e" not in text:
        return text
    *pieces, (at_last, last) = split_at_marks(text)
    rest = incomplete_mark(last)
    scan = _Scan(origin)
    for marked, piece in (*pieces, (at_last, last.removesuffix(rest))):
        if marked is not None:
            scan.origin = marked
            scan.mark = MARK % marked
        if piece == CUT:
            scan.answer()
        elif piece:
            scan.write(piece)
    return scan.text() + rest


class _Scan:
    """The output so far: its whole lines, and the unfinished one.

    Invariants: `begun` is `line` without marks; a mark stays in `mark` until text follows it.
    """

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.mark = ""
        self._whole = ""
        self._line = ""
        self._begun = ""
        self._line_origin = origin
        self._answered = False

    def answer(self) -> None:
        """The rank has answered."""
        self._answered = bool(self._begun)
        if self._begun and "\r" not in self._begun:
            self._end()

    def write(self, piece: str) -> None:
        """Text without marks follows."""
        if self._begun and self._ends_before(piece):
            self._end()
        self._line += self.mark
        self.mark, self._answered = "", False
        head, newline, tail = piece.rpartition("\n")
        if newline:
            self._whole += f"{self._line}{head}\n"
            self._line = self._begun = ""
        if not self._begun:
            self._line_origin = self.origin
        self._line += tail
        self._begun += tail

    def text(self) -> str:
        """All of it."""
        return self._whole + self._line + (CUT if self._answered else "") + self.mark

    def _ends_before(self, piece: str) -> bool:
        if self.origin != self._line_origin:
            return True
        return self._answered and self._begun[-1] != "\r" and piece[0] not in _OVERWRITES

    def _end(self) -> None:
        self._whole += last_mark(self._line) if is_blank(self._begun) else f"{self._line}\n"
        self._line = self._begun = ""
        self._answered = False


class Tally(Protocol):
    """Counts the bytes read from both pipes where the rank can see it (`host.status_board`)."""

    def begin(self) -> None:
        """A read begins."""
        ...

    def end(self, nbytes: int) -> None:
        """The read has returned `nbytes` bytes."""
        ...


class NoTally:
    """Counts nothing."""

    def begin(self) -> None:
        """See `Tally`."""

    def end(self, nbytes: int) -> None:
        """See `Tally`."""


@dataclass
class Stream:
    """One pipe. `fd` is None once it has ended."""

    number: int
    fd: int | None
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    rest: str = ""  # the unfinished line, with marks
    origin: int = 0  # at the beginning of `rest`
    tally: Tally = field(default_factory=NoTally)

    @property
    def is_written_over(self) -> bool:
        """Whether the unfinished line is being overwritten, as by a progress bar."""
        return "\r" in self.rest

    @property
    def unfinished(self) -> tuple[int, str] | None:
        """The number and current text of the unfinished line; None if there is none."""
        line, marks = split_last_marks(self.rest)
        if not line or not (text := without_marks(line)):
            return None
        kind = BEGUN
        if self.is_written_over:
            kind = ANSWERED if CUT in marks else WRITTEN_OVER
        return self.number + kind, last_mark(line) + shown(text)

    def read(self, most: int = MOST) -> tuple[list[str], bool]:
        """Read all complete lines available now; also return whether the pipe has ended.

        `most` bounds the bytes read, so that a rank with much output does not starve others.
        """
        if self.fd is None:
            return [], True
        lines: list[str] = []
        while most > 0:
            self.tally.begin()
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                self.tally.end(0)
                return lines, False
            except OSError:
                data = b""
            self.tally.end(len(data))
            most -= len(data)
            if not data:
                last, _ = split_last_marks(self.rest + self.decoder.decode(b"", True))
                self.rest = ""
                text = without_marks(last)
                return (lines + _cut(last) if text and not is_blank(text) else lines), True
            text = self.rest + self.decoder.decode(data)
            *whole, rest = end_lines(text, self.origin).split("\n")
            for line in whole:
                lines += _cut(line)
            if "\r" in rest and len(rest) > LONGEST:
                # A progress bar that never ends its line is still one line.
                line, marks = split_last_marks(rest)
                rest = f"{last_mark(line)}\r{shown(without_marks(line))}{marks}"
            *pieces, self.rest = _cut(rest)
            lines += pieces
            if "\x1e" in text:
                for line in (*whole, *pieces):
                    self.origin = last_origin(line, self.origin)
        return lines, False

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _cut(line: str) -> list[str]:
    """Split a line into pieces of at most `LONGEST` characters."""
    return [line[at : at + LONGEST] for at in range(0, len(line), LONGEST)] or [""]


class Capture:
    """Both pipes of one proc, and the last lines of its stderr."""

    def __init__(self, stdout: int, stderr: int, tally: Tally | None = None) -> None:
        tally = NoTally() if tally is None else tally
        self.streams = (
            Stream(STDOUT, stdout, tally=tally),
            Stream(STDERR, stderr, tally=tally),
        )
        self.tail: deque[str] = deque(maxlen=TAIL)

    def read(self, stream: Stream, most: int = MOST) -> tuple[list[tuple[int, str]], bool]:
        """New lines of one pipe, each with its stream number, and whether the pipe has ended."""
        lines, ended = stream.read(most)
        if stream.number == STDERR:
            self.tail.extend(without_marks(line) for line in lines)
        return [(stream.number, line) for line in lines], ended

    def read_all(self) -> list[tuple[int, str]]:
        """All lines that both pipes hold now."""
        return [line for stream in self.streams for line in self.read(stream)[0]]

    def close(self) -> None:
        """Close both pipes. Idempotent."""
        for stream in self.streams:
            stream.close()
