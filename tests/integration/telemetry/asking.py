"""Queries of tests, whose answers are whole."""

from __future__ import annotations

from monarch.observe import QueryResult, query
from tests.workers import PATIENCE_S


def ask(sql: str, timeout: float = PATIENCE_S) -> QueryResult:
    """The answer of a query, to which every process has contributed. `timeout` in seconds."""
    found = query(sql, timeout)
    assert found.missing == ()
    return found
