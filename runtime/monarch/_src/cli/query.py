"""`monarch query`: SQL over the live state of the sessions of this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from monarch._src.errors import QueryError
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions, named
from monarch._src.telemetry.sql.collect import collect_from
from monarch._src.telemetry.sql.query import QueryResult, missing_lines, run_query, table_lines

STDIN = "-"


def run(
    bases: Sequence[str] | None, timeout_s: float | None, sql: str, which: str, *, as_json: bool
) -> int:
    """Print the rows; return 1 if the query failed or rows are missing."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    try:
        asked = [(one.name, one.directory) for one in _chosen(live, which)]
        text = sys.stdin.read() if sql == STDIN else sql
        result = run_query(
            text, timeout_s, lambda needs, seconds: collect_from(asked, needs, seconds)
        )
    except QueryError as error:
        print(f"monarch query: {error}", file=sys.stderr)
        return 1
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(_data(result), enc_hook=str)).decode())
    else:
        print("\n".join(table_lines(result)))
    for line in missing_lines(result):
        print(f"monarch query: {line}", file=sys.stderr)
    return 1 if result.missing else 0


def _chosen(live: Sequence[Session], which: str) -> Sequence[Session]:
    """The live sessions to ask: all, or the one that `which` names."""
    if not which:
        return live
    found = named(which, live)
    if len(found) == 1:
        return found
    names = ", ".join(one.name for one in found or live) or "none"
    problem = f"several sessions match {which!r}" if found else f"there is no session {which!r}"
    raise QueryError(f"{problem}; running sessions: {names} (see `monarch ps`)")


def _data(result: QueryResult) -> dict[str, Any]:
    return {
        "rows": result.dicts(),
        "missing": [
            {"table": one.table, "where": one.where, "reason": one.reason} for one in result.missing
        ],
    }
