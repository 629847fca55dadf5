"""`%%monarch sql`: a query over the live state of the session."""

from __future__ import annotations

import sys

from monarch import observe
from monarch.observe import QueryError, QueryResult
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation


def sql(query: str, *, timeout: float | None = None) -> QueryResult:
    """Run a SELECT over the tables of the live state; see `monarch.observe.query`.

    Raises:
        CommandError: the query is refused; the text is DuckDB's.
    """
    try:
        return observe.query(query, timeout)
    except QueryError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise CommandError("\n".join(lines)) from None


def _run(invocation: Invocation) -> object:
    arguments = invocation.arguments
    if invocation.cell is None:
        raise CommandError("sql takes a whole cell: write %%monarch sql, and the query below it")
    names = arguments.positionals
    if len(names) > 1 or not all(name.isidentifier() for name in names):
        raise CommandError("sql takes the name of one variable for the result, or none")
    if not invocation.cell.strip():
        raise CommandError("there is no query; write one below the line, such as FROM procs")
    timeouts = [_seconds(text) for text in arguments.values("--timeout")]
    result = sql(invocation.cell, timeout=timeouts[0] if timeouts else None)
    value: object = result
    if arguments.has("--df"):
        if arguments.has("--csv"):
            raise CommandError("give --df or --csv, not both")
        try:
            value = result.df()
        except QueryError as error:
            raise CommandError(str(error)) from None
    elif arguments.has("--csv"):
        value = result.csv()
    for name in names:
        invocation.namespace[name] = value
    if value is not result:  # its own form names what is missing or dropped
        for line in [*result.missing_lines, *result.dropped_lines]:
            sys.stderr.write(f"monarch: {line}\n")
    if isinstance(value, str):
        sys.stdout.write(value)
        return None
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:  # also refuses NaN
        raise CommandError(f"--timeout {text}: give seconds, from 0 to 1000000")
    return seconds


COMMAND = Command(
    name="sql",
    usage="sql [VARIABLE] [--df | --csv] [--timeout SECONDS]",
    summary="run the cell, a SELECT, over tables of hosts, ranks, actors, calls, lines, stacks",
    run=_run,
    options=(
        Option("--df", "the result is a pandas DataFrame"),
        Option("--csv", "print the result as CSV; VARIABLE gets the text"),
        Option(
            "--timeout",
            "how long the query may take (default: 2 for ranks, 30 for stacks)",
            "SECONDS",
        ),
    ),
    examples=(
        "%%monarch sql\nSHOW TABLES",
        "%%monarch sql hung\nSELECT rank, function, file, line FROM frames WHERE mesh = 'workers'",
    ),
    takes_cell=True,
)
