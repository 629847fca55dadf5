"""Messages about the calls that ranks have run. No I/O."""

from __future__ import annotations

from typing import TypedDict

from monarch.observe import Timeline, endpoint_text


class TimelineMessage(TypedDict):
    """Calls of the ranks of a mesh.

    `names`: endpoints with the classes of their actors. Each of `calls` is a rank, the place of a
    name, when it began (seconds since 1970), how many seconds it took (None while it runs), and
    whether it failed. `cut`: how many ranks had more calls than this; `missing` did not answer.
    """

    now: float
    names: list[str]
    calls: list[tuple[int, int, float, float | None, bool]]
    cut: int
    missing: int


def timeline_message(found: Timeline, now: float) -> TimelineMessage:
    """A timeline as a message, read at `now`, in seconds since 1970."""
    names: dict[str, int] = {}
    calls: list[tuple[int, int, float, float | None, bool]] = []
    for one in found.calls:
        name = endpoint_text(one.actor, one.endpoint)
        took_s = None if one.took_s is None else round(one.took_s, 6)
        place = names.setdefault(name, len(names))
        calls.append((one.rank, place, round(one.began_s, 6), took_s, one.failed))
    return TimelineMessage(
        now=now, names=list(names), calls=calls, cut=len(found.cut), missing=len(found.missing)
    )
