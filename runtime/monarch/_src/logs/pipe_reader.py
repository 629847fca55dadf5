"""Read the pipes of one proc and split them into lines. No threads; the agent's loop drives it.

The agent reads the pipes, outside the process, so the last line before a crash arrives. A line is
delivered when it ends (`logs.line_ends` has the rules), reaches 64 KiB, or when its pipe ends. A
line that is overwritten, as by a progress bar, stays one line. `unfinished` gives the current state
of an incomplete line.
"""

from __future__ import annotations

import codecs
import os
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from monarch._src.logs.carriage_returns import is_blank, shown
from monarch._src.logs.line_ends import end_lines
from monarch._src.logs.line_origin import (
    CUT,
    last_mark,
    last_origin,
    split_last_marks,
    without_marks,
)

STDOUT, STDERR = 1, 2
# Added to the number of a stream for an unfinished line.
WRITTEN_OVER, BEGUN, ANSWERED = 2, 4, 6
LONGEST = 1 << 16
TAIL = 50
_CHUNK = 1 << 16
MOST = 64 * _CHUNK


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
