"""Decide for each mesh whether lines of its ranks are shown at once, later, or not. No I/O.

Invariants: every line is returned once, in the order in which its rank wrote it; a line that is not
to be shown is returned too, marked as such. A line is held no longer than the window of its mesh.
Of the states of an unfinished line, those that later ones replace within a window are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from monarch._src.events import OutputLine


class Streaming(msgspec.Struct, frozen=True):
    """`shown`: whether lines reach the user's streams; `window_s`: how long they are collected.

    `window_s` None: lines are passed on at once.
    """

    shown: bool = True
    window_s: float | None = None


PLAIN = Streaming()


class _Held(msgspec.Struct):
    """Whole lines, and by rank and stream the last state of a line whose rank has answered."""

    lines: list[OutputLine] = msgspec.field(default_factory=list[OutputLine])
    states: dict[tuple[int, str], OutputLine] = msgspec.field(
        default_factory=dict[tuple[int, str], OutputLine]
    )

    def add(self, lines: Iterable[OutputLine]) -> None:
        for line in lines:
            place = (line.rank, line.stream)
            self.states.pop(place, None)
            if line.whole:
                self.lines.append(line)
            elif line.answered:
                self.states[place] = line

    def all(self) -> list[OutputLine]:
        return [*self.lines, *self.states.values()]


class Streams:
    """Routes the output lines of all meshes of a process."""

    def __init__(self) -> None:
        self._rules: dict[int, dict[int, Streaming]] = {}  # by mesh and rank
        self._held: dict[int, _Held] = {}  # by mesh

    def set(self, mesh: int, ranks: Iterable[int], rule: Streaming) -> list[OutputLine]:
        """Set the rule of these ranks; return the lines held so far, to be shown first."""
        rules = self._rules.setdefault(mesh, {})
        for rank in ranks:
            rules[rank] = rule
        return self.due(mesh)

    def forget(self, mesh: int) -> list[OutputLine]:
        """Drop a mesh that has ended; return its held lines."""
        self._rules.pop(mesh, None)
        return self.due(mesh)

    def on_lines(
        self, mesh: int, rank: int, lines: list[OutputLine]
    ) -> tuple[list[OutputLine], float | None]:
        """A rank has written lines.

        Returns the lines to show now, and in how many seconds to call `due` (None: not).
        """
        rules = self._rules.get(mesh)
        rule = PLAIN if rules is None else rules.get(rank, PLAIN)
        if rule is PLAIN:
            return lines, None
        if not rule.shown:
            return [msgspec.structs.replace(line, shown=False) for line in lines], None
        if rule.window_s is None:
            return lines, None
        held = self._held.get(mesh)
        if held is not None:
            held.add(lines)
            return [], None
        if not any(line.whole or line.answered for line in lines):
            return [], None
        self._held[mesh] = _Held()
        self._held[mesh].add(lines)
        return [], rule.window_s

    def due(self, mesh: int) -> list[OutputLine]:
        """The window of a mesh has ended: return its held lines."""
        held = self._held.pop(mesh, None)
        return [] if held is None else held.all()

    def take_all(self) -> list[OutputLine]:
        """Return the held lines of all meshes."""
        held, self._held = self._held, {}
        return [line for one in held.values() for line in one.all()]
