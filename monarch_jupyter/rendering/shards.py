"""The shards of a tensor, rank by rank: figures and a picture of each. No I/O.

All pictures have one scale, so that ranks can be compared. Equal shards share a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch.observe import Coordinates, name_ranks
from monarch_jupyter.ranks.shard import Shard
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.pixels import png_address
from monarch_jupyter.rendering.units import columns
from monarch_jupyter.rendering.values import number_text

MOST_SHOWN = 64
"""Lines that are shown; more are counted."""
PIXEL = 6
"""The size of an element in the page, in CSS pixels; small pictures are enlarged more."""
WIDTH = 240
HEAD = ("ranks", "lowest", "mean", "highest", "not finite")


@dataclass(frozen=True)
class ShardsView:
    """The shards of a tensor. `title`: the tensor in words."""

    title: str
    shards: Sequence[Shard]
    places: Coordinates

    def __repr__(self) -> str:
        return shards_text(self.title, folded(self.shards, self.places))

    def _repr_html_(self) -> str:
        return shards_html(self.title, folded(self.shards, self.places))


def folded(shards: Sequence[Shard], places: Coordinates) -> Mapping[str, Shard]:
    """Shards by the name of the ranks that have equal ones, in the order of ranks."""
    groups: dict[str, list[int]] = {}
    for rank, shard in enumerate(shards):
        groups.setdefault(repr(shard), []).append(rank)  # as text: NaN is equal to itself
    return {
        name_ranks(places.point(rank) for rank in ranks) or "value": shards[ranks[0]]
        for ranks in groups.values()
    }


def shards_text(title: str, by_ranks: Mapping[str, Shard]) -> str:
    """The shards as text."""
    rows = [[name, *_figures(shard)] for name, shard in by_ranks.items()]
    lines = [f"  {line}" for line in columns([list(HEAD), *rows[:MOST_SHOWN]])]
    return "\n".join([title, *lines, *_more(len(rows))])


def shards_html(title: str, by_ranks: Mapping[str, Shard]) -> Html:
    """The shards as static HTML."""
    low, high = scale_of(list(by_ranks.values()))
    rows = [
        [html.header(name, "row"), *_figures(shard), _picture(name, shard, low, high)]
        for name, shard in list(by_ranks.items())[:MOST_SHOWN]
    ]
    scale = _scale_text(list(by_ranks.values()), low, high)
    head = html.element("div", html.code(title))
    table = html.scrolled(html.table([*HEAD, "elements"], rows))
    more = [html.element("div", html.toned(line.strip(), "muted")) for line in _more(len(by_ranks))]
    return html.card(head, table, *more, html.element("div", html.toned(scale, "muted")))


def scale_of(shards: Sequence[Shard]) -> tuple[float, float]:
    """The lowest and the highest finite value in the pictures; 0 and 0 if there is none."""
    shown = [value for shard in shards for row in shard.picture for value in row]
    finite = [value for value in shown if math.isfinite(value)]
    return min(finite, default=0.0), max(finite, default=0.0)


def _scale_text(shards: Sequence[Shard], low: float, high: float) -> str:
    parts = [f"dark: {number_text(low)}, light: {number_text(high)}"]
    if any(shard.odd for shard in shards):
        parts.append("red: not finite")
    if any(math.prod(shard.shape) > sum(map(len, shard.picture)) for shard in shards):
        parts.append("a pixel is the mean of a block of elements")
    return "; ".join(parts)


def _figures(shard: Shard) -> list[str]:
    ends = (shard.low, shard.mean, shard.high)
    return [*("-" if one is None else number_text(one) for one in ends), str(shard.odd)]


def _picture(name: str, shard: Shard, low: float, high: float) -> Html:
    if not shard.picture:
        return html.text("no elements")
    across = len(shard.picture[0])
    size = max(1, min(WIDTH // across, 4 * PIXEL))
    return html.element(
        "img",
        src=png_address(shard.picture, low, high),
        alt=f"elements at {name}, {number_text(low)} dark to {number_text(high)} light",
        width=str(across * size),
        height=str(len(shard.picture) * size),
        style="image-rendering: pixelated; display: block",
    )


def _more(count: int) -> list[str]:
    return [f"  and {count - MOST_SHOWN} more"] if count > MOST_SHOWN else []
