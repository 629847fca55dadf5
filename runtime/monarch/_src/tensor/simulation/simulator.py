"""`Simulator`: a mesh without processes, on which a program of tensors tells its time and memory.

Runs in: the client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from monarch._src.errors import MeshStoppedError
from monarch._src.mesh.tensor_methods import HasTensors
from monarch._src.shape import Extent, Region
from monarch._src.tensor.simulation.costs import Machine
from monarch._src.tensor.simulation.driver import SimulatedDriver
from monarch._src.tensor.simulation.rank import SimulatedRank, active_meta
from monarch._src.tensor.simulation.timeline import SimulatedTask, trace_events


@dataclass(frozen=True)
class OperationTotal:
    """All tasks of one name: how many, their time in seconds, floating-point operations, bytes."""

    count: int
    time_s: float
    flops: int
    nbytes: float


@dataclass(frozen=True, repr=False)
class SimulationReport:
    """What the program would take, by the bounds of the `Machine`.

    `time_s`: until the last task ends. `peak_bytes`: of the tensors on the rank that has most;
    `live_bytes`: now. `sent_bytes`: what a rank sends in all collectives that it is in, at most.
    `operations`: by name, those that take longest first.
    """

    ranks: int
    time_s: float
    flops: int
    peak_bytes: int
    live_bytes: int
    sent_bytes: float
    operations: dict[str, OperationTotal]

    def __repr__(self) -> str:
        total = (
            f"{self.ranks} simulated ranks: {_time(self.time_s)} at least, "
            f"{self.flops / 1e9:,.3f} GFLOP a rank, {_size(self.peak_bytes)} of tensors at most, "
            f"{_size(self.sent_bytes)} sent by a rank"
        )
        lines = [total, f"{'time':>10}  {'count':>7}  operation"]
        lines += [
            f"{_time(one.time_s):>10}  {one.count:>7,}  {name}"
            for name, one in self.operations.items()
        ]
        return "\n".join(lines)


class SimulatedMesh(HasTensors):
    """The mesh of a `Simulator`: `activate`, slices and tensors as on a ProcMesh, and no actors."""

    def __init__(self, name: str, region: Region, simulator: Simulator) -> None:
        self.name = name
        self._region = region
        self._simulator = simulator

    def _new_with_region(self, region: Region) -> SimulatedMesh:
        return SimulatedMesh(self.name, region, self._simulator)

    def _check_usable(self) -> None:
        if self._simulator.ended:
            raise MeshStoppedError("the simulation has ended; make another Simulator")

    def _tensor_driver(self) -> Any:
        return self._simulator.driver

    def exit(self) -> None:
        """End the simulation, and write its trace if it has a `trace_path`. Idempotent."""
        self._simulator.end()

    def __repr__(self) -> str:
        return f"<SimulatedMesh {self.name!r}{self.extent}>"


class Simulator:
    """A mesh without processes, on which programs of tensors run without values.

    simulator = monarch.Simulator(hosts=16, gpus=8)
    with simulator.mesh.activate():
        step()
    print(simulator.report())

    Shapes, dtypes, aliases and gradients are those of torch, and errors of shapes are raised at
    their lines. A fetched tensor has NaN, or zeros if its dtype has no NaN. Remote functions do not
    run: give them a `propagate`.
    """

    def __init__(
        self, hosts: int, gpus: int, *, machine: Machine | None = None,
        trace_path: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        """Make a mesh with the dims `host` and `gpu`.

        Args:
            hosts, gpus: the sizes of these dims.
            machine: the device of each rank.
            trace_path: where `mesh.exit()` writes the trace, for Perfetto and Chrome.

        Raises:
            ValueError: a size below 1.
        """
        self._begin({"host": hosts, "gpu": gpus}, machine, trace_path)

    @classmethod
    def with_dims(
        cls, dims: Mapping[str, int], *, machine: Machine | None = None,
        trace_path: str | os.PathLike[str] | None = None,
    ) -> Simulator:  # fmt: skip
        """A simulator whose mesh has these dims, as in `Simulator.with_dims({"dp": 16, "tp": 8})`.

        Raises:
            ValueError: a size below 1.
        """
        made = cls.__new__(cls)
        made._begin(dims, machine, trace_path)
        return made

    def _begin(
        self, dims: Mapping[str, int], machine: Machine | None,
        trace_path: str | os.PathLike[str] | None,
    ) -> None:  # fmt: skip
        for name, size in dims.items():
            if type(size) is not int or size < 1:
                raise ValueError(f"a simulated mesh with {name}={size!r}: give a number above 0")
        self.machine = machine or Machine()
        self.trace_path = trace_path
        self.ended = False
        self._rank = SimulatedRank(self.machine)
        region = Region.of_extent(Extent(list(dims), list(dims.values())))
        self.mesh = SimulatedMesh("simulated", region, self)
        self.driver = SimulatedDriver(self._rank, self.mesh)

    @property
    def tasks(self) -> list[SimulatedTask]:
        """All operations so far, in the order of the program."""
        return list(self._rank.timeline.tasks)

    def report(self) -> SimulationReport:
        """Time, arithmetic, memory and traffic so far."""
        self.driver.free_dead()
        tasks, memory = self.tasks, self._rank.memory
        totals: dict[str, OperationTotal] = {}
        flops: dict[int, int] = {}
        sent: dict[int, float] = {}
        for task in tasks:
            old = totals.get(task.operation, OperationTotal(0, 0.0, 0, 0.0))
            totals[task.operation] = OperationTotal(
                old.count + 1, old.time_s + task.duration_s, old.flops + task.flops,
                old.nbytes + task.nbytes,
            )  # fmt: skip
            for rank in task.ranks:
                flops[rank] = flops.get(rank, 0) + task.flops
                if task.is_transfer:
                    sent[rank] = sent.get(rank, 0.0) + task.nbytes
        return SimulationReport(
            len(self.mesh),
            self._rank.timeline.end_s,
            max(flops.values(), default=0),
            max(memory.peak.values(), default=0),
            max(memory.live.values(), default=0),
            max(sent.values(), default=0.0),
            dict(sorted(totals.items(), key=lambda item: -item[1].time_s)),
        )

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write all tasks as a trace, for Perfetto and Chrome."""
        events = trace_events(self.tasks)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)

    def end(self) -> None:
        """End the simulation, and write its trace if it has a `trace_path`. Idempotent."""
        if self.ended:
            return
        if self.trace_path is not None:
            self.save_trace(self.trace_path)
        self.ended = True
        self.driver.stopped = "the simulation has ended"


@contextmanager
def set_meta(new_value: Any) -> Generator[None]:
    """Mark the tasks of a simulation within the block; blocks nest. Without one it has no effect.

    Args:
        new_value: as in `set_meta("warm-up")`; `SimulatedTask.meta` and the trace have it.
    """
    token = active_meta.set((*active_meta.get(), new_value))
    try:
        yield
    finally:
        active_meta.reset(token)


def _time(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def _size(nbytes: float) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1024**power:
            return f"{nbytes / 1024**power:,.1f} {unit}"
    return f"{nbytes:,.0f} B"
