"""Paused threads as data and as a table. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, overload

from monarch._src.debug.rank_selection import Selection
from monarch._src.failures.report import at_text
from monarch._src.observe.stacks.state.grouping import places
from monarch._src.shape import Extent
from monarch._src.wire.messages import PausedMesh, PausedRank
from monarch._src.wire.messages.debugger import RUNNING, STEPPING, STOPPED

State = Literal["paused", "runs a command", "steps", "runs"]
_STATES: dict[int, State] = {STOPPED: "paused", STEPPING: "steps", RUNNING: "runs"}
NOTHING = "nothing waits at a breakpoint"


@dataclass(frozen=True)
class WaitingRank:
    """One thread of a rank that is paused, or runs to its next stop.

    `rank` and `point` give its place in the mesh of procs, `actor_rank` and `actor_point` in the
    mesh of actors (the same for code outside of actors). `why` is `breakpoint`, `step`, `break` or
    the exception that was raised. `holder` is the console attached to it. `since_s` is the time in
    seconds since it stopped.
    """

    mesh: str
    mesh_uid: str
    rank: int
    point: dict[str, int]
    sizes: dict[str, int]
    session: int
    actor: str
    actor_class: str
    endpoint: str
    actor_rank: int
    actor_point: dict[str, int]
    actor_sizes: dict[str, int]
    function: str
    filename: str
    line: int
    code: str
    thread: str
    why: str
    state: State
    since_s: float
    holder: str

    @property
    def name(self) -> str:
        """`workers[gpus=3]`."""
        return f"{self.mesh}{at_text(self.point)}"

    @property
    def where(self) -> str:
        """`Trainer.step (train.py:12)`."""
        return f"{self.function} ({PurePath(self.filename).name}:{self.line})"

    def is_in(self, selection: Selection) -> bool:
        """Whether the selection contains it, by the name of its mesh or of its actor.

        Raises:
            DebugError: the name matches, but the mesh does not have a selected dim.
        """
        name = selection.name
        if name in ("", self.mesh):
            return selection.takes(self.point, self.sizes, self.rank)
        if name in (self.actor, self.actor_class):
            return selection.takes(self.actor_point, self.actor_sizes, self.actor_rank)
        return False

    def __str__(self) -> str:
        thread = f", thread {self.thread}" if self.thread else ""
        return f"{self.name} in {self.where}{thread}: {self.why}"


class WaitingRanks(Sequence[WaitingRank]):
    """Paused threads by mesh and rank. `str()` shows threads at the same place together.

    `keeps_failures`: whether endpoints that raise are paused too (`post_mortem`).
    """

    def __init__(self, meshes: Iterable[PausedMesh], keeps_failures: bool = False) -> None:
        self._meshes = tuple(meshes)
        self._ranks = tuple(_waiting(mesh, rank) for mesh in self._meshes for rank in mesh.ranks)
        self.keeps_failures = keeps_failures

    @overload
    def __getitem__(self, index: int) -> WaitingRank: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[WaitingRank, ...]: ...
    def __getitem__(self, index: int | slice) -> WaitingRank | tuple[WaitingRank, ...]:
        return self._ranks[index]

    def __len__(self) -> int:
        return len(self._ranks)

    def only(self, wanted: Callable[[WaitingRank], bool]) -> WaitingRanks:
        """The threads for which `wanted` returns True."""
        made = WaitingRanks(self._meshes, self.keeps_failures)
        made._ranks = tuple(one for one in self._ranks if wanted(one))
        return made

    def groups(self) -> list[tuple[str, tuple[WaitingRank, ...]]]:
        """Threads grouped by mesh and place, each group with its name; the largest first."""
        found: dict[tuple[object, ...], list[WaitingRank]] = {}
        for rank in self._ranks:
            key = (
                rank.mesh_uid, rank.actor, rank.function, rank.filename, rank.line, rank.thread,
                rank.why, rank.state, rank.holder,
            )  # fmt: skip
            found.setdefault(key, []).append(rank)
        by_uid = {f"{mesh.mesh:x}": mesh for mesh in self._meshes}
        named = [
            (_named(by_uid[ranks[0].mesh_uid], [one.rank for one in ranks]), tuple(ranks))
            for ranks in found.values()
        ]
        return sorted(named, key=lambda one: -len(one[1]))

    def __str__(self) -> str:
        if not self._ranks:
            return NOTHING
        rows = [("ranks", "actor", "in", "line", "for", "")]
        for name, ranks in self.groups():
            first = ranks[0]
            line = f"{PurePath(first.filename).name}:{first.line}  {first.code}".rstrip()
            notes = [first.why if first.why != "breakpoint" else ""]
            notes += [first.state if first.state != "paused" else ""]
            notes += [f"thread {first.thread}" if first.thread else ""]
            notes += [f"held by {first.holder}" if first.holder else ""]
            since = max(one.since_s for one in ranks)
            rows.append((
                name, first.actor or "-", first.function, line, f"{since:.0f}s",
                ", ".join(filter(None, notes)),
            ))  # fmt: skip
        widths = [max(len(row[at]) for row in rows) for at in range(5)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)),
                       row[5]]).rstrip()
            for row in rows
        )  # fmt: skip

    __repr__ = __str__


def _named(mesh: PausedMesh, ranks: Sequence[int]) -> str:
    where = places(mesh, ranks)
    return f"{mesh.name}[{where}]" if mesh.labels else mesh.name


def _waiting(mesh: PausedMesh, rank: PausedRank) -> WaitingRank:
    at = rank.at
    extent = Extent(mesh.labels, mesh.sizes)
    point = dict(extent.point_of_rank(rank.rank))
    sizes = dict(zip(mesh.labels, mesh.sizes, strict=True))
    own = Extent(at.labels, at.sizes) if at.actor else extent
    own_rank = at.rank if at.actor else rank.rank
    return WaitingRank(
        mesh.name, f"{mesh.mesh:x}", rank.rank, point, sizes, rank.session, at.actor,
        at.actor_class, at.endpoint, own_rank, dict(own.point_of_rank(own_rank)),
        dict(zip(own.labels, own.sizes, strict=True)), at.function, at.filename, at.line, at.code,
        at.thread, at.why, "runs a command" if rank.commanded else _STATES[rank.state],
        rank.since_s, rank.holder,
    )  # fmt: skip
