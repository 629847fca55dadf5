"""The shards of a tensor, rank by rank: figures and a picture of each. No I/O.

All pictures have one scale, so that ranks can be compared. Shards with equal contents share a line;
lines whose figures are equal have the digests of their contents. A picture is a PNG in a `data:`
address: a header, the rows and a checksum, without an imaging library.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch.frontend import Coordinates, name_ranks
from monarch_jupyter.ranks.shard import Shard
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import columns
from monarch_jupyter.rendering.values import number_text

# From dark to light, readable without colour; after matplotlib's viridis.
_STEPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
NOT_FINITE = (224, 32, 32)


def colour(value: float, low: float, high: float) -> tuple[int, int, int]:
    """The colour of a value between two others; red if it is not finite."""
    if not math.isfinite(value):
        return NOT_FINITE
    share = 0.5 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))
    at = share * (len(_STEPS) - 1)
    before = min(int(at), len(_STEPS) - 2)
    part = at - before
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(_STEPS[before], _STEPS[before + 1], strict=True)
    )
    return red, green, blue


def png_address(rows: Sequence[Sequence[float]], low: float, high: float) -> str:
    """A picture with a pixel for each number, as a `data:` address."""
    lines = b"".join(
        b"\x00" + bytes(part for value in row for part in colour(value, low, high)) for row in rows
    )
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in parts)
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


MOST_SHOWN = 64
"""Lines that are shown; more are counted."""
PIXEL = 6
"""The size of an element in the page, in CSS pixels; small pictures are enlarged more."""
WIDTH = 240
HEIGHT = 96
_HEAD = ("ranks", "lowest", "mean", "highest", "not finite")
_CONTENTS = "contents"


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
    groups: dict[object, list[int]] = {}
    for rank, shard in enumerate(shards):
        groups.setdefault((shard.shape, shard.dtype, shard.contents), []).append(rank)
    return {
        name_ranks(places.point(rank) for rank in ranks) or "value": shards[ranks[0]]
        for ranks in groups.values()
    }


def shards_text(title: str, by_ranks: Mapping[str, Shard]) -> str:
    """The shards as text."""
    head, figures = _table(list(by_ranks.values()))
    rows = [[name, *line] for name, line in zip(by_ranks, figures, strict=True)]
    lines = [f"  {line}" for line in columns([head, *rows[:MOST_SHOWN]])]
    return "\n".join([title, *lines, *_more(len(rows))])


def shards_html(title: str, by_ranks: Mapping[str, Shard]) -> Html:
    """The shards as static HTML."""
    low, high = scale_of(list(by_ranks.values()))
    names, figures = _table(list(by_ranks.values()))
    rows = [
        [html.header(name, "row"), *line, _picture(name, shard, low, high)]
        for (name, shard), line in zip(by_ranks.items(), figures, strict=True)
    ][:MOST_SHOWN]
    scale = _scale_text(list(by_ranks.values()), low, high)
    head = html.element("div", html.code(title))
    table = html.scrolled(html.table([*names, "elements"], rows))
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


def _table(shards: Sequence[Shard]) -> tuple[list[str], list[list[str]]]:
    """The head and the figures of shards that differ, with what tells them apart."""
    figures = [_figures(shard) for shard in shards]
    if len(set(map(tuple, figures))) == len(figures):
        return list(_HEAD), figures
    return [*_HEAD, _CONTENTS], [[*f, s.contents] for f, s in zip(figures, shards, strict=True)]


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
        height=str(len(shard.picture) * max(1, min(size, HEIGHT // len(shard.picture)))),
        style="image-rendering: pixelated; display: block",
    )


def _more(count: int) -> list[str]:
    return [f"  and {count - MOST_SHOWN} more"] if count > MOST_SHOWN else []
