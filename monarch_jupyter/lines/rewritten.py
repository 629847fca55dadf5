"""Lines that ranks still rewrite, such as progress bars: the last state of each rank. No I/O.

Invariants: a rank has at most one state for each stream; the state ends when the line is complete,
or with its cell if its rank has answered, and is then shown as any other line. A line that has
ended with its cell is not shown again when the rank completes it, unless it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from monarch.frontend import Fold, OutputFolder
from monarch.observe import OutputLine
from monarch_jupyter.rendering.lines import is_blank, reset_colours


class UnfinishedLines:
    """The unfinished lines of all ranks, by origin."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int, str], OutputLine] = {}
        self._ended: dict[tuple[str, int, str], OutputLine] = {}  # with their cells
        self._changed: set[int] = set()

    def add(self, lines: Iterable[OutputLine]) -> list[OutputLine]:
        """Add lines, complete or not, in the order in which they were written.

        Returns the complete ones that have not ended with their cells.
        """
        whole: list[OutputLine] = []
        for line in lines:
            key = (line.mesh_uid, line.rank, line.stream)
            ended = self._ended.get(key)
            if ended is not None and (ended.origin, ended.text) == (line.origin, line.text):
                if line.whole:
                    del self._ended[key]
                continue
            self._ended.pop(key, None)
            before = self._lines.pop(key, None)
            if before is not None:
                self._changed.add(before.origin)
            if line.whole:
                whole.append(line)
            else:
                self._lines[key] = line
                self._changed.add(line.origin)
        return whole

    def end_cells(self, has_ended: Callable[[int], bool]) -> list[OutputLine]:
        """End the lines of ended cells whose ranks have answered; returns them, complete.

        `has_ended` tells it of a cell by its number.
        """
        whole: list[OutputLine] = []
        for key, line in list(self._lines.items()):
            if not (line.answered and has_ended(line.origin)):
                continue
            del self._lines[key]
            self._changed.add(line.origin)
            if not is_blank(line.text):
                self._ended[key] = line
                whole.append(_as_whole(line))
        return whole

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
        mine = [
            line for line in self._lines.values()
            if line.origin == origin and not is_blank(line.text)
        ]  # fmt: skip
        mine.sort(key=lambda line: (line.mesh_uid, line.rank, line.stream))
        folder.add(mine)
        folds = folder.take_all()
        for fold in folds:
            fold.text = reset_colours(fold.text)
        return folds


def _as_whole(line: OutputLine) -> OutputLine:
    return OutputLine(
        line.mesh, line.mesh_uid, line.rank, line.point, line.stream, line.text, line.origin
    )
