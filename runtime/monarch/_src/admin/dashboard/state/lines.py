"""Pages of lines that ranks have written, from the table `log_lines`. No I/O.

Equal lines of several ranks on a page are one *fold*; the lines of one rank keep their order. The
page's side is the type `Lines` of `widgets/js/protocol.js`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from monarch._src.logs.state.folding import Fold, timed_folds
from monarch._src.shape.coordinates import name_point, name_ranks

PAGE = 500
Row: TypeAlias = "Mapping[str, Any]"
Point: TypeAlias = "dict[str, int]"


class LineMessage(msgspec.Struct):
    """The rank of a line, and when it was read, in seconds since 1970."""

    where: str
    at: float


class FoldMessage(msgspec.Struct):
    """One text, and the lines that have it."""

    points: str
    stream: str
    text: str
    each: list[LineMessage]


class LinesMessage(msgspec.Struct):
    """Page `page` of `pages`, from 1, the oldest: lines `first` to `last` of `total`."""

    page: int
    pages: int
    first: int
    last: int
    total: int
    given_up: int
    folds: list[FoldMessage]


def lines_of(
    rows: Sequence[Row],
    points: Mapping[tuple[int, int], Point],
    *,
    mesh: str | None = None,
    ranks: Sequence[int] | None = None,
    grep: str = "",
    page: int | None = None,
    given_up: int = 0,
) -> LinesMessage:
    """A page of lines.

    Args:
        points: the coordinates of ranks, by the uid of the proc mesh and the rank.
        mesh: only lines of the proc mesh of that name. ranks: only lines of these.
        grep: a regular expression that the text contains.
        page: from 1, the oldest; None: the newest. Beyond the last: the newest.
        given_up: the number of lines that hosts no longer have.

    Raises:
        ValueError: `grep` is no regular expression.
    """
    try:
        wanted = re.compile(grep)
    except re.error as error:
        raise ValueError(f"{grep} is not a regular expression: {error}") from None
    chosen = [
        row
        for row in rows
        if (mesh is None or row["mesh"] == mesh)
        and (ranks is None or row["rank"] in ranks)
        and wanted.search(row["text"])
    ]
    chosen.sort(key=lambda row: (row["timestamp_us"], row["host"], row["number"]))
    pages = max(1, -(-len(chosen) // PAGE))
    at = pages if page is None else min(max(1, page), pages)
    shown = chosen[(at - 1) * PAGE : at * PAGE]
    first = (at - 1) * PAGE + 1 if shown else 0
    last = first + len(shown) - 1 if shown else 0
    return LinesMessage(at, pages, first, last, len(chosen), given_up, folds_of(shown, points))


def folds_of(rows: Sequence[Row], points: Mapping[tuple[int, int], Point]) -> list[FoldMessage]:
    """The lines folded; each names its mesh where there are several."""
    several = len({row["mesh_id"] for row in rows}) > 1
    lines = [(_line(row, points), row["timestamp_us"] / 1e6) for row in rows]
    return [_fold(fold, times, several=several) for fold, times in timed_folds(lines)]


class _Line(NamedTuple):
    mesh: str
    mesh_uid: str
    rank: int
    point: dict[str, int]
    stream: str
    text: str
    origin: int = 0


def _line(row: Row, points: Mapping[tuple[int, int], Point]) -> _Line:
    point = points.get((row["mesh_id"], row["rank"]), {"rank": row["rank"]})
    uid = f"{row['mesh_id']:x}"
    return _Line(row["mesh"], uid, row["rank"], point, row["stream"], row["text"])


def _fold(fold: Fold, times: Sequence[float], *, several: bool) -> FoldMessage:
    mesh = f"{fold.mesh} " if several else ""
    each = [
        LineMessage(f"{mesh}{name_point(point)}".strip(), at)
        for point, at in zip(fold.points, times, strict=True)
    ]
    return FoldMessage(f"{mesh}{name_ranks(fold.points)}".strip(), fold.stream, fold.text, each)
