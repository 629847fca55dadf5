"""Find the ends of lines in the output of a rank that do not end with a newline. No I/O.

An answer (`CUT`) ends the line before it, and so does output of another origin: the line belongs to
the cell that it was written for. A line that is being overwritten goes on after an answer if the
next output overwrites it again. So a progress bar stays one line over several calls of a cell.
"""

from __future__ import annotations

from monarch._src.logs.carriage_returns import is_blank
from monarch._src.logs.line_origin import CUT, MARK, incomplete_mark, last_mark, split_at_marks

_OVERWRITES = "\r\n\b\x1b"  # what the continuation of a line that is being overwritten begins with


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
