"""A channel: sends instructions of one stream to the ranks of one mesh or slice.

Runs in: the client. Each region of a proc mesh has a channel for each stream, from its first use
on. A tensor belongs to a channel, and an operation takes tensors of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from monarch._src.actor.future import Future
from monarch._src.errors import MeshStoppedError, RestartedError, SupervisionError
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.shape import Region
from monarch._src.tensor.regions.recording import active
from monarch._src.tensor.state.instructions import Batches, Handover, Kind
from monarch._src.tensor.state.losses import Losses
from monarch._src.tensor.tensor_errors import place_text

T = TypeVar("T")
_handovers = itertools.count(1)
# Ranks whose tensors a restart has lost run these too.
OF_ALL_LOSSES = ("monarch::drop", "monarch::give_back", "monarch::take_back")


class Recorder(Protocol):
    """The methods of a driver that a channel calls."""

    @property
    def stopped(self) -> str | None:
        """The reason for which the procs were stopped; None while they run."""
        ...

    @property
    def whole(self) -> Any:
        """The mesh of all ranks that were spawned together."""
        ...

    @property
    def device(self) -> str:
        """Where the tensors of the procs are: `"cpu"` or `"cuda"`."""
        ...

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while an instruction is recorded. Its holder records several in a row."""
        ...

    @property
    def losses(self) -> Losses:
        """The values that restarts of ranks have lost."""
        ...

    def take_up_losses(self) -> None:
        """Enter the restarts of which this process has been told."""
        ...

    def use_device(self, device: str) -> None:
        """Have the ranks keep tensors there."""
        ...

    def incarnations(self, region: Region) -> dict[int, int | None]:
        """The incarnations of ranks that were restarted; None for those that are not known yet."""
        ...

    def record(
        self, channel: Channel, kind: Kind, inputs: tuple[int, ...], scalars: tuple[Any, ...],
        site: int, nbytes: int,
    ) -> int:  # fmt: skip
        """See `Channel.record`."""
        ...

    def wake(self) -> None:
        """Have the driver send the instructions that wait."""
        ...

    def ask(
        self, channel: Channel, point: dict[str, int], endpoint: str, args: tuple[Any, ...],
        read: Callable[[Any], Any],
    ) -> Future[Any]:  # fmt: skip
        """Call the worker at a point, once it has run all recorded instructions."""
        ...

    def fetch(
        self, channel: Channel, point: dict[str, int], numbers: list[int],
        read: Callable[[Any], Any],
    ) -> Future[Any]:  # fmt: skip
        """Ask the worker at a point for tensors."""
        ...

    def ask_all(self, channel: Channel, endpoint: str, args: tuple[Any, ...]) -> Future[Any]:
        """Call all workers of a channel, once they have run all recorded instructions."""
        ...

    def with_workers(self, channel: Channel, use: Callable[[Any], T]) -> T:
        """Pass the workers of a channel to `use`, once all recorded instructions are sent."""
        ...


class Channel:
    """Sends instructions to the ranks of a region. `workers`: the actors on these ranks."""

    def __init__(
        self, driver: Recorder, mesh: ProcMesh, region: Region, stream: str, workers: Any
    ) -> None:
        self.driver = driver
        self.stream = stream
        self.mesh = mesh
        self.region = region
        self.workers = workers
        self.name = mesh.name
        self.batches = Batches(driver.device)
        self.error: SupervisionError | None = None  # set when a rank of the region dies for good
        self.groups: dict[Any, int] = {}
        self.functions: set[int] = set()  # numbers of the program's functions on its ranks

    def check(self) -> None:
        """Raise if the ranks can run no further instruction.

        Raises:
            MeshStoppedError: the mesh was stopped.
            SupervisionError: a rank has died.
        """
        if self.driver.stopped is not None:
            raise MeshStoppedError(
                f"the proc mesh {self.name!r} has been stopped, and its tensors are gone with it: "
                f"{self.driver.stopped}; spawn a new one"
            )
        if self.error is not None:
            raise SupervisionError(
                failures=self.error.failures,
                remedy="fetch_shard still reads the ranks that live; go on with a slice of the "
                "mesh without the ranks that are gone: tensor.slice_mesh(...)",
            )

    def check_values(self, numbers: Iterable[int], rank: int | None = None) -> None:
        """Raise if a rank of the region has no value of one of these tensors since its restart.

        `rank`: the only one that needs the values; None: all need them.

        Raises:
            RestartedError: see above.
        """
        driver = self.driver
        if not driver.losses.is_any:
            return
        driver.take_up_losses()
        failure = driver.losses.find(self.region.ranks() if rank is None else (rank,), numbers)
        if failure is not None:
            raise RestartedError(
                failures=[replace(failure, restarted=0)],  # whose text speaks of calls in flight
                refusal="a tensor or object that the operation needs was made before that process "
                "was restarted, and has no value there",
                remedy="make it again, or go on with a slice of the mesh without that rank, "
                "tensor.slice_mesh(...); fetch_shard still reads the other ranks",
            )

    def record(
        self, kind: Kind, inputs: tuple[int, ...], scalars: tuple[Any, ...], site: int,
        nbytes: int = 0,
    ) -> int:  # fmt: skip
        """Have the ranks run an instruction, and return the number of its first output.

        Raises the errors of `check` and `check_values`.
        """
        driver = self.driver
        if driver.losses.is_any and kind.operation not in OF_ALL_LOSSES:
            self.check_values(inputs)
        if self.error is not None or driver.stopped is not None:
            self.check()
        watch = active()
        if watch is None:
            return driver.record(self, kind, inputs, scalars, site, nbytes)
        watch.check(self, kind)
        first = driver.record(self, kind, inputs, scalars, site, nbytes)
        watch.add(kind, inputs, first, scalars, site)
        return first

    def new_handover(self, ranks: Iterable[int] = ()) -> Handover:
        """A handover by these ranks of the region; by all without any. Under the driver's lock."""
        incarnations = self.driver.incarnations(self.region)
        return Handover(next(_handovers), incarnations, frozenset(ranks))

    def free(self, number: int) -> None:
        """Let the ranks free a tensor. Any thread, also during garbage collection."""
        self.batches.free(number)
        self.driver.wake()


def two_channels(one: Channel, other: Channel) -> ValueError:
    """Tensors of two meshes, or of two streams, in one operation."""
    first, second = place_text(one.name, one.region), place_text(other.name, other.region)
    if one.driver is other.driver and one.region == other.region:
        return ValueError(
            f"the operation has tensors of two streams of {first}, {one.stream!r} and "
            f"{other.stream!r}; borrow one for the stream of the other: "
            "`there, borrow = stream.borrow(tensor)`, and borrow.drop() after the last use"
        )
    if first == second:
        first += f" (ranks {list(one.region.ranks())})"
        second += f" (ranks {list(other.region.ranks())})"
    return ValueError(
        f"the operation has tensors of two meshes, {first} and {second}; move one with "
        "tensor.to_mesh(mesh), or take the part on a slice with tensor.slice_mesh(...)"
    )
