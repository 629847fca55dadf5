"""The maps of this process that are under way, for front ends to show as progress.

Runs in: any process, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class OpenMap:
    """One map of a `ProcMesh`. `number` grows from map to map, and with the numbers of calls.

    `done` of `total` items are done; `total` is None if it is not known. `late` has the points of
    the ranks that still work, once no item is left to hand out. `calls` are the numbers of its
    calls. `awaited`: a thread waits for its results at this moment. `progress`: whether it is to be
    shown as a bar.
    """

    number: int
    function: str
    mesh: str
    mesh_uid: str
    done: int
    total: int | None
    late: tuple[dict[str, int], ...]
    calls: frozenset[int]
    awaited: bool
    progress: bool


class RunningMap(Protocol):
    """A map that can describe itself."""

    def described(self) -> OpenMap:
        """Its present state. Any thread."""
        ...


_running: dict[int, RunningMap] = {}


def add(number: int, running: RunningMap) -> None:
    """A map has begun."""
    _running[number] = running


def remove(number: int) -> None:
    """A map has ended. Idempotent."""
    _running.pop(number, None)


def open_maps() -> Sequence[OpenMap]:
    """The maps of this process that have not ended, oldest first."""
    return [running.described() for running in list(_running.values())]
