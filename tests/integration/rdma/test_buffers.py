"""`RDMABuffer` and `RDMAAction` as users hold them: in the client, sync and async actors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import pickle
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy
import pytest
import torch

from monarch._src.actor.runtime import runtime
from monarch._src.net.streams.protocol import MAGIC, READ, REQUEST
from monarch._src.net.streams.server import TcpServer
from monarch._src.net.streams.sockets import LOOPBACK, ServerAddress, StrangerError, dial
from monarch._src.rdma import handle as handles
from monarch._src.rdma.plane import plane_of
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.transports.tcp_regions import RegionRequests
from monarch._src.rdma.verbs import sysfs
from monarch.actor import Actor, ActorError, ProcMesh, endpoint, this_proc
from monarch.config import configured
from monarch.rdma import (
    RDMAAction,
    RDMABuffer,
    RDMAHandleError,
    RDMAOwnerLostError,
    RDMATimeoutError,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
    shared_empty,
    transports,
)
from tests.integration.rdma.parties import Holder, Mover

pytestmark = pytest.mark.slow

Spawn = Callable[..., ProcMesh]


class Trainer(Actor):
    """Gives its weights away once, and changes them in place."""

    def __init__(self) -> None:
        self.weights = torch.arange(1000, dtype=torch.float32)

    @endpoint
    def handle(self) -> RDMABuffer:
        return RDMABuffer(self.weights.view(torch.uint8).flatten())

    @endpoint
    def step(self) -> None:
        self.weights += 1

    @endpoint
    def total(self) -> float:
        return float(self.weights.sum())


class Generator(Actor):
    """Pulls, on a loop."""

    @endpoint
    async def pull(self, buffer: RDMABuffer) -> float:
        room = torch.zeros(1000)
        await buffer.read_into(room.view(torch.uint8))
        await asyncio.gather(*(buffer.read_into(torch.zeros(1000)) for _ in range(5)))
        return float(room.sum())

    @endpoint
    async def push(self, buffer: RDMABuffer) -> None:
        await buffer.write_from(torch.ones(1000))


def test_weights_are_pulled_and_gradients_pushed_by_handles_that_are_given_once(
    procs: ProcMesh,
) -> None:
    trainer: Any = procs.slice(gpus=0).spawn("trainer", Trainer)
    generator: Any = procs.slice(gpus=1).spawn("generator", Generator)
    buffer = trainer.handle.call_one().get()
    assert buffer.size() == 4000
    assert generator.pull.call_one(buffer).get() == 499_500
    trainer.step.call_one().get()
    assert generator.pull.call_one(buffer).get() == 500_500
    generator.push.call_one(buffer).get()
    assert trainer.total.call_one().get() == 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(5000),
        lambda: memoryview(bytearray(5000)),
        lambda: numpy.zeros(5000, numpy.uint8),
        lambda: numpy.zeros(1250, numpy.float32),
        lambda: torch.zeros(5000, dtype=torch.uint8),
        lambda: torch.zeros(1250),
        lambda: torch.frombuffer(shared_empty(5000), dtype=torch.int16),
    ],
)
def test_any_memory_of_the_client_can_be_read_and_written_by_an_actor(
    procs: ProcMesh, make: Callable[[], Any]
) -> None:
    data = make()
    buffer = RDMABuffer(data)
    mover: Any = procs.slice(gpus=1).spawn("mover", Mover)
    mover.write.call_one(buffer, 5000, 9).get()
    mover.read.call_one(buffer, 9).get()
    copy: Any = torch.zeros(5000, dtype=torch.uint8)
    buffer.read_into(copy).get()
    raw: Any = data.numpy() if isinstance(data, torch.Tensor) else data
    assert bytes(memoryview(raw).cast("B")) == copy.numpy().tobytes()


def test_what_is_read_only_may_be_read_and_not_written(procs: ProcMesh) -> None:
    buffer = RDMABuffer(b"a constant of this program")
    mover: Any = procs.slice(gpus=0).spawn("mover", Mover)
    assert mover.first_byte.call_one(buffer).get() == ord("a")
    with pytest.raises(ActorError, match="is read-only: its owner registered it as such"):
        mover.write.call_one(buffer, 3, 0).get()
    with pytest.raises(ValueError, match="needs a destination that can be written to"):
        buffer.read_into(bytes(100))


def test_actors_of_one_process_use_its_memory_itself(procs: ProcMesh) -> None:
    data = bytearray(b"12345")
    buffer = RDMABuffer(data)
    assert buffer.backend == "local"
    neighbour: Any = this_proc().spawn("neighbour", Mover)
    assert neighbour.first_byte.call_one(buffer).get() == ord("1")
    buffer.write_from(b"abc").get()
    assert data == b"abc45"


def test_sizes_that_do_not_fit_are_refused_before_anything_moves() -> None:
    data = bytearray(b"12345")
    buffer = RDMABuffer(data)
    with pytest.raises(ValueError, match="needs a destination of 5 bytes; this one has 4"):
        buffer.read_into(bytearray(4))
    with pytest.raises(ValueError, match="a write of 6 bytes does not fit"):
        buffer.write_from(b"abcdef")
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="give seconds"):
            buffer.read_into(bytearray(5), timeout=timeout)
    with pytest.raises(TypeError, match="takes an RDMABuffer, not bytes"):
        RDMAAction().read_remote(bytearray(5), b"12345")  # pyright: ignore[reportArgumentType]
    assert data == b"12345"


def test_overlapping_local_memory_in_one_action_is_refused() -> None:
    first, second = RDMABuffer(bytearray(10)), RDMABuffer(bytearray(10))
    room = memoryview(bytearray(30))
    action = RDMAAction().read_remote(room[:10], first).read_remote(room[10:20], second)
    with pytest.raises(ValueError, match="overlaps memory that is read into"):
        action.read_remote(room[9:], first)
    with pytest.raises(ValueError, match="overlaps memory that is read into"):
        action.write_remote(first, room[19:25])
    action.write_remote(first, room[20:25]).write_remote(second, room[22:30])  # both only read it
    with pytest.raises(ValueError, match="overlaps memory that is written from"):
        action.read_remote(room[20:30], first)
    assert len(action) == 4
    action.submit().get()


@pytest.mark.parametrize("way", ["read", "write"])
def test_an_action_moves_nothing_to_or_from_where_a_tensor_was_before_it_was_resized(
    way: str,
) -> None:
    buffer = RDMABuffer(bytearray(64))
    tensor = torch.zeros(64, dtype=torch.uint8)
    action = RDMAAction()
    action = action.read_remote(tensor, buffer) if way == "read" else action.write_remote(
        buffer, tensor
    )  # fmt: skip
    action.submit().get()
    tensor.resize_(1 << 24)
    with pytest.raises(ValueError, match=r"RDMABuffer of 64 bytes of .* was resized after it was"):
        action.submit()


def test_an_action_of_nothing_is_done() -> None:
    assert RDMAAction().submit().get() is None


def test_a_time_out_is_a_typed_error_with_what_was_done() -> None:
    buffer = RDMABuffer(bytearray(1000))
    with pytest.raises(RDMATimeoutError, match="not done within 0 s; 0 bytes were done") as raised:
        buffer.read_into(bytearray(1000), timeout=0).get()
    assert isinstance(raised.value, TimeoutError)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert str(copy) == str(raised.value)
    assert copy.size == 1000


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e10])
def test_a_transfer_may_take_as_long_as_it_takes(procs: ProcMesh, timeout: float) -> None:
    holder: Any = procs.slice(gpus=0).spawn("holder", Holder)
    mover: Any = procs.slice(gpus=1).spawn("mover", Mover)
    mover.only.call_one("tcp").get()  # sockets take no such number
    buffer = holder.make.call_one(1000, False).get()
    assert mover.read.call_one(buffer, timeout=timeout).get() == "tcp"
    buffer.drop(timeout=timeout).get()


@pytest.mark.parametrize("timeout", [None, "30s"])
def test_a_time_out_that_is_no_number_is_refused_with_what_to_give(timeout: Any) -> None:
    buffer = RDMABuffer(bytearray(10))
    with pytest.raises(TypeError, match=f"timeout={timeout!r}: give seconds, as a number"):
        buffer.read_into(bytearray(10), timeout=timeout)
    with pytest.raises(TypeError, match="give seconds, as a number"):
        buffer.drop(timeout=timeout)


def test_a_buffer_that_was_dropped_here_is_refused_at_the_call() -> None:
    buffer = RDMABuffer(bytearray(10))
    buffer.drop().get()
    buffer.drop().get()
    with pytest.raises(RDMAHandleError, match="has been dropped"):
        buffer.read_into(bytearray(10))
    assert "dropped" in repr(buffer)


def test_a_buffer_that_nobody_was_given_goes_with_its_object() -> None:
    regions = plane_of(runtime()).regions
    gc.collect()
    before = len(regions)
    data = bytearray(10)
    buffer = RDMABuffer(data)
    assert len(regions) == before + 1
    del buffer
    gc.collect()
    assert len(regions) == before
    data.extend(b"it is free again")


def test_keeping_the_buffer_keeps_its_memory() -> None:
    buffer = RDMABuffer(torch.full((1000,), 7, dtype=torch.uint8))
    gc.collect()
    room = bytearray(1000)
    buffer.read_into(room).get()
    assert set(room) == {7}


@pytest.mark.parametrize("size", [100, 20_000_000])  # in the caller's thread, and by others
def test_a_transfer_holds_its_buffers_until_it_is_done_and_an_action_its_own(size: int) -> None:
    rooms = [numpy.zeros(size, numpy.uint8) for _ in range(10)]
    sources = [numpy.full(size, n, numpy.uint8) for n in range(10)]
    ends = [weakref.ref(source) for source in sources]
    action = RDMAAction()
    futures: list[Any] = []
    for n, room in enumerate(rooms):
        if n < 5:
            action.read_remote(room, RDMABuffer(sources.pop(0)))
        else:
            futures.append(RDMABuffer(sources.pop(0)).read_into(room))
    for future in (*futures, action.submit(), action.submit()):
        future.get()
    assert [int(room[-1]) for room in rooms] == list(range(10))
    del action
    gc.collect()
    assert [end() for end in ends] == [None] * 10


@pytest.mark.parametrize("size", [100, 20_000_000])  # in the caller's thread, and by several
def test_memory_is_its_users_alone_when_its_transfer_is_done(procs: ProcMesh, size: int) -> None:
    holder: Any = procs.slice(gpus=0).spawn("lasting", Holder)
    buffer = holder.make.call_one(size, False).get()
    gc.collect()
    with without_gc():
        for _ in range(30):
            for move in (buffer.read_into, buffer.write_from):
                room = numpy.zeros(size, numpy.uint8)
                end = weakref.ref(room)
                move(room).get()
                del room
                assert end() is None, "something of the runtime still holds it"


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_handle_shows_what_it_is_and_not_its_key() -> None:
    buffer = RDMABuffer(bytearray(2000))
    assert (
        repr(buffer) == f"<RDMABuffer of 2,000 bytes of client (pid {buffer.handle().owner.pid})>"
    )
    same = pickle.loads(pickle.dumps(buffer))
    assert same == buffer
    assert hash(same) == hash(buffer)
    assert same.owner == buffer.owner


def test_memory_of_a_session_of_this_process_that_has_ended_is_told_as_such() -> None:
    before = Regions("node", "address")
    before.close()
    buffer = RDMABuffer(bytearray(10))
    was_here = msgspec.structs.replace(buffer.handle().owner, incarnation=before.owner.incarnation)
    with pytest.raises(RDMAOwnerLostError, match="the session of this process in which it was"):
        forged(buffer, owner=was_here).read_into(bytearray(10)).get()
    # Of another container perhaps, whose processes have numbers of their own.
    elsewhere = msgspec.structs.replace(was_here, incarnation=bytes(16))
    with pytest.raises(RDMAOwnerLostError, match="the process has ended"):
        forged(buffer, owner=elsewhere).read_into(bytearray(10)).get()


def forged(buffer: RDMABuffer, **changes: Any) -> RDMABuffer:
    changed = msgspec.structs.replace(buffer.handle(), **changes)
    return pickle.loads(pickle.dumps(buffer)).__reduce__()[0](handles.encode(changed))


@pytest.mark.parametrize("transport", ["shm", "cma", "tcp"])
def test_forged_handles_lead_nowhere(spawn_procs: Spawn, transport: str) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    holder: Any = procs.slice(gpus=0).spawn("holder", Holder)
    mover: Any = procs.slice(gpus=1).spawn("mover", Mover)
    mover.only.call_one(transport).get()
    buffer = holder.make.call_one(1000, transport == "shm").get()
    other = holder.make.call_one(1000, transport == "shm", seed=1).get()
    assert mover.read.call_one(buffer).get() == transport
    there = buffer.handle()
    for changes in (
        {"key": bytes(16)},
        {"key": other.handle().key},
        {"slot": other.handle().slot},
        {"slot": 1 << 20},
        {"slot": 3},
        {"size": 1001},
        {"size": 999},
    ):
        with pytest.raises(ActorError) as raised:
            mover.first_byte.call_one(forged(buffer, **changes)).get()
        assert isinstance(raised.value.exception, RDMAHandleError), changes
    assert there.key != other.handle().key
    assert mover.read.call_one(buffer).get() == transport


@pytest.mark.parametrize("sealed", [False, True])
def test_a_stranger_at_the_socket_gets_nothing_and_takes_nothing(sealed: bool) -> None:
    plane = plane_of(runtime())
    data = bytearray(b"secret" * 10)
    buffer = RDMABuffer(data)
    server = TcpServer(RegionRequests(plane.regions))
    place = server.place(LOOPBACK, [LOOPBACK], sealed=sealed)
    there = buffer.handle()
    incarnation = there.owner.incarnation
    late = time.monotonic() + 60
    try:
        with pytest.raises(StrangerError, match="another process listens"):
            dial(ServerAddress(place.hosts, place.port, bytes(32), sealed=sealed), late)
        for connected, request in itertools.product((
            partial(socket.create_connection, (LOOPBACK, place.port)),
            lambda: dial(place, late)._socket,  # who knows the secret, and no region
        ), (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"\r\n" * 20,
            REQUEST.pack(MAGIC, READ, there.slot, bytes(16), there.key, 60, 0, 60),
            REQUEST.pack(MAGIC, READ, there.slot, incarnation, bytes(16), 60, 0, 60),
            REQUEST.pack(MAGIC, READ, there.slot, incarnation, there.key, 60, 30, 60),
            REQUEST.pack(MAGIC, READ, there.slot, incarnation, there.key, 60, 1 << 63, 1 << 63),
            b"MR",
        )):  # fmt: skip
            answer = b""
            with (
                connected() as stranger,
                contextlib.suppress(OSError),  # it hangs up on nonsense
            ):
                stranger.sendall(request)
                stranger.shutdown(socket.SHUT_WR)
                for part in iter(partial(stranger.recv, 1 << 16), b""):
                    answer += part
            assert b"secret" not in answer
    finally:
        server.close()
    assert data == b"secret" * 10


def test_the_machine_says_what_it_has(procs: ProcMesh) -> None:
    assert get_rdma_backend() in ("ibverbs", "tcp")
    with configured(rdma_disable_ibverbs=True):
        assert get_rdma_backend() == "tcp"
    with configured(rdma_disable_ibverbs=True, rdma_allow_tcp_fallback=False):
        assert get_rdma_backend() == "none"
    assert is_ibverbs_available() == is_rdma_available() == (sysfs.usable_here()[0] is not None)
    with configured(rdma_disable_ibverbs=True):
        assert not is_ibverbs_available()
    with pytest.raises(ValueError, match="give 'cpu' or 'cuda'"):
        get_rdma_backend("mps")
    holder: Any = procs.slice(gpus=0).spawn("holder", Holder)
    buffer = holder.make.call_one(1000, False).get()
    buffer.read_into(bytearray(1000)).get()
    (use,) = transports()
    assert use.pid == buffer.handle().owner.pid
    assert use.transport == buffer.backend
    assert use.transport in ("shm", "cma", "tcp")
    assert use.bytes_read == {use.transport: 1000}
    assert str(use).endswith(f"(pid {use.pid}): {use.transport}")


def test_a_way_that_may_not_be_used_is_no_backend(procs: ProcMesh) -> None:
    holder: Any = procs.slice(gpus=0).spawn("holder", Holder)
    mover: Any = procs.slice(gpus=1).spawn("mover", Mover)
    mover.only.call_one("tcp").get()
    buffer = holder.make.call_one(1000, False).get()
    assert mover.read.call_one(buffer).get() == "tcp"
    mover.forbid_tcp.call_one().get()
    assert mover.backend.call_one(buffer).get() == "none"
