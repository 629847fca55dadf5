"""Rows as CSV, as DuckDB's COPY writes it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

_QUOTED = frozenset(',"\r\n')


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A line of names, and a line for each row.

    NULL is an empty field, and an empty text is `""`. What is no number or text is written as in
    JSON: true, 2026-01-02T03:04:05, "[1, null]".
    """
    lines = [",".join(map(_quoted, columns))]
    lines += [",".join(map(_field, row)) for row in rows]
    return "\n".join(lines) + "\n"


def _field(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return _quoted(cell)
    if isinstance(cell, float):
        return repr(cell)  # also NaN and infinities, which JSON has not
    text = msgspec.json.encode(cell, enc_hook=str).decode()
    return _quoted(msgspec.json.decode(text, type=str) if text.startswith('"') else text)


def _quoted(text: str) -> str:
    if text and not _QUOTED.intersection(text):
        return text
    return '"' + text.replace('"', '""') + '"'
