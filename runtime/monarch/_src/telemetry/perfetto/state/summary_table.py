"""The summary of a profile as a table of words. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from monarch._src.telemetry.perfetto.state.summary import ProfileLine

HEAD = ("mesh", "kind", "name", "count", "total", "own", "longest", "slowest")
MOST = 10
"""The maximal number of lines of each kind."""
UNEVEN = 1.2
"""A rank is named if its time is that many times the median."""
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


class ProfileTable(NamedTuple):
    """A head, rows of as many words, and a note on the rows left out; empty if none is."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str


def summary_table(lines: Sequence[ProfileLine]) -> ProfileTable:
    """At most `MOST` lines of each kind, in the given order."""
    shown: Counter[str] = Counter()
    rows: list[tuple[str, ...]] = []
    for line in lines:
        shown[line.kind] += 1
        if shown[line.kind] <= MOST:
            rows.append(_cells(line))
    more = [f"{count - MOST} more of kind {kind}" for kind, count in shown.items() if count > MOST]
    return ProfileTable(HEAD, rows, f"{', '.join(more)}: see summary()" if more else "")


def _cells(line: ProfileLine) -> tuple[str, ...]:
    uneven = line.times_median >= UNEVEN
    slowest = f"rank {line.slowest}, {line.times_median:.1f} times the median" if uneven else ""
    return (
        line.mesh, line.kind, line.name, f"{line.count:,}", time_text(line.total_s),
        time_text(line.self_s), time_text(line.longest_s), slowest,
    )  # fmt: skip


def time_text(seconds: float) -> str:
    """`1.23 s`, `45.6 ms`, `7.89 µs`."""
    unit, worth = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    return f"{seconds / worth:.3g} {unit}"


def summary_text(lines: Sequence[ProfileLine], seconds: float) -> str:
    """A head line, and the table in aligned columns."""
    head = f"profile of {time_text(seconds)}"
    _, rows, note = summary_table(lines)
    if not rows:
        return f"{head}: nothing has run"
    table = [HEAD, *rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(HEAD))]
    numbers = range(3, 7)
    texts = [
        "  ".join(
            cell.rjust(widths[at]) if at in numbers else cell.ljust(widths[at])
            for at, cell in enumerate(row)
        ).rstrip()
        for row in table
    ]
    return "\n".join([head, *texts, *([note] if note else [])])
