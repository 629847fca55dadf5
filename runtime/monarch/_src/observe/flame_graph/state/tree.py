"""The tree of a flame graph, and its picture as SVG. No I/O.

Each node is a function, called by the functions above it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from xml.sax.saxutils import escape

from monarch._src.observe.flame_graph.state.samples import WAITS, is_called
from monarch._src.observe.stacks.state.grouping import places
from monarch._src.wire.messages import MeshSamples, StackFrame

Ranks = dict[tuple[int, int], int]  # samples by mesh and rank
NameFile: TypeAlias = "Callable[[str], str]"
MOST_ROWS = 12
_UNEVEN = 1.5  # times the mean of all ranks
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


def file_name(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def label_of(frame: StackFrame, name_file: NameFile = file_name) -> str:
    """`Trainer.step (train.py:12)`. `name_file` gives the name that is shown for a path."""
    if not frame.filename:
        return frame.name
    where = name_file(frame.filename)
    return f"{frame.name} ({where}:{frame.line})" if frame.line else f"{frame.name} ({where})"


@dataclass
class Node:
    """A function as it was called from the functions above it.

    `samples`: in how many samples of any rank it was on the stack. `own`: those in which it was the
    innermost.
    """

    frame: StackFrame
    samples: int = 0
    own: int = 0
    by_rank: Ranks = field(default_factory=dict[tuple[int, int], int])
    children: dict[StackFrame, Node] = field(default_factory=dict[StackFrame, "Node"])

    def add(self, rank: tuple[int, int], count: int) -> None:
        """Enter samples of a rank of a mesh."""
        self.samples += count
        self.by_rank[rank] = self.by_rank.get(rank, 0) + count

    def child(self, frame: StackFrame) -> Node:
        """The node of a function that this one has called; made if it is new."""
        found = self.children.get(frame)
        if found is None:
            found = self.children[frame] = Node(frame)
        return found


class Tree:
    """The samples of some meshes as one tree."""

    def __init__(self, meshes: Sequence[MeshSamples]) -> None:
        self.ranks: Ranks = {(one.mesh, rank): 0 for one in meshes for rank in one.ranks}
        self.unread = [
            f"{one.name} {places(one, [rank])}: {why}" for one in meshes for rank, why in one.unread
        ]
        self._meshes = {one.mesh: one for one in meshes}
        self.root = Node(StackFrame(self._title(), "", 0))
        for mesh in meshes:
            for stack in mesh.stacks:
                self._add(mesh, [mesh.frames[at] for at in stack.frames], stack.counts)

    def _title(self) -> str:
        ranks = f"{len(self.ranks)} rank{'s' * (len(self.ranks) != 1)}"
        names = ", ".join(dict.fromkeys(one.name for one in self._meshes.values()))
        return f"{names}, {ranks}" if names else ranks

    def _add(
        self, mesh: MeshSamples, frames: list[StackFrame], counts: list[tuple[int, int]]
    ) -> None:
        if len(self._meshes) > 1:
            frames = [StackFrame(mesh.name, "", 0), *frames]
        for rank, count in counts:
            node = self.root
            node.add((mesh.mesh, rank), count)
            for frame in frames:
                node = node.child(frame)
                node.add((mesh.mesh, rank), count)
            node.own += count

    def unevenness(self, node: Node) -> float:
        """The most samples that a rank has in this node, by the mean of all ranks."""
        if not node.samples:
            return 1.0
        return max(node.by_rank.values()) * len(self.ranks) / node.samples

    def ranks_text(self, node: Node) -> str:
        """`all ranks alike`, or the ranks that have most of the samples."""
        if self.unevenness(node) <= _UNEVEN:
            return "all ranks alike"
        mean = node.samples / len(self.ranks)
        most = [rank for rank, count in node.by_rank.items() if count > _UNEVEN * mean]
        by_mesh: dict[int, list[int]] = {}
        for mesh, rank in most:
            by_mesh.setdefault(mesh, []).append(rank)
        parts = [places(self._meshes[mesh], ranks) for mesh, ranks in by_mesh.items()]
        return f"most in {', '.join(parts)}"

    def _ranks(self, node: Node) -> str:
        return f", {self.ranks_text(node)}" if len(self.ranks) > 1 else ""

    def functions(self) -> list[Node]:
        """Each function once, that with the most samples of its own first.

        Functions of C and of the standard library are left out: their samples are those of the
        function that called them. A recursive function has the samples of its outermost call.
        """
        found: dict[StackFrame, Node] = {}
        waiting: list[tuple[Node, StackFrame | None, frozenset[StackFrame]]] = [
            (self.root, None, frozenset())
        ]
        while waiting:
            node, caller, above = waiting.pop()
            if node is not self.root and (caller is None or not is_called(node.frame)):
                caller = node.frame
                if caller not in above:
                    whole = found.setdefault(caller, Node(caller))
                    for rank, count in node.by_rank.items():
                        whole.add(rank, count)
                    above |= {caller}
            if caller is not None:
                found[caller].own += node.own
            waiting.extend((child, caller, above) for child in node.children.values())
        return sorted(found.values(), key=lambda one: (-one.own, -one.samples, one.frame.name))

    def folded(self) -> str:
        """A line for each stack, as flamegraph.pl and speedscope read them."""
        lines: list[str] = []
        waiting: list[tuple[Node, str]] = [(self.root, "")]
        while waiting:
            node, above = waiting.pop()
            if node.own:
                lines.append(f"{above} {node.own}")
            for child in node.children.values():
                label = label_of(child.frame).replace(";", ",")
                waiting.append((child, f"{above};{label}" if above else label))
        return "\n".join(sorted(lines)) + "\n" if lines else ""

    def text(self, name_file: NameFile = file_name) -> str:
        """The functions with the most samples of their own, a line each."""
        lines = [self.root.frame.name]
        whole = self.root.samples
        rows = [one for one in self.functions() if one.own][:MOST_ROWS]
        if whole and rows:
            lines.append("  self  total  function")
            lines += [
                f"{_percent(one.own, whole)}  {_percent(one.samples, whole)}  "
                f"{label_of(one.frame, name_file)}{self._ranks(one)}"
                for one in rows
            ]
        elif self.ranks:
            lines.append("no samples")
        return "\n".join([*lines, *self.unread])


def _percent(count: int, whole: int) -> str:
    return f"{100 * count / whole:5.1f}%"


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
