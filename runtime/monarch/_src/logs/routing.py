"""What becomes of lines that ranks write, mesh by mesh: shown at once, later, or not. No I/O.

Invariants: every line comes out once, in the order in which its rank wrote it; one that is not to
be shown comes out too, marked as that. A line is held no longer than the window of its mesh.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from monarch._src.events import OutputLine


class Streaming(msgspec.Struct, frozen=True):
    """`shown`: whether lines reach the user's streams; `window_s`: for how long they are gathered.

    None: not at all, each goes on when it comes.
    """

    shown: bool = True
    window_s: float | None = None


PLAIN = Streaming()


class Streams:
    """The lines of all meshes of a process, on their way to who shows them."""

    def __init__(self) -> None:
        self._rules: dict[int, dict[int, Streaming]] = {}  # by mesh and rank
        self._held: dict[int, list[OutputLine]] = {}  # by mesh

    def set(self, mesh: int, ranks: Iterable[int], rule: Streaming) -> list[OutputLine]:
        """From now on; what was held of that mesh, which comes before what follows."""
        rules = self._rules.setdefault(mesh, {})
        for rank in ranks:
            rules[rank] = rule
        return self.due(mesh)

    def forget(self, mesh: int) -> list[OutputLine]:
        """That mesh is gone; the lines of it that were held."""
        self._rules.pop(mesh, None)
        return self._held.pop(mesh, [])

    def came(
        self, mesh: int, rank: int, lines: list[OutputLine]
    ) -> tuple[list[OutputLine], float | None]:
        """Lines of a rank came: those to hand on now, and in how long `due` has to be called."""
        rules = self._rules.get(mesh)
        rule = PLAIN if rules is None else rules.get(rank, PLAIN)
        if rule is PLAIN:
            return lines, None
        if not rule.shown:
            return [msgspec.structs.replace(line, shown=False) for line in lines], None
        if rule.window_s is None:
            return lines, None
        held = self._held.get(mesh)
        whole = [line for line in lines if line.whole]  # what is written over ends up in one
        if held is not None:
            held += whole
            return [], None
        if not whole:
            return [], None
        self._held[mesh] = whole
        return [], rule.window_s

    def due(self, mesh: int) -> list[OutputLine]:
        """The window of a mesh has ended: what was held."""
        return self._held.pop(mesh, [])

    def take_all(self) -> list[OutputLine]:
        """What is held of every mesh."""
        held, self._held = self._held, {}
        return [line for lines in held.values() for line in lines]
