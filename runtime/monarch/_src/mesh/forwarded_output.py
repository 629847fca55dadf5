"""Copies the output of ranks to the streams of a client, tagged.

Runs in: a client that is no notebook; called on the receiving thread and the background loop.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

import msgspec

from monarch._src.events import Output, OutputLine, bus
from monarch._src.logs.carriage_returns import is_blank, shown

EVERY_S = 10.0
"""Seconds between two states of a progress bar, since a file keeps every one."""
_Place = tuple[str, int]  # the uid of a mesh and a rank


def forward_output(wanted: Callable[[], bool]) -> Callable[[], None]:
    """Write the output of ranks to this program's streams, tagged. Returns how to stop it."""
    streams, overwritten = _Streams(), OverwrittenLines()

    def show(output: Output) -> None:
        if not wanted():
            return
        lines = [rendered(line) for line in output.lines if line.shown]
        lines = [line for line in lines if overwritten.is_news(line)]
        try:
            if output.gathered:
                for stream, text in _folded(lines):
                    streams.write(None, stream, text, whole=True)
            else:
                for line in lines:
                    place, whole = (line.mesh_uid, line.rank), line.whole or line.written_over
                    streams.write(place, *_tagged(line), whole=whole)
        except (OSError, ValueError):
            return  # the program has closed its streams

    return bus.subscribe(Output, show)


def rendered(line: OutputLine) -> OutputLine:
    """The line as it is in the end: a carriage return would overwrite the tag of the rank."""
    return msgspec.structs.replace(line, text=shown(line.text)) if "\r" in line.text else line


class _Bar(msgspec.Struct):
    """A line that its rank overwrites. `text`: the state written last, if any; `at`: when."""

    at: float
    text: str | None = None


class OverwrittenLines:
    """Decides which states of lines that ranks overwrite, such as progress bars, are written.

    The end of a line is, and so is the first state that a rank has left when it answers: the line
    may end there. A bar that goes on is written every `EVERY_S` seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bars: dict[tuple[str, int, str], _Bar] = {}

    def is_news(self, line: OutputLine) -> bool:
        """Whether to write a line, or a state of a line. Call it in the order of the lines."""
        place = (line.mesh_uid, line.rank, line.stream)
        if line.whole:
            bar = self._bars.pop(place, None)
            return bar is None or line.text != bar.text
        if not line.written_over:
            return True
        if is_blank(f"\r{line.text}"):
            self._bars.pop(place, None)
            return False
        now = self._clock()
        bar = self._bars.setdefault(place, _Bar(now))
        is_news = line.text != bar.text and (
            now >= bar.at + EVERY_S or (line.answered and bar.text is None)
        )
        if is_news:
            bar.at, bar.text = now, line.text
        return is_news


class _Streams:
    """This program's own streams, where a line of one rank may be unfinished."""

    def __init__(self) -> None:
        self._begun: tuple[_Place | None, TextIO] | None = None
        self._text = ""

    def write(self, rank: _Place | None, stream: str, text: str, *, whole: bool) -> None:
        """Write a line, or an unfinished one as far as it goes, without repeating its beginning."""
        target = sys.stderr if stream == "stderr" else sys.stdout
        begun = self._begun
        goes_on = (
            begun is not None and begun[0] == rank and begun[1] is target
            and text.startswith(self._text)
        )  # fmt: skip
        if begun is not None and not goes_on and not begun[1].closed:
            begun[1].write("\n")
            begun[1].flush()
        self._begun = None if whole else (rank, target)
        target.write((text[len(self._text) :] if goes_on else text) + ("\n" if whole else ""))
        self._text = text
        target.flush()


def _tagged(line: OutputLine) -> tuple[str, str]:
    at = ", ".join(f"{dim}={i}" for dim, i in line.point.items())
    tag = f"{line.mesh} {at}" if at else line.mesh
    return line.stream, f"[{tag}] {line.text}"


def _folded(lines: Sequence[OutputLine]) -> Iterator[tuple[str, str]]:
    """Each distinct line of a mesh once, at its first place, with the number of equal lines."""
    equal: dict[tuple[str, str, str], list[OutputLine]] = {}
    for line in lines:
        equal.setdefault((line.mesh_uid, line.stream, line.text), []).append(line)
    for same in equal.values():
        if len(same) == 1:
            yield _tagged(same[0])
        else:
            one, ranks = same[0], len({line.rank for line in same})
            yield one.stream, f"[{one.mesh} {len(same)} lines of {ranks} ranks] {one.text}"
