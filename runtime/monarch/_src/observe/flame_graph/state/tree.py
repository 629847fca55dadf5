"""The tree of a flame graph: each node is a function, called by the functions above it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from monarch._src.observe.flame_graph.state.samples import is_called
from monarch._src.observe.stacks.state.grouping import places
from monarch._src.wire.messages import MeshSamples, StackFrame

Ranks = dict[tuple[int, int], int]  # samples by mesh and rank
NameFile: TypeAlias = "Callable[[str], str]"
MOST_ROWS = 12
_UNEVEN = 1.5  # times the mean of all ranks


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
