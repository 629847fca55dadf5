"""Records, the rows of a query, and the times of a profile, as text and tables. No I/O."""

from __future__ import annotations

import dataclasses
from typing import Any

from monarch.observe import Profile, QueryResult
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import short_time

MOST = 200
"""The maximal number of rows in a page; `rows` has all of them."""


def query_text(result: QueryResult) -> str:
    """The rows in aligned columns, then the parts that are missing or dropped."""
    return str(result)


def query_html(result: QueryResult) -> Html:
    """The rows as a table, then the parts that are missing or dropped."""
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
    parts += [html.element("div", html.toned(line, "muted")) for line in result.dropped_lines]
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


LONGEST = 400
"""Characters of one value that are shown."""


def is_record(kind: Any) -> bool:
    """Whether a class has named fields and no repr of its own."""
    if dataclasses.is_dataclass(kind):
        return True
    return hasattr(kind, "__struct_fields__") and "__repr__" not in vars(kind)


def record_text(record: Any) -> str:
    """`Death`, then each field that is not None on a line."""
    rows = _fields(record)
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"  {name.ljust(width)}  {_short(value)}" for name, value in rows]
    return "\n".join([type(record).__name__, *lines])


def record_html(record: Any) -> Html:
    """The same as a table of two columns."""
    head = html.element("strong", type(record).__name__)
    return html.card(head, html.pairs({name: _short(value) for name, value in _fields(record)}))


def line_html(value: object) -> Html:
    """The repr of a value in the code font."""
    return html.card(html.code(_short(value)))


def error_html(error: BaseException) -> Html:
    """An error as a value."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return html.card(html.toned(said, "bad"))


def _fields(record: Any) -> list[tuple[str, object]]:
    if dataclasses.is_dataclass(record):
        names = [field.name for field in dataclasses.fields(record)]
    else:
        names = list(record.__struct_fields__)
    values = [(name, getattr(record, name)) for name in names]
    return [(name, value) for name, value in values if value is not None]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"
