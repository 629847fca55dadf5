"""Progress bars of slow work: as text, as HTML and as messages. No I/O.

The progress thread calls `BarTable.put`, the publisher's thread all other methods.
Invariants: as those of `MeshTable`: each delta's `seq` is one above that of the message before it,
and a snapshot has that of the last delta. Elapsed time alone is not a change: pages have clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from monarch.frontend import StartingMesh, endpoint_text, is_label, name_ranks
from monarch.job import OpenWait
from monarch.observe import OpenCall, OpenMap, OpenPull
from monarch_jupyter.protocol.messages import BarMessage, BarsDeltaMessage, BarsMessage
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import duration

AFTER = 2.0
"""Seconds that work is under way before its bar is shown."""
MOST = 4
"""Bars in a cell."""


@dataclass(frozen=True)
class Bar:
    """One piece of work: its name, its progress, the ranks that are late, its start.

    `total` is None if it is not known. `unit`: the counted unit, singular and plural. `began`: by
    the monotonic clock.
    """

    key: str
    what: str
    done: int
    total: int | None
    unit: tuple[str, str]
    late: str
    began: float

    def said(self, now: float) -> str:
        """`Trainer.step: 6 of 8 ranks, 12 s; waiting for gpus=3,5`."""
        for_s = duration(float(round(now - self.began)))
        late = f"; waiting for {self.late}" if self.late else ""
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.what}: {self.done:,}{of} {self.counted}, {for_s}{late}"

    @property
    def counted(self) -> str:
        """The unit, for the number that it follows."""
        return self.unit[(self.done if self.total is None else self.total) != 1]


def keys_of(
    calls: Sequence[OpenCall],
    starting: Sequence[StartingMesh],
    pulls: Sequence[OpenPull] = (),
    maps: Sequence[OpenMap] = (),
    waits: Sequence[OpenWait] = (),
) -> list[str]:
    """The keys of pieces of work."""
    return [
        *(f"job {one.number}" for one in waits),
        *(f"mesh {one.uid}" for one in starting),
        *(f"pull {one.number}" for one in pulls),
        *(f"map {one.number}" for one in maps),
        *(f"call {one.number}" for one in calls),
    ]


def bars_of(
    calls: Sequence[OpenCall],
    starting: Sequence[StartingMesh],
    began: Mapping[str, float],
    now: float,
    pulls: Sequence[OpenPull] = (),
    maps: Sequence[OpenMap] = (),
    waits: Sequence[OpenWait] = (),
) -> list[Bar]:
    """The bars of work that is under way for long; `began` is when each was first seen.

    A pull that still waits for a version has no bar, since it has not started.
    """
    bars = [
        Bar(key, one.text, 0, one.hosts, ("host", "hosts"), "", since)
        for one in waits
        if (since := began.get(key := f"job {one.number}", now)) <= now - AFTER
    ]
    bars += [
        Bar(
            key, f"spawning {one.name}", one.ready, one.procs, ("process", "processes"),
            f"the import of {', '.join(one.imports)}" if one.imports and not one.ready else "",
            since,
        )
        for one in starting
        if (since := began.get(key := f"mesh {one.uid}", now)) <= now - AFTER
    ]  # fmt: skip
    bars += [
        Bar(key, f"pulling from {one.source}", one.bytes_done >> 20, one.size >> 20,
            ("MiB", "MiB"), "", since)
        for one in pulls
        if (since := began.get(key := f"pull {one.number}", now)) <= now - AFTER and one.size >> 20
    ]  # fmt: skip
    bars += [
        Bar(key, one.function, one.done, one.total, ("item", "items"), name_ranks(one.late), since)
        for one in maps
        if (since := began.get(key := f"map {one.number}", now)) <= now - AFTER and one.progress
    ]
    of_maps = {number for one in maps for number in one.calls}
    for call in calls:
        if call.number in of_maps:
            continue
        key = f"call {call.number}"
        since = began.get(key, now)
        if since > now - AFTER or len(bars) >= MOST:
            continue
        done = call.ranks - len(call.owing)
        late = name_ranks(call.owing) if done else ""
        bars.append(Bar(key, _name(call), done, call.ranks, ("rank", "ranks"), late, since))
    return bars[:MOST]


def _name(call: OpenCall) -> str:
    """`Trainer.step`, or `the cell on workers`."""
    text = endpoint_text(call.actor_class, call.endpoint)
    return f"{text} on {call.mesh}" if is_label(call.actor_class) else text


def bars_text(bars: Sequence[Bar], now: float) -> str:
    """A line a bar; empty without any."""
    return "\n".join(bar.said(now) for bar in bars)


def bars_html(bars: Sequence[Bar], now: float) -> Html:
    """The bars, each with its words."""
    lines = [
        html.element(
            "div",
            _bar_html(b),
            " ",
            html.toned(b.said(now), "muted"),
        )
        for b in bars
    ]
    return html.card(*lines)


def _bar_html(bar: Bar) -> Html:
    """A bar without a value moves by itself: until the first part is done, or to the end."""
    if bar.total is None:
        return html.element("progress", aria_label=bar.what)
    value = {"value": str(bar.done)} if bar.done else {}
    return html.element("progress", max=str(bar.total), aria_label=bar.what, **value)


class BarTable:
    """The bars of one cell as its readers know them."""

    def __init__(self, bars: Sequence[Bar], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seq = 0
        self._current: tuple[Bar, ...] = tuple(bars)  # replaced whole, by one store
        self._sent = self._current

    def put(self, bars: Sequence[Bar]) -> None:
        """Replace the bars."""
        self._current = tuple(bars)

    def current(self) -> BarsMessage:
        """The current bars, outside of the numbered messages, for a page that has not asked yet."""
        return self._bars(-1, self._current)

    def delta(self) -> BarsDeltaMessage | None:
        """The message that brings readers up to date; None if nothing changed."""
        before, now = self._sent, self._current
        if now == before:
            return None
        self._sent = now
        self._seq += 1
        return BarsDeltaMessage(
            type="bars_delta",
            seq=self._seq,
            bars=[self._bar(bar) for bar in now if bar not in before],
            gone=[bar.key for bar in before if all(bar.key != other.key for other in now)],
        )

    def snapshot(self) -> BarsMessage:
        """All bars as last sent, under the number of the last message."""
        return self._bars(self._seq, self._sent)

    def _bars(self, seq: int, bars: Sequence[Bar]) -> BarsMessage:
        return BarsMessage(type="bars", seq=seq, bars=[self._bar(bar) for bar in bars])

    def _bar(self, bar: Bar) -> BarMessage:
        return BarMessage(
            key=bar.key,
            what=bar.what,
            done=bar.done,
            total=bar.total,
            unit=bar.counted,
            late=bar.late,
            for_s=round(self._clock() - bar.began, 1),
        )
