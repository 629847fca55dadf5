"""Completion of tables and columns in a cell of `%%monarch sql`. No I/O.

A cell that is being written is no query yet, so its words are looked at and it is not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_HEAD = re.compile(r"\s*%%monarch\s+sql\b[^\n]*\n")
_WORD = re.compile(r"(?:(?P<of>\w+)\.)?(?P<begun>\w*)\Z")
_TABLES_FOLLOW = re.compile(
    r"\b(?:from|join|describe|summarize)\s+(?:\w+\s*,\s*)*\w*\Z", re.IGNORECASE
)
_SOURCE = re.compile(r"(?P<table>\w+)(?:\s+(?:as\s+)?(?P<alias>\w+))?", re.IGNORECASE)
_NAMES = re.compile(
    r"\b(?:from|join)\s+(?P<sources>\w+(?:\s+(?:as\s+)?\w+)?(?:\s*,\s*\w+(?:\s+\w+)?)*)",
    re.IGNORECASE,
)
_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "JOIN", "USING", "GROUP BY", "ORDER BY", "LIMIT", "SHOW TABLES",
    "DESCRIBE",
)  # fmt: skip

Tables = Mapping[str, Iterable[str]]
"""The columns of each table."""


def complete_sql(cell: str, cursor: int, tables: Tables) -> tuple[str, list[str]] | None:
    """The word that is begun at the cursor, and its completions; None if the cell is no SQL."""
    head = _HEAD.match(cell)
    if head is None or cursor < head.end():
        return None
    before, query = cell[head.end() : cursor], cell[head.end() :]
    word = _WORD.search(before)
    begun = word["begun"] if word is not None else ""
    if word is not None and word["of"] is not None:
        table = _aliases(query, tables).get(word["of"].lower())
        return begun, _beginning(begun, tables[table] if table is not None else ())
    if _TABLES_FOLLOW.search(before):
        return begun, _beginning(begun, tables)
    named = dict.fromkeys(_aliases(query, tables).values())
    columns = [column for table in named or tables for column in tables[table]]
    return begun, _beginning(begun, [*dict.fromkeys([*columns, *tables]), *_KEYWORDS])


def _aliases(query: str, tables: Tables) -> dict[str, str]:
    """The tables that the query names, by their names there."""
    found: dict[str, str] = {}
    for source in _NAMES.finditer(query):
        for part in source["sources"].split(","):
            match = _SOURCE.match(part.strip())
            if match is not None and match["table"].lower() in tables:
                table = match["table"].lower()
                found[table] = table
                if match["alias"] is not None:
                    found[match["alias"].lower()] = table
    return found


def _beginning(begun: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.lower().startswith(begun.lower())]
