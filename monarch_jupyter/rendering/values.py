"""What a call answered: one value a rank. No I/O.

Numbers are a heat map over the mesh's dims, tensors a summary, everything else a list in which
ranks with the same text share a line.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeGuard, runtime_checkable

from monarch_jupyter.rank_names import name_ranks
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.layout import Grid, grid_of, point_of
from monarch_jupyter.rendering.words import columns, extent_text

MOST_CELLS = 1024
LONGEST_SHOWN = 400
"""Characters of one value that are shown without a click."""


@runtime_checkable
class TensorLike(Protocol):
    """What torch, numpy and their kin have in common."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...


def values_text(sizes: Mapping[str, int], values: Sequence[object]) -> str:
    """The values of a mesh with these dims, in rank order, as text."""
    head = f"ValueMesh {extent_text(sizes)}"
    if all_numbers(values) and 1 < len(values) <= MOST_CELLS:
        return "\n".join([head, *_number_lines(grid_of(sizes), values)])
    rows = [[ranks or "value", shown] for ranks, shown in _folded(sizes, values)]
    if any("\n" in shown for _, shown in rows):
        blocks = [f"  {ranks}\n{_indented(shown)}" for ranks, shown in rows]
        return "\n".join([head, *blocks])
    return "\n".join([head, *(f"  {line}" for line in columns(rows))])


def values_html(sizes: Mapping[str, int], values: Sequence[object]) -> Html:
    """The values of a mesh with these dims, in rank order, as static HTML."""
    head = html.element("div", "ValueMesh ", html.code(extent_text(sizes)))
    if all_numbers(values) and 1 < len(values) <= MOST_CELLS:
        return html.card(head, _heat_map(grid_of(sizes), values))
    rows = [
        [html.header(ranks or "value", "row"), _shown(text)]
        for ranks, text in _folded(sizes, values)
    ]
    return html.card(head, html.table((), rows))


def all_numbers(values: Sequence[object]) -> TypeGuard[Sequence[float]]:
    """Whether every value is a real number (a truth value is none)."""
    return all(not isinstance(v, bool) and isinstance(v, numbers.Real) for v in values)


def number_text(value: float) -> str:
    """A number as short as it can be said with four digits; whole ones in full."""
    return str(int(value)) if isinstance(value, numbers.Integral) else f"{float(value):.4g}"


def value_text(value: object) -> str:
    """A value in words: a tensor's kind and shape, anything else's repr."""
    if isinstance(value, TensorLike) and not isinstance(value, numbers.Number):
        return _tensor_text(value)
    return repr(value)


def _tensor_text(tensor: TensorLike) -> str:
    kind = f"{type(tensor).__name__} {tensor.dtype} {list(tensor.shape)}"
    device = getattr(tensor, "device", None)
    where = f" on {device}" if device is not None and str(device) != "cpu" else ""
    # One element says more than its shape.
    item = getattr(tensor, "item", None)
    if math.prod(tensor.shape) == 1 and callable(item) and not where:
        return f"{kind} = {item()!r}"
    return kind + where


def _folded(sizes: Mapping[str, int], values: Sequence[object]) -> list[tuple[str, str]]:
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(value_text(value), []).append(rank)
    return [
        (name_ranks(point_of(rank, sizes) for rank in ranks), shown)
        for shown, ranks in groups.items()
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
    return html.cell(number_text(value), style=style)
