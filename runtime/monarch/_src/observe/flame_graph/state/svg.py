"""A flame graph as an SVG picture. No I/O.

Each function is a bar below the bar of the function that called it, as wide as its share of the
samples. The picture needs no script: the figures of a bar are in its tooltip. Its colour says
whether all ranks spend alike there.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from monarch._src.observe.flame_graph.state.samples import WAITS
from monarch._src.observe.flame_graph.state.tree import NameFile, Node, Tree, file_name, label_of

ROW = 18
LEAST_WIDTH = 0.5
MOST_DEPTH = 200
_CHARACTER = 6.4
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Up to this many times the mean of all ranks, and the colour.
_COLOURS = ((1.5, "#a9cbe8"), (3.0, "#f5d08a"), (float("inf"), "#f2a07b"))
_WAITING = "#dcdcdc"
_DARK, _PAGE = "#1b1b1b", "currentColor"  # text on bars, and below them
_LEGEND = (
    (_COLOURS[0][1], "all ranks alike"),
    (_COLOURS[1][1], "some ranks have more than their share"),
    (_COLOURS[2][1], "few ranks"),
    (_WAITING, WAITS.name),
)


def svg(tree: Tree, width: int, name_file: NameFile = file_name) -> str:
    """The picture, `width` pixels wide. `name_file` gives the name that is shown for a path."""
    bars: list[str] = []
    depth = _draw(tree, float(width), bars, name_file)
    bottom = (depth + 1) * ROW
    footer = [_legend(bottom + ROW)]
    for at, text in enumerate(tree.unread[:MOST_DEPTH]):
        footer.append(_text(4, bottom + (at + 2) * ROW + 12, text, _PAGE))
    height = bottom + (len(tree.unread[:MOST_DEPTH]) + 3) * ROW
    title = _xml(f"Flame graph of {tree.root.frame.name}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="sans-serif" font-size="11">'
        f"<title>{title}</title>"
        f"{''.join(bars)}{''.join(footer)}</svg>\n"
    )


def _draw(tree: Tree, width: float, bars: list[str], name_file: NameFile) -> int:
    """Add all bars that are wide enough; returns the depth of the deepest."""
    whole = tree.root.samples
    deepest = 0
    waiting: list[tuple[Node, float, int]] = [(tree.root, 0.0, 0)]
    while waiting:
        node, left, depth = waiting.pop()
        share = node.samples / whole if whole else 1.0
        if share * width < LEAST_WIDTH or depth > MOST_DEPTH:
            continue
        deepest = max(deepest, depth)
        bars.append(_bar(tree, node, left, depth * ROW, share * width, name_file))
        for child in sorted(node.children.values(), key=lambda one: label_of(one.frame)):
            waiting.append((child, left, depth + 1))
            left += child.samples / whole * width
    return deepest


def _bar(tree: Tree, node: Node, left: float, top: int, width: float, name_file: NameFile) -> str:
    whole = tree.root.samples
    label = label_of(node.frame, name_file)
    share = f"{100 * node.samples / whole:.1f}% of the samples" if whole else "no samples"
    own = f", {100 * node.own / whole:.1f}% in itself" if whole and node.own else ""
    ranks = f", {tree.ranks_text(node)}" if len(tree.ranks) > 1 else ""
    path = f"\n{node.frame.filename}" if node.frame.filename else ""
    tip = _xml(f"{label}: {share}{own}{ranks}{path}")
    room = int((width - 6) / _CHARACTER)
    shown = label if len(label) <= room else f"{label[: room - 1]}…" if room >= 4 else ""
    text = _text(left + 3, top + 12, shown, _DARK) if shown else ""
    drawn = max(width - 0.5, 0.3)
    return (
        f'<g><title>{tip}</title><rect x="{left:.1f}" y="{top}" width="{drawn:.1f}" '
        f'height="{ROW - 1}" rx="2" fill="{_colour(tree, node)}"/>{text}</g>'
    )


def _colour(tree: Tree, node: Node) -> str:
    if node.frame == WAITS:
        return _WAITING
    uneven = tree.unevenness(node)
    return next(colour for limit, colour in _COLOURS if uneven <= limit)


def _legend(top: int) -> str:
    parts: list[str] = []
    left = 4.0
    for colour, text in _LEGEND:
        parts.append(f'<rect x="{left:.0f}" y="{top + 3}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(left + 14, top + 12, text, _PAGE))
        left += 30 + len(text) * _CHARACTER
    return "".join(parts)


def _text(left: float, top: int, text: str, colour: str) -> str:
    return f'<text x="{left:.1f}" y="{top}" fill="{colour}">{_xml(text)}</text>'


def _xml(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))
