"""`Simulator`: a mesh without processes, on which a program of tensors tells its time and memory.

Its driver runs each instruction at once, in this process. Runs in: the client, on the threads of
the program; tensors may be freed on any thread.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from monarch._src.actor.future import Future
from monarch._src.errors import MeshStoppedError
from monarch._src.mesh.tensor_methods import HasTensors
from monarch._src.shape import Extent, Region
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.simulation.costs import Machine, SimulatedTask, trace_events
from monarch._src.tensor.simulation.rank import NO_FUNCTIONS, SimulatedRank, active_meta
from monarch._src.tensor.state.instructions import MAIN, Failure, Kind
from monarch._src.tensor.state.losses import Losses
from monarch._src.tensor.torch_modules import locally, torch


class SimulatedDriver:
    """Has the methods of `channels.driver.Driver` that channels and operations call."""

    deaths = 0  # no rank dies
    losses = Losses()

    def __init__(self, rank: SimulatedRank, whole: HasTensors) -> None:
        self.rank = rank
        self.whole = whole
        self.device = "cpu"
        self.stopped: str | None = None
        self.lock = threading.RLock()
        self._next = 1
        self._channels: dict[tuple[Region, str], Channel] = {}
        self._ranks: dict[Region, tuple[int, ...]] = {}

    def channel(self, mesh: Any, stream: str = MAIN) -> Channel:
        """The channel of a stream on the mesh or a slice of it."""
        with self.lock:
            key = mesh._region, stream
            found = self._channels.get(key)
            if found is None:
                found = self._channels[key] = Channel(self, mesh, mesh._region, stream, None)
            return found

    def take_up_losses(self) -> None:
        """Do nothing: no rank restarts."""

    def use_device(self, device: str) -> None:
        """Have tensors say that they are on `"cpu"` or `"cuda"`."""
        with self.lock:
            self.device = device
            for channel in self._channels.values():
                channel.batches.device = device

    def record(
        self, channel: Channel, kind: Kind, inputs: tuple[int, ...], scalars: tuple[Any, ...],
        site: int, nbytes: int,
    ) -> int:  # fmt: skip
        """See `Channel.record`."""
        with self.lock, locally(), torch.no_grad():
            self.free_dead()
            first = self._next
            self._next += kind.outputs
            channel.batches.add(kind, inputs, first, scalars, site, nbytes)
            ranks = self._ranks.get(channel.region)
            if ranks is None:
                ranks = self._ranks[channel.region] = tuple(channel.region.ranks())
            self.rank.run_on(ranks, channel.stream, channel.batches.take())
        return first

    def free_dead(self) -> None:
        """Free the tensors to which the program has no reference left."""
        with self.lock:
            for channel in self._channels.values():
                if channel.batches.has_dead:
                    for number in channel.batches.take().dead:
                        self.rank.values.pop(number, None)

    def wake(self) -> None:
        """Tensors were freed. The next instruction takes note: a lock could deadlock here."""

    def fetch(
        self, channel: Channel, point: dict[str, int], numbers: list[int],
        read: Callable[[Any], Any],
    ) -> Future[Any]:  # fmt: skip
        """Tensors of the right shapes: NaN, or zeros of dtypes without NaN."""
        channel.check()
        future: Future[Any] = Future.unmanaged()
        found = [self.rank.values[number] for number in numbers]
        failure = next((one for one in found if isinstance(one, Failure)), None)
        with locally():
            answer = failure or [_without_values(one) for one in found]
        future.settle(lambda: read(lambda: answer))
        return future

    def ask(
        self, channel: Channel, point: dict[str, int], endpoint: str, args: tuple[Any, ...],
        read: Callable[[Any], Any],
    ) -> Future[Any]:  # fmt: skip
        """The shapes of a result. Raises RuntimeError for all that needs a process."""
        if endpoint != "describe":
            raise RuntimeError(NO_FUNCTIONS)
        return Future[Any].of(read(lambda: self.rank.describe(*args)))

    def ask_all(self, channel: Channel, endpoint: str, args: tuple[Any, ...]) -> Future[Any]:
        """Raises RuntimeError, since there is no process."""
        raise RuntimeError(NO_FUNCTIONS)

    def with_workers(self, channel: Channel, use: Callable[[Any], Any]) -> Any:
        """Raises RuntimeError, since there is no process."""
        raise RuntimeError(NO_FUNCTIONS)

    def incarnations(self, region: Region) -> dict[int, int | None]:
        """None: no rank restarts."""
        return {}

    def unwatched(self, meshes: Sequence[Any]) -> list[Any]:
        """None: no rank dies."""
        return []

    def meeting_place(self, first: Channel, number: int) -> None:
        """No rank joins a group."""


def _without_values(tensor: Any) -> Any:
    value = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
    return torch.full(tuple(tensor.shape), value, dtype=tensor.dtype)


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
