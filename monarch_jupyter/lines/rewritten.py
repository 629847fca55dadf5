"""Lines that are still written over, progress bars for one: the last state of each rank. No I/O.

Invariants: a rank has one state for each stream; it is gone as soon as the line is whole, which is
then shown as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_jupyter.lines.folding import Fold, OutputFolder
from monarch_jupyter.rendering.lines import reset_colours

if TYPE_CHECKING:
    from monarch.observe import OutputLine


class UnfinishedLines:
    """What is to be seen of them, by origin."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int, str], OutputLine] = {}
        self._changed: set[int] = set()

    def add(self, lines: Iterable[OutputLine]) -> None:
        """Take in lines, whole ones and others, in the order in which they were written."""
        for line in lines:
            key = (line.mesh_uid, line.rank, line.stream)
            before = self._lines.pop(key, None)
            if before is not None:
                self._changed.add(before.origin)
            if not line.whole:
                self._lines[key] = line
                self._changed.add(line.origin)

    def end(self, meshes: Iterable[str]) -> None:
        """Of other meshes than these nothing will come any more: their last states are final."""
        live = set(meshes)
        for key in [key for key in self._lines if key[0] not in live]:
            self._changed.add(self._lines.pop(key).origin)

    @property
    def changed(self) -> bool:
        """Whether `take_changed` would have anything."""
        return bool(self._changed)

    def take_changed(self) -> dict[int, list[Fold]]:
        """For each origin of which something has changed, all that is to be seen now."""
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
