"""Lines that ranks wrote, as text and as HTML. No I/O."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from monarch.frontend import Fold, name_point, name_ranks
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import count

MOST_UNFOLDED = 1000
"""Lines that a cell shows rank by rank; the log has all of them."""
_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_COLOURS = re.compile(r"\x1b\[([0-9;:]*)m")


@dataclass(frozen=True)
class LogLine:
    """A line that a rank wrote. `at`: when it arrived, in seconds since 1970."""

    mesh: str
    mesh_uid: str
    rank: int
    point: dict[str, int]
    stream: str
    at: float
    text: str


@dataclass(frozen=True, repr=False)
class LogPage:
    """Consecutive lines of a query: the first is number `first`, from 1, of `total`.

    `given_up`: the number of older lines of this kernel that were dropped.
    """

    mesh: str
    lines: tuple[LogLine, ...]
    first: int
    total: int
    given_up: int = 0

    def __repr__(self) -> str:
        return page_text(self)

    def _repr_html_(self) -> str:
        return html.card(html.block(page_text(self)))


def page_text(page: LogPage, *, several_pages: str = "") -> str:
    """The page as text: a headline, then each line with its rank and time."""
    if not page.total:
        return f"no line of {page.mesh} matches"
    last = page.first + len(page.lines) - 1
    head = f"{page.mesh}: lines {page.first:,} to {last:,} of {page.total:,}"
    if page.given_up:
        head += f"; {count(page.given_up, 'older line was', 'older lines were')} dropped"
    lines = [head + several_pages]
    for line in page.lines:
        at = time.strftime("%H:%M:%S", time.localtime(line.at))
        where = name_point(line.point) or page.mesh
        mark = " stderr" if line.stream == "stderr" else ""
        lines.append(f"{at} [{where}]{mark} {reset_colours(line.text)}")
    return "\n".join(lines)


def is_blank(text: str) -> bool:
    """Whether a line shows nothing."""
    return not _ESCAPES.sub("", text).strip()


def reset_colours(text: str) -> str:
    """The line with its colours ended at its end, so that they stay off other ranks' lines."""
    if "\x1b" not in text:
        return text
    found = _COLOURS.findall(text)
    return f"{text}\x1b[0m" if found and found[-1] not in ("", "0") else text


def unfolded_text(page: LogPage) -> str:
    """One line that says where to read the lines by rank."""
    return f"monarch: {count(page.total, 'line')} by rank: `%monarch logs {_meshes(page)[0]}`"


def unfolded_html(page: LogPage) -> Html:
    """The oldest lines of a cell behind a click, grouped by rank, with their times."""
    ranks: dict[tuple[str, int], list[LogLine]] = {}
    for line in page.lines:
        ranks.setdefault((line.mesh_uid, line.rank), []).append(line)
    several = len(_meshes(page)) > 1
    blocks = [_rank_html(ranks[key], several) for key in sorted(ranks)]
    left = page.total - len(page.lines)
    more = f"{left:,} later lines: %monarch logs {_meshes(page)[0]}"
    said = html.toned(f"{count(page.total, 'line')} by rank", "muted")
    rest = [html.toned(more, "muted")] if left else []
    return html.card(html.details(said, *blocks, *rest))


def folded_again_text(page: LogPage, folds: Sequence[Fold]) -> str:
    """One line about the lines of a cell after they were folded once more."""
    whole, folded = count(page.total, "line"), f"{len(folds):,}"
    return f"monarch: {whole}, {folded} after equal lines of different ranks were joined"


def folded_again_html(page: LogPage, folds: Sequence[Fold]) -> Html:
    """All lines of a cell behind a click, each with the ranks that wrote it."""
    several = len(_meshes(page)) > 1
    lines = [f"{fold_tag(fold, several)} {_ESCAPES.sub('', fold.text)}" for fold in folds]
    summary = folded_again_text(page, folds).removeprefix("monarch: ")
    return html.card(html.details(html.toned(summary, "muted"), html.block("\n".join(lines))))


def fold_tag(fold: Fold, several: bool) -> str:
    """`[gpus=0..7]`, with the name of the mesh if several live."""
    ranks = name_ranks(fold.points)
    named = fold.mesh if several or not ranks else ""
    return f"[{' '.join(part for part in (named, ranks) if part)}]"


def _meshes(page: LogPage) -> list[str]:
    return list(dict.fromkeys(line.mesh for line in page.lines))


def _rank_html(lines: Sequence[LogLine], several: bool) -> Html:
    point = name_point(lines[0].point)
    name = " ".join(part for part in (lines[0].mesh if several or not point else "", point) if part)
    return html.element(
        "div", html.element("strong", name), html.block("\n".join(map(_said, lines)))
    )


def _said(line: LogLine) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(line.at))
    mark = " stderr" if line.stream == "stderr" else ""
    return f"{at}{mark} {_ESCAPES.sub('', line.text)}"
