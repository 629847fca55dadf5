"""The calls that ranks have run, from the table `messages`. No I/O.

The page's side is the type `Timeline` of `widgets/js/activity_protocol.js`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

MOST_CALLS = 20_000


class TimelineMessage(msgspec.Struct):
    """Calls of the ranks of a mesh.

    Each of `calls` is a rank, the place of its endpoint in `names`, when it began (seconds since
    1970), how many seconds it took (None while it runs), and whether it failed. `cut`: how many
    ranks had more calls than this.
    """

    now: float
    names: list[str]
    calls: list[tuple[int, int, float, float | None, bool]]
    cut: int = 0
    missing: int = 0


def timeline_of(
    rows: Sequence[Mapping[str, Any]],
    mesh: int,
    after_s: float,
    now_s: float,
    failed_s: Mapping[int, float] | None = None,
) -> TimelineMessage:
    """The calls of a proc mesh that have not ended before `after_s`, in seconds since 1970.

    `failed_s`: when ranks failed, in seconds since 1970. Their calls that ran have failed then: the
    rows of a recording are those that a process sent last.
    """
    ends = failed_s or {}
    found: list[tuple[float, int, str, float | None, bool]] = []
    for row in rows:
        if row["mesh_id"] != mesh or row["status"] == "queued":
            continue
        waited_s, ran_s = row["waited_s"] or 0.0, row["ran_s"]
        began_s = row["timestamp_us"] / 1e6 + waited_s
        is_cut_off = ran_s is None and row["rank"] in ends
        if is_cut_off:
            ran_s = max(0.0, ends[row["rank"]] - began_s)
        if ran_s is not None and began_s + ran_s < after_s:
            continue
        name = f"{row['actor']}.{row['endpoint']}" if row["actor"] else str(row["endpoint"])
        is_failed = is_cut_off or row["status"] == "failed"
        found.append((began_s, row["rank"], name, ran_s, is_failed))
    found.sort(key=lambda one: one[0])
    dropped, shown = found[:-MOST_CALLS], found[-MOST_CALLS:]
    names: dict[str, int] = {}
    calls = [
        (rank, names.setdefault(name, len(names)), round(began_s, 6), ran_s, failed)
        for began_s, rank, name, ran_s, failed in shown
    ]
    return TimelineMessage(now_s, list(names), calls, len({one[1] for one in dropped}))
