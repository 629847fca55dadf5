"""The values of a call, one per rank. No I/O.

Numbers, also those in tensors of one element, are a heat map over the mesh's dims; very many are
summarised by their spread, part by part. Everything else is a list in which ranks with the same
contents share a line; the text of a large tensor is its type and shape.
"""

from __future__ import annotations

import math
import numbers
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from monarch import frontend
from monarch.actor import ValueMesh
from monarch.frontend import Coordinates, name_point, name_ranks
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.grid import Grid, grid_of
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import columns, extent_text
from monarch_jupyter.rendering.value_contents import device_text, is_tensor, value_texts

MOST_CELLS = 1024
MOST_PARTS = 64
"""Parts of a mesh that are listed, and different values that are shown."""
LONGEST_SHOWN = 400
"""Characters of one value that are shown without a click."""


class Unreadable:
    """Replaces a value of a rank that cannot be unpickled in the notebook."""

    def __init__(self, error: TypeError) -> None:
        why = error.__context__ or error
        self._why = " ".join(f"{type(why).__name__}: {why}".split())

    def __repr__(self) -> str:
        return f"<cannot be rebuilt in the notebook: {self._why}>"


def readable_values(mesh: ValueMesh[object]) -> list[object]:
    """The values in rank order; a value that cannot be unpickled becomes `Unreadable`."""
    try:
        return mesh.values()
    except TypeError:
        return [_readable(mesh, at) for at in range(len(mesh))]


def _readable(mesh: ValueMesh[object], at: int) -> object:
    try:
        return mesh.get(at)
    except TypeError as error:
        return Unreadable(error)


def value_mesh_text(mesh: ValueMesh[Any]) -> str:
    """The values of a call as text, under the coordinates of the mesh that was spawned."""
    return values_text(mesh.sizes, readable_values(mesh), frontend.coordinates(mesh))


def value_mesh_html(mesh: ValueMesh[Any]) -> Html:
    """The same as static HTML."""
    return values_html(mesh.sizes, readable_values(mesh), frontend.coordinates(mesh))


def values_text(
    sizes: Mapping[str, int], values: Sequence[object], places: Coordinates | None = None
) -> str:
    """The values of a mesh with these dims, in rank order, as text.

    `places`: the coordinates of a slice.
    """
    places = places or Coordinates.own(sizes)
    head = f"ValueMesh {extent_text(sizes)}{_fixed_text(places)}"
    numbers = as_numbers(values)
    if numbers is not None and len(values) > 1:
        if len(values) <= MOST_CELLS:
            grid = grid_of(sizes, places.indices)
            return "\n".join([head, *_number_lines(grid, numbers)])
        lines = columns([_SPREAD, *_spreads(sizes, numbers, places)])
        return "\n".join([head, *(f"  {line}" for line in lines), *_left_out(sizes)])
    folded = _folded(values, places)
    rows = [[ranks or "value", shown] for ranks, shown in folded[:MOST_PARTS]]
    more = [f"  and {len(folded) - MOST_PARTS} more"] if len(folded) > MOST_PARTS else []
    if any("\n" in shown for _, shown in rows):
        blocks = [f"  {ranks}\n{_indented(shown)}" for ranks, shown in rows]
        return "\n".join([head, *blocks, *more])
    return "\n".join([head, *(f"  {line}" for line in columns(rows)), *more])


def values_html(
    sizes: Mapping[str, int], values: Sequence[object], places: Coordinates | None = None
) -> Html:
    """The values of a mesh with these dims, in rank order, as static HTML.

    `places`: the coordinates of a slice.
    """
    places = places or Coordinates.own(sizes)
    head = html.element("div", "ValueMesh ", html.code(extent_text(sizes)), _fixed_text(places))
    numbers = as_numbers(values)
    if numbers is not None and len(values) > 1:
        if len(values) <= MOST_CELLS:
            grid = grid_of(sizes, places.indices)
            return html.card(head, _heat_map(grid, numbers), _legend(numbers, places))
        return html.card(
            head,
            html.table(_SPREAD, _spreads(sizes, numbers, places)),
            *[html.toned(line.strip(), "muted") for line in _left_out(sizes)],
        )
    first = dict(zip(value_texts(values), values, strict=True))
    rows = [
        [html.header(ranks or "value", "row"), _styled(first[text]) or _shown(text)]
        for ranks, text in _folded(values, places)
    ]
    table, rest = html.table((), rows[:MOST_PARTS]), rows[MOST_PARTS:]
    if not rest:
        return html.card(head, table)
    more = html.toned(f"and {len(rest)} more", "muted")
    return html.card(head, table, html.details(more, html.table((), rest)))


def _styled(value: object) -> Html | None:
    """The HTML of the value itself, such as a data frame's."""
    method = getattr(value, "_repr_html_", None)
    if isinstance(value, type) or not callable(method):
        return None
    try:
        shown = method()
    except Exception:
        return None  # it still has its text
    return Html(shown) if isinstance(shown, str) else None


def as_numbers(values: Sequence[object]) -> list[float] | None:
    """The values as real numbers, or None unless all are (a bool is not a number here)."""
    found: list[float] = []
    for value in values:
        number = _as_number(value)
        if number is None:
            return None
        found.append(number)
    return found


def _as_number(value: object) -> float | None:
    if is_tensor(value):
        # Only one element in host memory: reading from a device would block.
        tensor: Any = value
        if math.prod(tensor.shape) != 1 or device_text(value) or not hasattr(tensor, "item"):
            return None
        value = tensor.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return value  # pyright: ignore[reportReturnType]  # a Real: an int stays one


_SPREAD = ["ranks", "lowest", "median", "mean", "highest", "not finite"]


def _fixed_text(places: Coordinates) -> str:
    """` at hosts=1`, for the dims that a slice has dropped."""
    return f" at {name_point(places.fixed)}" if places.fixed else ""


def _spreads(
    sizes: Mapping[str, int], values: Sequence[float], places: Coordinates
) -> list[list[str]]:
    """A line for all ranks, then one for each index of the first dim that has several."""
    rows = [_spread("all", range(len(values)), values, places)]
    dim = next((dim for dim, size in sizes.items() if size > 1), None)
    if dim is None or len([size for size in sizes.values() if size > 1]) < 2:
        return rows
    part = len(values) // sizes[dim]
    for index in range(min(sizes[dim], MOST_PARTS)):
        ranks = range(index * part, (index + 1) * part)
        rows.append(_spread(f"{dim}={places.indices[dim][index]}", ranks, values, places))
    return rows


def _spread(name: str, ranks: range, values: Sequence[float], places: Coordinates) -> list[str]:
    finite = sorted((values[rank], rank) for rank in ranks if math.isfinite(values[rank]))
    odd = len(ranks) - len(finite)
    if not finite:
        return [name, "-", "-", "-", "-", str(odd)]
    (low, lowest), (high, highest) = finite[0], finite[-1]
    middle = statistics.median(value for value, _ in finite)
    mean = statistics.fmean(value for value, _ in finite)
    ends = [
        f"{number_text(value)} at {name_point(places.point(rank))}"
        for value, rank in ((low, lowest), (high, highest))
    ]
    return [name, ends[0], number_text(middle), number_text(mean), ends[1], str(odd)]


def _left_out(sizes: Mapping[str, int]) -> list[str]:
    most = max((size for size in sizes.values()), default=0)
    several = len([size for size in sizes.values() if size > 1]) > 1
    first = next((size for size in sizes.values() if size > 1), most)
    return [f"  and {first - MOST_PARTS} more parts"] if several and first > MOST_PARTS else []


def _legend(values: Sequence[float], places: Coordinates) -> Html:
    finite = [(value, rank) for rank, value in enumerate(values) if math.isfinite(value)]
    odd = len(values) - len(finite)
    parts: list[str] = []
    if finite and min(finite)[0] < max(finite)[0]:
        for word, (value, rank) in (("lowest", min(finite)), ("highest", max(finite))):
            parts.append(f"{word} {number_text(value)} at {name_point(places.point(rank))}")
    if odd:
        parts.append(f"{odd} not finite")
    return html.element("div", html.toned("; ".join(parts), "muted")) if parts else Html()


def number_text(value: float) -> str:
    """A number with up to four digits; integers in full."""
    return str(int(value)) if isinstance(value, numbers.Integral) else f"{float(value):.4g}"


def _folded(values: Sequence[object], places: Coordinates) -> list[tuple[str, str]]:
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(value_texts(values)):
        groups.setdefault(text, []).append(rank)
    return [
        (name_ranks(places.point(rank) for rank in ranks), shown) for shown, ranks in groups.items()
    ]


def _shown(text: str) -> Html:
    if len(text) <= LONGEST_SHOWN and "\n" not in text:
        return html.code(text)
    if len(text) <= LONGEST_SHOWN:
        return html.block(text)
    return html.details(html.code(text[:80].splitlines()[0] + " …"), html.block(text))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _number_lines(grid: Grid, values: Sequence[float]) -> list[str]:
    rows = [[row.label, *(number_text(values[rank]) for rank in row.ranks)] for row in grid.rows]
    widest = max(len(row) for row in rows)
    rows = [row + [""] * (widest - len(row)) for row in rows]
    if grid.columns:
        rows.insert(0, ["", *grid.columns])
    return [f"  {line}" if grid.rows[0].label else line for line in columns(rows)]


def _heat_map(grid: Grid, values: Sequence[float]) -> Html:
    finite = [float(value) for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    labelled = any(row.label for row in grid.rows)
    head = ["", *grid.columns] if labelled and grid.columns else list(grid.columns)
    lines: list[list[object]] = []
    for row in grid.rows:
        cells: list[object] = [html.header(row.label, "row")] if labelled else []
        cells += [_heat_cell(values[rank], low, high) for rank in row.ranks]
        lines.append(cells)
    return html.table(head, lines)


def _heat_cell(value: float, low: float, high: float) -> Html:
    style = "text-align: right; font-variant-numeric: tabular-nums"
    if math.isfinite(value) and high > low:
        # Translucent over the theme's own background, so that its text colour stays readable.
        strength = 0.06 + 0.5 * (float(value) - low) / (high - low)
        style += f"; background: rgba(25, 118, 210, {strength:.2f})"
    if not math.isfinite(value):
        return html.cell(html.toned(number_text(value), "bad"), style=style)
    return html.cell(number_text(value), style=style)
