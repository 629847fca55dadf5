"""The rows of a query as a table. No I/O."""

from __future__ import annotations

from monarch.observe import QueryResult
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html

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
