"""Messages with pages of lines of ranks, equal lines of several ranks folded.

No I/O. Invariant: every line of a page is in exactly one fold, those of one rank in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from monarch.frontend import name_point, name_ranks, timed_folds
from monarch.observe import OutputLine
from monarch_jupyter.rendering.lines import LogLine, LogPage

PAGE = 500
"""Lines of a page before equal ones are folded."""


class LineMessage(TypedDict):
    """The rank of a line, and when it arrived, in seconds since 1970."""

    where: str
    at: float


class FoldMessage(TypedDict):
    """One text, and the lines that have it."""

    points: str
    stream: str
    text: str
    each: list[LineMessage]


class LinesMessage(TypedDict):
    """Page `page` of `pages`, from 1, the oldest: lines `first` to `last` of `total`."""

    page: int
    pages: int
    first: int
    last: int
    total: int
    given_up: int
    folds: list[FoldMessage]


def lines_message(page: LogPage) -> LinesMessage:
    """A page as a message."""
    return LinesMessage(
        page=(page.first + PAGE - 1) // PAGE if page.lines else 1,
        pages=max(1, -(-page.total // PAGE)),
        first=page.first,
        last=page.first + len(page.lines) - 1 if page.lines else 0,
        total=page.total,
        given_up=page.given_up,
        folds=fold_lines(page.lines),
    )


def fold_lines(lines: Sequence[LogLine]) -> list[FoldMessage]:
    """The lines folded; the mesh is named where there are several."""
    several = len({line.mesh_uid for line in lines}) > 1
    written = [
        (OutputLine(one.mesh, one.mesh_uid, one.rank, one.point, one.stream, one.text), one.at)
        for one in lines
    ]
    messages: list[FoldMessage] = []
    for fold, times in timed_folds(written):
        mesh = fold.mesh if several else ""
        each = [
            LineMessage(where=f"{mesh} {name_point(point)}".strip(), at=at)
            for point, at in zip(fold.points, times, strict=True)
        ]
        points = f"{mesh} {name_ranks(fold.points)}".strip()
        messages.append(FoldMessage(points=points, stream=fold.stream, text=fold.text, each=each))
    return messages
