"""The tasks of a simulation, and when each begins and ends. No I/O, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SimulatedTask:
    """One operation on the ranks of a mesh or slice, which run it at the same time.

    `nbytes`: what a rank reads and writes, or, of a collective, what it sends. `meta`: the values
    of `set_meta` around it, the outermost first.
    """

    operation: str
    ranks: tuple[int, ...]
    stream: str
    begin_s: float
    duration_s: float
    flops: int
    nbytes: float
    is_transfer: bool
    meta: tuple[Any, ...]


class SimulatedTimeline:
    """Clocks of the streams of each rank. A task begins when its ranks and its inputs are ready."""

    def __init__(self) -> None:
        self.tasks: list[SimulatedTask] = []
        self._clocks: dict[str, dict[int, float]] = {}

    def add(
        self, operation: str, ranks: Sequence[int], stream: str, ready_s: Iterable[float],
        duration_s: float, *, flops: int = 0, nbytes: float = 0, is_transfer: bool = False,
        meta: tuple[Any, ...] = (),
    ) -> float:  # fmt: skip
        """Append a task; returns the second at which it ends. `ready_s`: when its inputs are."""
        clocks = self._clocks.setdefault(stream, {})
        begin_s = max(0.0, *ready_s, *(clocks.get(rank, 0.0) for rank in ranks))
        end_s = begin_s + duration_s
        for rank in ranks:
            clocks[rank] = end_s
        self.tasks.append(
            SimulatedTask(
                operation, tuple(ranks), stream, begin_s, duration_s, flops, nbytes, is_transfer,
                meta,
            )
        )  # fmt: skip
        return end_s

    @property
    def end_s(self) -> float:
        """When the last task ends."""
        return max((task.begin_s + task.duration_s for task in self.tasks), default=0.0)


def trace_events(tasks: Sequence[SimulatedTask]) -> list[dict[str, Any]]:
    """The tasks in Chrome's trace event format: a process for each set of ranks."""
    places = {ranks: at for at, ranks in enumerate(dict.fromkeys(task.ranks for task in tasks))}
    streams = {name: at for at, name in enumerate(dict.fromkeys(task.stream for task in tasks))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": at, "args": {"name": _ranks_text(ranks)}}
        for ranks, at in places.items()
    ]
    for pid in places.values():
        events += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": at, "args": {"name": name}}
            for name, at in streams.items()
        ]
    for task in tasks:
        args = {"flops": task.flops, "bytes": task.nbytes, "meta": [str(one) for one in task.meta]}
        events.append(
            {
                "ph": "X",
                "name": task.operation,
                "cat": "collective" if task.is_transfer else "operation",
                "pid": places[task.ranks],
                "tid": streams[task.stream],
                "ts": task.begin_s * 1e6,
                "dur": task.duration_s * 1e6,
                "args": args,
            }
        )
    return events


def _ranks_text(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"
