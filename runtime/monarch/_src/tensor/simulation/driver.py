"""The driver of a mesh without processes: it runs each instruction at once, in this process.

Runs in: the client, on the threads of the program; tensors may be freed on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from monarch._src.actor.future import Future
from monarch._src.mesh.tensor_methods import HasTensors
from monarch._src.shape import Region
from monarch._src.tensor.channels.channel import MAIN, Channel
from monarch._src.tensor.simulation.rank import NO_FUNCTIONS, SimulatedRank
from monarch._src.tensor.state.instructions import Failure, Kind
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

    def unwatched(self, meshes: Sequence[Any]) -> list[Any]:
        """None: no rank dies."""
        return []

    def meeting_place(self, first: Channel, number: int) -> None:
        """No rank joins a group."""


def _without_values(tensor: Any) -> Any:
    value = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
    return torch.full(tuple(tensor.shape), value, dtype=tensor.dtype)
