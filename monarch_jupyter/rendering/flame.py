"""A flame graph in the notebook: the picture, and the functions with the most samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.source_lines import CellNames, file_text

if TYPE_CHECKING:
    from monarch.observe import FlameGraph

WIDTH = 1000


def flame_text(graph: FlameGraph, cell_names: CellNames) -> str:
    """The functions with the most samples of their own, a line each."""
    return graph.text(lambda path: _name(path, cell_names))


def flame_html(graph: FlameGraph, cell_names: CellNames) -> Html:
    """The picture; the same functions are one click away."""
    text = flame_text(graph, cell_names)
    if not graph.samples:
        return html.card(html.block(text))
    head, _, rows = text.partition("\n")
    picture = graph.svg(WIDTH, lambda path: _name(path, cell_names))
    return html.card(
        html.element("div", head),
        html.element("div", Html(picture), style="overflow-x: auto"),
        html.details("The functions with the most samples", html.block(rows)),
    )


def _name(path: str, cell_names: CellNames) -> str:
    return file_text(path, cell_names).removeprefix("File ").rpartition("/")[2]
