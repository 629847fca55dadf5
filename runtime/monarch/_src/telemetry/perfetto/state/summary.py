"""Where the time of a profile went: the slices of its tracks, summed by name. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from monarch._src.telemetry.perfetto.state.trace import Slice, Tracks

KINDS = ("call", "endpoint", "span", "torch")
NESTED = ("span", "torch")
"""The kinds whose tracks are threads. Calls and endpoints of one track run at the same time."""
NS_PER_S = 1e9


@dataclass(frozen=True)
class ProfileLine:
    """The time that one name took in the processes of a mesh, in seconds.

    Attributes:
        mesh: the name of the mesh; `client` for the client.
        kind: `call` (at the caller), `endpoint`, `span` or `torch`.
        name: such as `trainer.step` or `aten::mm`.
        count: how often it ran, in all processes.
        total_s: of all processes together, with what ran within it.
        self_s: the same; of spans and torch without what ran within it on its thread.
        longest_s: the longest run.
        slowest: the rank with the largest total.
        times_median: its total, in medians of all ranks that ran it.
    """

    mesh: str
    kind: str
    name: str
    count: int
    total_s: float
    self_s: float
    longest_s: float
    slowest: int
    times_median: float


@dataclass
class _Sum:
    count: int = 0
    self_ns: int = 0
    longest_ns: int = 0
    by_rank: dict[int, int] = field(default_factory=dict[int, int])


def summary(processes: Iterable[Tracks]) -> list[ProfileLine]:
    """A line for each name of each mesh; by kind, the most time of their own first."""
    sums: dict[tuple[str, str, str], _Sum] = {}
    for process in processes:
        for slices in process.slices.values():
            for one, own_ns in with_own_time(slices):
                if one.category not in KINDS:
                    continue
                key = (process.mesh, one.category, one.name)
                found = sums.setdefault(key, _Sum())
                took_ns, rank = one.end_ns - one.begin_ns, process.process.rank
                found.count += 1
                found.self_ns += own_ns if one.category in NESTED else took_ns
                found.longest_ns = max(found.longest_ns, took_ns)
                found.by_rank[rank] = found.by_rank.get(rank, 0) + took_ns
    lines = [_line(key, found) for key, found in sums.items()]
    return sorted(lines, key=lambda line: (KINDS.index(line.kind), -line.self_s, line.name))


def _line(key: tuple[str, str, str], found: _Sum) -> ProfileLine:
    slowest = max(found.by_rank, key=lambda rank: found.by_rank[rank])
    usual = median(found.by_rank.values())
    return ProfileLine(
        *key, found.count, sum(found.by_rank.values()) / NS_PER_S, found.self_ns / NS_PER_S,
        found.longest_ns / NS_PER_S, slowest, found.by_rank[slowest] / usual if usual else 1.0,
    )  # fmt: skip


def with_own_time(slices: Sequence[Slice]) -> list[tuple[Slice, int]]:
    """Each slice of a track, with its time outside of the slices within it, in nanoseconds."""
    found: list[tuple[Slice, int]] = []
    opened: list[int] = []  # the places in `found` of the slices that are open, the outermost first
    for one in sorted(slices, key=lambda one: (one.begin_ns, -one.end_ns)):
        while opened and found[opened[-1]][0].end_ns <= one.begin_ns:
            opened.pop()
        if opened and one.end_ns <= found[opened[-1]][0].end_ns:
            outer, own_ns = found[opened[-1]]
            found[opened[-1]] = outer, own_ns - (one.end_ns - one.begin_ns)
        opened.append(len(found))
        found.append((one, one.end_ns - one.begin_ns))
    return found


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
