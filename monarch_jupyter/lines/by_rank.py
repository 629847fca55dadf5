"""What ranks wrote in a cell, rank by rank: lines that the cell says once, taken apart. No I/O."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from monarch_jupyter.lines.log_store import LogLine, LogPage
from monarch_jupyter.meshes.rank_names import name_point
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import count

MOST = 1000
"""Lines that are taken apart in a cell; all of them are in the log, whose pages take any number."""
_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")


def unfolded_text(page: LogPage) -> str:
    """For readers of text: where the lines are."""
    return f"monarch: {count(page.total, 'line')} by rank: `%monarch logs {_meshes(page)[0]}`"


def unfolded_html(page: LogPage) -> Html:
    """The oldest lines of a cell behind a click, those of each rank together, with their times."""
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
