"""Plain records, one field per line, and values in one line. No I/O."""

from __future__ import annotations

import dataclasses
from typing import Any

from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html

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
