"""`monarch query`: SQL over the live state of the sessions of this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from monarch._src.errors import QueryError
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions, named, short_name
from monarch._src.telemetry.replay.file import query_file
from monarch._src.telemetry.replay.record import record_sessions
from monarch._src.telemetry.sql.collect import collect_from
from monarch._src.telemetry.sql.query import QueryResult, run_query, table_lines

STDIN = "-"


def run(
    bases: Sequence[str] | None,
    timeout_s: float | None,
    sql: str,
    which: str,
    recording: str | None = None,
    at: float | None = None,
    *,
    as_json: bool,
    as_csv: bool = False,
) -> int:
    """Print the rows; return 1 if the query failed or rows are missing.

    `recording`: ask this file, as it was `at` seconds after its first sample.
    """
    try:
        if not sql:
            raise QueryError("give a query, or --record FILE")
        if at is not None and recording is None:
            raise QueryError("--at shows an earlier time of a recording; give --from FILE too")
        text = sys.stdin.read() if sql == STDIN else sql
        if recording is None:
            result = _of_sessions(bases, timeout_s, text, which)
        else:
            result = query_file(recording, text, at, timeout_s)
    except (QueryError, OSError, ValueError) as error:
        print(f"monarch query: {error}", file=sys.stderr)
        return 1
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(_data(result), enc_hook=str)).decode())
    elif as_csv:
        sys.stdout.write(result.csv())
    else:
        print("\n".join(table_lines(result)))
    for line in [*result.missing_lines, *result.dropped_lines]:
        print(f"monarch query: {line}", file=sys.stderr)
    return 1 if result.missing else 0


def refuse(why: str) -> int:
    """Print why the options make no sense; return 1."""
    print(f"monarch query: {why}", file=sys.stderr)
    return 1


def _of_sessions(
    bases: Sequence[str] | None, timeout_s: float | None, sql: str, which: str
) -> QueryResult:
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    asked = [(one.name, one.directory) for one in chosen(live, which)]
    return run_query(sql, timeout_s, lambda needs, seconds: collect_from(asked, needs, seconds))


def record(
    bases: Sequence[str] | None,
    timeout_s: float | None,
    which: str,
    path: str,
    interval_s: float,
    for_s: float | None,
) -> int:
    """Record sessions into a file until Ctrl-C, or for a time; return 1 if that failed."""
    try:
        live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
        asked = [(one.name, one.directory) for one in chosen(live, which)]
        if not asked:
            raise QueryError("there is no running session here (see `monarch ps`)")
        recording = record_sessions(asked, Path(path), interval_s, timeout_s)
        try:
            recording.join(for_s)
        except KeyboardInterrupt:
            pass
        recording.stop()
    except (QueryError, OSError, ValueError) as error:
        print(f"monarch query: {error}", file=sys.stderr)
        return 1
    print(f"wrote {recording.samples} samples to {path}")
    return 0


def chosen(live: Sequence[Session], which: str) -> Sequence[Session]:
    """The live sessions to ask: all, or the one that `which` names."""
    if not which:
        return live
    found = named(which, live)
    if len(found) == 1:
        return found
    names = ", ".join(short_name(one) for one in found or live) or "none"
    problem = f"several sessions match {which!r}" if found else f"there is no session {which!r}"
    raise QueryError(f"{problem}; running sessions: {names} (see `monarch ps`)")


def _data(result: QueryResult) -> dict[str, Any]:
    return {
        "rows": result.dicts(),
        "missing": [
            {"table": one.table, "where": one.where, "reason": one.reason} for one in result.missing
        ],
        "dropped": [asdict(one) for one in result.dropped],
        "not_kept": [*result.not_kept],
    }
