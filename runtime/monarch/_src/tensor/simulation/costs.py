"""The costs of a simulated program: its tasks in time, and its memory. No I/O, no torch.

The times of operations are bounds from the data sheet of a machine.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Machine:
    """The figures of each rank's device. The defaults are those of NVIDIA's H100 SXM data sheet.

    An operation takes as long as its arithmetic, or as its bytes, whichever is longer. So the times
    are lower bounds: real ones depend on kernels, shapes and the network.
    """

    flops_per_s: float = 989e12
    """Floating-point operations; of dense matrices in bfloat16."""
    memory_bytes_per_s: float = 3.35e12
    link_bytes_per_s: float = 450e9
    """Between two ranks, in each direction; of NVLink. A network between hosts has less."""
    least_s: float = 2e-6
    """The shortest time of an operation: that of a kernel that does nothing."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "least_s" else 1e-300
            if not isinstance(value, (int, float)) or not least <= value < float("inf"):
                raise ValueError(f"Machine({name}={value!r}): give a finite number above 0")

    def operation_s(self, flops: int, nbytes: int) -> float:
        """The time of an operation that reads and writes that many bytes in all."""
        return max(flops / self.flops_per_s, nbytes / self.memory_bytes_per_s, self.least_s)

    def transfer_s(self, nbytes: float) -> float:
        """The time in which a rank sends that many bytes."""
        return max(nbytes / self.link_bytes_per_s, self.least_s)


def sent_bytes(nbytes: int, ranks: int, reduction: str, scatter: bool) -> float:
    """What each rank sends in a reduce of a tensor of `nbytes`, by the algorithms of a ring."""
    others = ranks - 1
    if reduction == "stack":
        return nbytes * others / ranks if scatter else float(nbytes * others)
    return (1 if scatter else 2) * nbytes * others / ranks


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


class StorageUse:
    """The memory of some tensors, freed with the last of them. `ready_s`: when it is written."""

    __slots__ = ("nbytes", "ranks", "ready_s", "tensors")

    def __init__(self, nbytes: int, ranks: Sequence[int]) -> None:
        self.nbytes = nbytes
        self.ranks = ranks
        self.tensors = 0
        self.ready_s = 0.0


class MemoryUse:
    """Follows tensors without values from their making until they are freed."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}  # bytes by rank
        self.peak: dict[int, int] = {}
        self._storages: dict[int, StorageUse] = {}  # by the address of torch's storage

    def storage_of(self, tensor: Any) -> StorageUse | None:
        """The storage of a tensor that is followed."""
        return self._storages.get(tensor.untyped_storage()._cdata)

    def follow(self, tensor: Any, ranks: Sequence[int]) -> StorageUse:
        """Count a new tensor on these ranks; one that shares memory takes none of its own."""
        address = tensor.untyped_storage()._cdata
        found = self._storages.get(address)
        if found is None:
            found = self._storages[address] = StorageUse(tensor.untyped_storage().nbytes(), ranks)
            for rank in ranks:
                now = self.live[rank] = self.live.get(rank, 0) + found.nbytes
                if now > self.peak.get(rank, 0):
                    self.peak[rank] = now
        found.tensors += 1
        weakref.finalize(tensor, self._forget, address).atexit = False
        return found

    def _forget(self, address: int) -> None:
        storage = self._storages[address]
        storage.tensors -= 1
        if not storage.tensors:
            del self._storages[address]
            for rank in storage.ranks:
                self.live[rank] -= storage.nbytes
