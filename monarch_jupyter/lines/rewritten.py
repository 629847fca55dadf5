"""Lines that ranks still rewrite, such as progress bars: the last state of each rank. No I/O.

Invariants: a rank has at most one state for each stream; the state ends when the line is complete
and is then shown as any other line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch.observe import Fold, OutputFolder
from monarch_jupyter.rendering.lines import reset_colours

if TYPE_CHECKING:
    from monarch.observe import OutputLine


class UnfinishedLines:
    """The unfinished lines of all ranks, by origin."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int, str], OutputLine] = {}
        self._changed: set[int] = set()

    def add(self, lines: Iterable[OutputLine]) -> None:
        """Add lines, complete or not, in the order in which they were written."""
        for line in lines:
            key = (line.mesh_uid, line.rank, line.stream)
            before = self._lines.pop(key, None)
            if before is not None:
                self._changed.add(before.origin)
            if not line.whole:
                self._lines[key] = line
                self._changed.add(line.origin)

    def end(self, meshes: Iterable[str]) -> None:
        """Drop the states of all meshes but these live ones."""
        live = set(meshes)
        for key in [key for key in self._lines if key[0] not in live]:
            self._changed.add(self._lines.pop(key).origin)

    @property
    def changed(self) -> bool:
        """Whether `take_changed` would have anything."""
        return bool(self._changed)

    def take_changed(self) -> dict[int, list[Fold]]:
        """For each origin that has changed, its unfinished lines now."""
        changed, self._changed = self._changed, set()
        return {origin: self._folds(origin) for origin in sorted(changed)}

    def _folds(self, origin: int) -> list[Fold]:
        folder = OutputFolder()
        mine = [line for line in self._lines.values() if line.origin == origin]
        mine.sort(key=lambda line: (line.mesh_uid, line.rank, line.stream))
        folder.add(mine)
        folds = folder.take_all()
        for fold in folds:
            fold.text = reset_colours(fold.text)
        return folds
