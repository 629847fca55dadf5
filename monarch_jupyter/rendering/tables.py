"""The rows of a query, and where the time of a profile went, as tables. No I/O."""

from __future__ import annotations

from monarch.observe import Profile, QueryResult
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import short_time

MOST = 200
"""The maximal number of rows in a page; `rows` has all of them."""


def query_text(result: QueryResult) -> str:
    """The rows in aligned columns, then the parts of the answer that are missing."""
    return str(result)


def query_html(result: QueryResult) -> Html:
    """The rows as a table, then the parts of the answer that are missing."""
    shown = result.rows[:MOST]
    table = html.table(
        result.columns,
        [
            [html.toned("NULL", "muted") if cell is None else str(cell) for cell in row]
            for row in shown
        ],
    )
    count = len(result.rows)
    text = f"{count} row{'s' * (count != 1)}"
    if count > len(shown):
        text += f", {count - len(shown)} not shown; `_.rows` has all"
    parts: list[object] = [table, html.element("div", html.toned(text, "muted"))]
    parts += [html.element("div", html.toned(line, "bad")) for line in result.missing_lines]
    return html.card(*parts)


def profile_text(profile: Profile) -> str:
    """The table in aligned columns, then the rows that are missing."""
    return str(profile)


def profile_html(profile: Profile) -> Html:
    """The same as a table."""
    if not profile.ended:
        return html.card(html.text(str(profile)))
    head, rows, note = profile.table()
    parts: list[object] = [
        html.element("div", html.toned(f"profile of {short_time(profile.seconds)}", "muted")),
        html.table(head, [_cells(row) for row in rows]) if rows else "nothing has run",
    ]
    if note:
        parts.append(html.element("div", html.toned(note, "muted")))
    parts += [
        html.element("div", html.toned(f"missing rows of {missing}", "bad"))
        for missing in profile.missing
    ]
    return html.card(*parts)


def _cells(row: tuple[str, ...]) -> list[object]:
    cells: list[object] = list(row)
    cells[2] = html.code(row[2])
    if row[-1]:
        cells[-1] = html.toned(row[-1], "bad")
    return cells
