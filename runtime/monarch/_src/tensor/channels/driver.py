"""The driver of the tensors of one proc mesh: numbers instructions, and sends batches to its ranks.

Runs in: the client. Instructions are recorded on the threads of the program. A thread of the driver
sends instructions that have waited for a millisecond.
Owns: a mesh of `TensorWorker` actors for each stream, from its first use until the procs stop.
Invariants: at most one channel has instructions that are not sent. The driver holds its lock while
it sends a batch, so every rank gets the batches in the order of the program. The streams of a rank
run side by side.
"""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from monarch._src.actor.call.responses import OneCall
from monarch._src.actor.call.target import Target, target_of
from monarch._src.actor.endpoint import actor_class
from monarch._src.actor.errors.remote import error_for, unpack_failure
from monarch._src.actor.future import Future
from monarch._src.actor.serialize import unpack_value
from monarch._src.actor.state.calls import PendingCall
from monarch._src.errors import MeshStoppedError, SupervisionError, death_error
from monarch._src.events import MeshStopped, RankFailed, RankRestarting, bus
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.actor_spawning import constructor_payload, extra_payloads
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.shape import Region
from monarch._src.spmd.process_group import is_on_one_host
from monarch._src.spmd.rendezvous import FilePlace, TcpPlace
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.devices import check_devices, device_is_chosen
from monarch._src.tensor.ranks.worker import TensorWorker
from monarch._src.tensor.regions.recording import refuse_values
from monarch._src.tensor.state.instructions import MAIN, Kind
from monarch._src.tensor.state.losses import Losses
from monarch._src.wire.frames import Payload

log = logging.getLogger("monarch.tensor")
NAME = "tensors"
T = TypeVar("T")
IDLE_S = 0.001
MOST_IN_FLIGHT = 64  # batches


class BatchCall(PendingCall):
    """A batch. Its future is done when each rank has run the batch or died, and never fails.

    The call has no endpoint, so front ends neither list nor cancel it. Cancelling a batch that a
    rank has not begun would lose the tensors that the batch makes.
    """

    __slots__ = ("_channel", "_end", "_future", "_losses")

    @property
    def endpoint(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The empty name: front ends do not list this call."""
        return ""

    @endpoint.setter
    def endpoint(self, name: str) -> None:
        pass

    def __init__(
        self, target: Target, region: Region, future: Future[Any], *, channel: Channel,
        losses: Losses, end: int,
    ) -> None:  # fmt: skip
        """`end`: a number above those of all tensors of the batch."""
        super().__init__(target.procs.uid, target, region)
        self._channel = channel
        self._losses = losses
        self._end = end
        self._future = future

    def futures_of(self) -> Sequence[Future[Any]]:
        return (self._future,)

    def on_answer(self, position: int, payload: Payload) -> None:
        self._end_if_last()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        failure, exception = unpack_failure(payload)
        error = error_for(status, [failure], exception())
        if not isinstance(error, SupervisionError):  # the worker's constructor or an import failed
            error = SupervisionError(failures=[failure])
        self._channel.error = self._channel.error or error
        self._end_if_last()

    def on_lost(self, position: int, failure: RankFailure) -> None:
        rank = self.region.global_rank(position)
        if failure.restarted:
            self._losses.note_batch(rank, failure, self._end)
        else:
            found = target_of(self).describe_as_actor(failure, rank)
            self._channel.error = self._channel.error or death_error([found])
        self._end_if_last()

    def _end_if_last(self) -> None:
        if not self.owed:
            self._future.settle(_nothing)


class ShardBatchCall(BatchCall):
    """A batch whose future takes its value from the answer of the rank at `position`."""

    __slots__ = ("_position", "_read")

    def __init__(
        self, target: Target, region: Region, future: Future[Any], *, channel: Channel,
        losses: Losses, end: int, position: int, read: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        super().__init__(target, region, future, channel=channel, losses=losses, end=end)
        self._position = position
        self._read = read

    def on_answer(self, position: int, payload: Payload) -> None:
        if position == self._position:
            self._future.settle(partial(_read_payload, self._read, payload))

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        super().on_error(position, status, payload)
        if position == self._position and self._channel.error is not None:
            self._future.fail(self._channel.error)

    def on_lost(self, position: int, failure: RankFailure) -> None:
        super().on_lost(position, failure)
        if position == self._position:
            self._future.fail(death_error([failure]))

    def _end_if_last(self) -> None:
        """Do nothing: the rank at `position` settles the future."""


class ShardCall(OneCall):
    """A question to one rank. `read` turns its answer into the value of the future."""

    __slots__ = ("_read",)

    def __init__(
        self, read: Callable[[Any], Any], target: Target, region: Region, future: Future[Any]
    ) -> None:
        super().__init__(target, region, future)
        self._read = read

    def on_answer(self, position: int, payload: Payload) -> None:
        read = self._read
        for future in self.futures_of():
            future.settle(partial(_read_payload, read, payload))


def _read_payload(read: Callable[[Any], Any], payload: Payload) -> Any:
    return read(partial(unpack_value, payload))


def _nothing() -> None:
    return None


class Driver:
    """Records the instructions of one proc mesh, and sends them to its ranks."""

    def __init__(self, procs: ProcMesh) -> None:
        shared = procs._procs  # pyright: ignore[reportPrivateUsage]
        self.procs = shared
        self.uid = shared.ref.uid
        self.whole = procs._new_with_region(shared.region)  # pyright: ignore[reportPrivateUsage]
        self._run = procs._runtime  # pyright: ignore[reportPrivateUsage]
        self._key = self._run.uids()  # by which the streams of a rank find each other
        self._workers: dict[str, Any] = {}  # of each stream, on all ranks
        self._channels: dict[tuple[Region, str], Channel] = {}
        self.lock = threading.RLock()
        self._next = 1
        self.device = "cpu"  # where the ranks have the tensors: there, or on "cuda"
        self._open: Channel | None = None
        self._in_flight: deque[Future[None]] = deque()
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._awake = False
        self._closed: str | None = None
        self.losses = Losses()
        self.deaths = 0  # of ranks of the procs; each death ends the process groups
        # `deaths` when the process groups of ranks were last watched, by their region.
        self.watched: dict[Region, int] = {}
        self._unsubscribe: list[Callable[[], None]] = [
            bus.subscribe(MeshStopped, self._on_mesh_stopped),
            bus.subscribe(RankFailed, self._on_rank_ended),
            bus.subscribe(RankRestarting, self._on_rank_ended),
        ]
        self._thread: threading.Thread | None = None
        shared.on_forgotten = partial(self.close, "its session has ended")
        self._workers_of(MAIN)

    @property
    def stopped(self) -> str | None:
        """The reason for which the procs were stopped; None while they run."""
        return self._closed or self.procs.stopped

    def channel(self, mesh: ProcMesh, stream: str = MAIN) -> Channel:
        """The channel of a stream on that mesh or slice."""
        region = mesh._region  # pyright: ignore[reportPrivateUsage]
        with self.lock:
            found = self._channels.get((region, stream))
            if found is None:
                workers = self._workers_of(stream)._new_with_region(region)
                found = Channel(self, mesh, region, stream, workers)
                self._channels[region, stream] = found
            return found

    def _workers_of(self, stream: str) -> Any:
        """The workers of a stream on all ranks; spawned by its first use."""
        found = self._workers.get(stream)
        if found is None:
            region, dead = self.procs.region, self._run.known.dead(self.uid)
            skip = {region.position(rank) for rank in dead if rank in region}
            payload = constructor_payload(
                TensorWorker, (self._key, stream), {}, extra_payloads(self.whole)
            )
            told = stream if stream.isidentifier() else len(self._workers)
            name = NAME if stream == MAIN else f"{NAME}-{told}"  # that of their threads, too
            found = self.whole._spawn_on(name, actor_class(TensorWorker), payload, skip)  # pyright: ignore[reportPrivateUsage]
            self._workers[stream] = found
        return found

    def wait_for_streams(self, mesh: ProcMesh) -> None:
        """Wait until ranks of the mesh have run the instructions so far, of all streams.

        Raises:
            SupervisionError: a rank has died.
        """
        region = mesh._region  # pyright: ignore[reportPrivateUsage]
        with self.lock:
            self._flush()
            asked = [
                each._new_with_region(region).fetch.call([]) for each in self._workers.values()
            ]
        for one in asked:
            one.get()

    def incarnations(self, region: Region) -> dict[int, int | None]:
        """The incarnations of ranks that were restarted; None for those that are not known yet."""
        known = self._run.known.incarnations(self.uid)
        if self.procs.ref.owner == self._run.name:
            return {rank: number for rank, number in known.items() if number}
        return {rank: known.get(rank) for rank in region.ranks() if known.get(rank) != 0}

    def unwatched(self, meshes: Sequence[ProcMesh]) -> list[ProcMesh]:
        """The meshes to watch before the ranks of `meshes` make a process group.

        A death ends the groups of all ranks, so that they are watched anew: together, or, once a
        rank has died for good, each mesh by itself.
        """
        asked = meshes if self._run.known.dead(self.uid) else [self.whole]
        return [one for one in asked if self.watched.get(one._region) != self.deaths]  # pyright: ignore[reportPrivateUsage]

    def channels(self) -> list[Channel]:
        """All channels."""
        with self.lock:
            return list(self._channels.values())

    def use_device(self, device: str) -> None:
        """Have all ranks keep the tensors on their CPUs or on their GPUs: `"cpu"`, `"cuda"`.

        Raises:
            ValueError: there are tensors elsewhere already; a rank has no GPU that torch can use.
            SupervisionError: a rank has died.
        """
        if device == self.device:
            return
        if self._next > 1:
            raise device_is_chosen(device, self.whole.name, self.device)
        asked = self.ask_all(self.channel(self.whole), "use_device", (device,))
        check_devices(asked.get(), self.whole.name)
        with self.lock:
            self.device = device
            for channel in self._channels.values():
                channel.batches.device = device

    def take_up_losses(self) -> None:
        """Enter restarts and lost batches.

        The ranks concerned may lack kinds and functions too, which are sent again.
        """
        if not self.losses.has_news:
            return
        with self.lock:
            self._flush()  # these instructions count as lost there
            for rank in self.losses.take_up(self._next):
                for channel in self._channels.values():
                    if rank in channel.region:
                        channel.batches.forget_kinds()
                        channel.functions.clear()

    # --- recording --------------------------------------------------------------------------------

    def record(
        self, channel: Channel, kind: Kind, inputs: tuple[int, ...], scalars: tuple[Any, ...],
        site: int, nbytes: int,
    ) -> int:  # fmt: skip
        """See `Channel.record`."""
        with self.lock:
            if self.losses.has_news:
                self.take_up_losses()
            if self._open is not channel:
                self._flush()
                self._open = channel
            first = self._next
            self._next += kind.outputs
            if channel.batches.add(kind, inputs, first, scalars, site, nbytes) and not _held:
                self._flush()
        if len(self._in_flight) > MOST_IN_FLIGHT:
            self._await_oldest()
        if not self._awake:
            self.wake()
        return first

    def _await_oldest(self) -> None:
        """Wait until the ranks have run the oldest batch, which bounds the batches in flight."""
        try:
            oldest = self._in_flight.popleft()
        except IndexError:
            return  # another thread has removed the last batch
        oldest.get()

    def _flush(self) -> None:
        channel = self._open
        if channel is not None and channel.batches.has_work:
            self._send(channel)

    def fetch(
        self, channel: Channel, point: dict[str, int], numbers: list[int],
        read: Callable[[Any], Any],
    ) -> Future[Any]:  # fmt: skip
        """Ask the worker at a point for tensors, in one message with the instructions that wait."""
        refuse_values()
        position = channel.region.extent.point(**point).rank
        rank = channel.region.global_rank(position)
        channel.check_values(numbers, rank)
        with self.lock:
            if self._open is not channel or not channel.batches.has_work or channel.error:
                return self.ask(channel, point, "fetch", (numbers,), read)
            data = pickle.dumps((channel.batches.take(), rank, numbers), pickle.HIGHEST_PROTOCOL)
            make = partial(
                ShardBatchCall, channel=channel, losses=self.losses, end=self._next,
                position=position, read=read,
            )  # fmt: skip
            return channel.workers.run.start((data,), {}, make)

    def _send(self, channel: Channel) -> None:
        data = pickle.dumps((channel.batches.take(), -1, ()), pickle.HIGHEST_PROTOCOL)
        make = partial(BatchCall, channel=channel, losses=self.losses, end=self._next)
        self._in_flight.append(channel.workers.run.start((data,), {}, make))
        while self._in_flight and self._in_flight[0].done:
            self._in_flight.popleft()

    def ask(
        self, channel: Channel, point: dict[str, int], endpoint: str, args: tuple[Any, ...],
        read: Callable[[Any], Any],
    ) -> Future[Any]:  # fmt: skip
        """Call the worker at a point, once it has run all recorded instructions.

        `read` turns the answer into the value of the future, on the thread that reads the future.
        """
        refuse_values()
        if self.stopped is not None:
            channel.check()
        with self.lock:
            self._flush()
            worker = channel.workers.slice(**point)
            return getattr(worker, endpoint).start(args, {}, partial(ShardCall, read))

    def ask_all(self, channel: Channel, endpoint: str, args: tuple[Any, ...]) -> Future[Any]:
        """Call all workers of a channel, once they have run all recorded instructions."""
        return self.with_workers(channel, lambda workers: getattr(workers, endpoint).call(*args))

    def with_workers(self, channel: Channel, use: Callable[[Any], T]) -> T:
        """Pass the workers of a channel to `use`, once all recorded instructions are sent."""
        refuse_values()
        channel.check()
        with self.lock:
            self._flush()
            return use(channel.workers)

    def meeting_place(self, first: Channel, number: int) -> FilePlace | TcpPlace:
        """The place at which the ranks of a process group meet. `number`: of the group."""
        if is_on_one_host(self.whole):
            return FilePlace(f"{self.uid:x}-tensors-{number}.group")
        start = dict.fromkeys(first.region.sizes, 0)
        return self.ask(first, start, "serve_store", (), lambda read: read()).get()

    # --- sending waiting instructions -------------------------------------------------------------

    def wake(self) -> None:
        """Have the driver's thread send what waits. Any thread, also during garbage collection."""
        if not self._awake and self._closed is None:
            self._awake = True
            if self._thread is None:
                self._start()
            self._wakes.put(True)

    def _start(self) -> None:
        thread = threading.Thread(target=self._send_idle, name="monarch-tensors", daemon=True)
        self._thread = thread
        thread.start()

    def _send_idle(self) -> None:
        """Send instructions that have waited for a millisecond."""
        while self._wakes.get():
            seen = -1
            while self._closed is None:
                time.sleep(IDLE_S)
                now = self._next
                if now != seen:
                    seen = now
                    continue
                self._awake = False  # later instructions wake this thread again
                self.send_waiting()
                break

    def send_waiting(self) -> None:
        """Send what waits, unless it is held back. What cannot be sent makes later uses raise."""
        if _held:
            return
        try:
            with self.lock:
                self._flush()
                for channel in list(self._channels.values()):
                    if channel.batches.has_dead and channel.error is None:
                        self._send(channel)
        except (SupervisionError, RuntimeError) as error:
            log.debug("instructions were not sent: %s", error)  # the next operation raises

    def _on_mesh_stopped(self, event: MeshStopped) -> None:
        if event.uid == f"{self.uid:x}":
            self.close("its procs were stopped")

    def _on_rank_ended(self, event: RankFailed | RankRestarting) -> None:
        if event.mesh == self.uid:
            if isinstance(event, RankRestarting):
                self.losses.note_restart(event.failure.rank, event.failure)
            self.deaths += 1

    def close(self, reason: str) -> None:
        """Send nothing more, and end the thread. Idempotent."""
        if self._closed is None:
            self._closed = self.procs.stopped or reason
            for each in self._unsubscribe:
                each()
            self._wakes.put(False)
            if _drivers.get(self.uid) is self:
                del _drivers[self.uid]


_held: list[object] = []  # the blocks of `coalescing` that are open


@contextmanager
def coalescing() -> Generator[None]:
    """Send the operations of a block as one message, at its end.

    Without it they are sent as they come, up to 128 in a message. A fetch within the block sends
    what waits, and so does a turn to another mesh or slice. It holds back what other threads issue
    meanwhile too.
    """
    block = object()
    _held.append(block)
    try:
        yield
    finally:
        _held.remove(block)
        for driver in list(_drivers.values()):
            driver.send_waiting()


_drivers: dict[int, Driver] = {}
_making = threading.Lock()


def known_driver(mesh: ProcMesh) -> Any:
    """The driver of a mesh or slice; None for procs that have no tensors yet."""
    own = mesh._tensor_driver()  # pyright: ignore[reportPrivateUsage]
    return _drivers.get(mesh._procs.ref.uid) if own is None else own  # pyright: ignore[reportPrivateUsage]


def channel_of(mesh: ProcMesh, stream: str = MAIN) -> Channel:
    """The channel of a stream on a mesh or slice; the first one of the procs spawns the workers.

    Raises:
        MeshStoppedError: the mesh was stopped.
    """
    own: Driver | None = mesh._tensor_driver()  # pyright: ignore[reportPrivateUsage]
    if own is not None:
        return own.channel(mesh, stream)
    shared = mesh._procs  # pyright: ignore[reportPrivateUsage]
    if shared.stopped is not None:
        raise MeshStoppedError(
            f"the proc mesh {mesh.name!r} has been stopped: {shared.stopped}; spawn a new one"
        )
    with _making:
        driver = _drivers.get(shared.ref.uid)
        if driver is None:
            driver = _drivers[shared.ref.uid] = Driver(mesh)
    return driver.channel(mesh, stream)
