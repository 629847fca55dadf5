"""Folds equal lines of several ranks into one. No I/O.

Invariants: every line that goes in comes out exactly once, in one fold; each rank's lines come out
in the order it wrote them; only lines of one mesh, one stream and one origin with exactly the same
text share a fold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol


class FoldedLine(Protocol):
    """The attributes of a line that decide its fold, as those of `OutputLine`."""

    @property
    def mesh(self) -> str: ...
    @property
    def mesh_uid(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def point(self) -> dict[str, int]: ...
    @property
    def stream(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def origin(self) -> int: ...


@dataclass
class Fold:
    """One text, and the points of the ranks that wrote it."""

    mesh: str
    mesh_uid: str
    stream: str
    text: str
    origin: int = 0
    points: list[dict[str, int]] = field(default_factory=list[dict[str, int]])


class OutputFolder:
    """Holds lines for a moment, so that the same line of other ranks can join."""

    def __init__(self) -> None:
        self._folds: deque[Fold] = deque()
        self._first = 0  # number of the fold at the left end; numbers never repeat
        # By text: ascending fold numbers.
        self._numbers: dict[tuple[str, str, str, int], list[int]] = {}
        self._newest: dict[tuple[str, int], int] = {}  # by rank: the last fold it wrote to

    def __len__(self) -> int:
        return len(self._folds)

    def add(self, lines: Iterable[FoldedLine]) -> None:
        """Take lines in; those of one rank in the order it wrote them."""
        for line in lines:
            self._add(line)

    def _add(self, line: FoldedLine) -> None:
        key = (line.mesh_uid, line.stream, line.text, line.origin)
        rank = (line.mesh_uid, line.rank)
        numbers = self._numbers.setdefault(key, [])
        # Joining a fold at or before the rank's last one would reorder or repeat what the rank
        # wrote.
        place = bisect_right(numbers, self._newest.get(rank, -1))
        if place == len(numbers):
            numbers.append(self._first + len(self._folds))
            self._folds.append(Fold(line.mesh, line.mesh_uid, line.stream, line.text, line.origin))
        number = numbers[place]
        self._folds[number - self._first].points.append(line.point)
        self._newest[rank] = number

    def take_complete(self, ranks_of: Callable[[str], int | None]) -> list[Fold]:
        """Folds at the front that every rank of their mesh has joined: waiting gains nothing.

        `ranks_of` gives the number of ranks of a mesh by its uid, or None where that is not known.
        """
        taken: list[Fold] = []
        while self._folds and len(self._folds[0].points) == ranks_of(self._folds[0].mesh_uid):
            fold = self._folds.popleft()
            self._first += 1
            key = (fold.mesh_uid, fold.stream, fold.text, fold.origin)
            self._numbers[key].pop(0)
            if not self._numbers[key]:
                del self._numbers[key]
            taken.append(fold)
        return taken

    def take_all(self) -> list[Fold]:
        """Everything held, in order; lines that single ranks wrote side by side by rank."""
        taken = by_rank(self._folds)
        self._first += len(taken)
        self._folds.clear()
        self._numbers.clear()
        self._newest.clear()
        return taken


def by_rank(folds: Iterable[Fold]) -> list[Fold]:
    """The folds with each stretch of lines that only one rank wrote sorted by mesh and rank.

    Ranks that write at the same time have no order; sorted lines are easier to read.
    """
    meshes: dict[str, int] = {}  # in the order of their first lines
    taken: list[Fold] = []
    stretch: list[tuple[tuple[int, tuple[int, ...]], Fold]] = []

    def end_stretch() -> None:
        # A stable sort: the lines of a rank keep their order.
        taken.extend(fold for _, fold in sorted(stretch, key=lambda pair: pair[0]))
        stretch.clear()

    for fold in folds:
        if len(fold.points) == 1:
            mesh = meshes.setdefault(fold.mesh_uid, len(meshes))
            stretch.append(((mesh, tuple(fold.points[0].values())), fold))
        else:
            end_stretch()
            taken.append(fold)
    end_stretch()
    return taken


def timed_folds(lines: Iterable[tuple[FoldedLine, float]]) -> list[tuple[Fold, list[float]]]:
    """The folds of lines that have times; each with the times of its lines, in their order."""
    folder = OutputFolder()
    times: dict[tuple[str, tuple[tuple[str, int], ...]], deque[float]] = {}  # by rank
    for line, at in lines:
        times.setdefault((line.mesh_uid, tuple(line.point.items())), deque()).append(at)
        folder.add([line])
    # The folder keeps the order of each rank's lines, so their times stay in order too.
    return [
        (fold, [times[fold.mesh_uid, tuple(one.items())].popleft() for one in fold.points])
        for fold in folder.take_all()
    ]
