"""The two sides of a transfer with memory of a GPU: a real one where there is one, and the fake."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any, ClassVar

import numpy

from monarch._src.actor.runtime import runtime
from monarch._src.rdma.cuda.gpu import gpu, gpu_if_used, why_no_gpu
from monarch._src.rdma.plane import plane_of
from monarch._src.rdma.transports.cuda_ipc import CudaIpcLink
from monarch.actor import endpoint
from monarch.rdma import RDMABuffer
from tests.integration.rdma.parties import Holder, Mover, Way, be_far, pattern
from tests.support import fake_cuda
from tests.support.fake_gpu_arrays import DeviceArray


class GpuHolder(Holder):
    """Has memory of a GPU."""

    fake: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.driver = fake_cuda.install() if self.fake else None

    def memory(self, size: int, shared: bool) -> Any:
        return DeviceArray(size)

    def fill(self, memory: Any, seed: int) -> None:
        memory.put(pattern(len(memory), seed))

    def seen(self, memory: Any) -> numpy.ndarray[Any, Any]:
        return _seen(memory)

    def address(self, memory: Any) -> int:
        return memory.address

    def full_of(self, value: int, size: int) -> Any:
        return _full_of(value, size)

    @endpoint
    def make_parts(self, count: int, size: int) -> list[RDMABuffer]:
        """Regions of one allocation, as torch's allocator cuts them."""
        whole = DeviceArray(count * size)
        for n in range(count):
            part = whole[n * size : (n + 1) * size]
            self.fill(part, n)
            self.arrays.append(part)
            self.buffers.append(RDMABuffer(part))
        return self.buffers[-count:]

    @endpoint
    def make_unexportable(self, size: int, seed: int) -> RDMABuffer:
        """As with expandable segments."""
        assert self.driver is not None
        self.driver.expandable = True
        memory = DeviceArray(size)
        self.driver.expandable = False
        self.fill(memory, seed)
        self.arrays.append(memory)
        return RDMABuffer(memory)

    @endpoint
    def exported(self) -> int:
        return plane_of(runtime()).regions.exported

    @endpoint
    def held(self) -> dict[str, int]:
        return _held(self.driver)

    @endpoint
    def fail(self, name: str, at: int, times: int, result: int) -> None:
        assert self.driver is not None
        self.driver.fail(name, result, at, times)


class GpuMover(Mover):
    """Moves to and from memory of a GPU."""

    fake: ClassVar[bool] = True

    def __init__(self) -> None:
        self.driver = fake_cuda.install() if self.fake else None

    def room(self, size: int, value: int = 0) -> Any:
        return _full_of(value, size)

    def plain(self, size: int) -> Any:
        return DeviceArray(size)

    def seen(self, room: Any) -> numpy.ndarray[Any, Any]:
        return _seen(room)

    def filled(self, size: int, seed: int) -> Any:
        found = DeviceArray(size)
        found.put(pattern(size, seed))
        return found

    def clear(self, room: Any) -> None:
        room.put(numpy.zeros(len(room), numpy.uint8))

    @endpoint
    def held(self) -> dict[str, int]:
        return _held(self.driver)

    @endpoint
    def opened(self) -> int:
        """How many allocations of others are open here."""
        links = [pair.links.get("cuda_ipc") for pair in plane_of(runtime()).pairs()]
        return sum(link.opened for link in links if isinstance(link, CudaIpcLink))

    @endpoint
    def fail(self, name: str, at: int, times: int, result: int) -> None:
        """From the `at`-th call on, so many fail."""
        assert self.driver is not None
        self.driver.fail(name, result, at, times)

    @endpoint
    def read_any(self, buffer: RDMABuffer) -> str:
        """Into memory of the host."""
        buffer.read_into(bytearray(buffer.size())).get()
        return buffer.backend

    @endpoint
    def kill_self_at(self, name: str, at: int) -> None:
        assert self.driver is not None
        self.driver.at_call(name, at, lambda: os.kill(os.getpid(), signal.SIGKILL))

    @endpoint
    def driver_is_loaded(self) -> bool:
        return gpu_if_used() is not None


class FromGpuMover(GpuMover):
    """Moves between memory of GPUs of others and that of the host here, with a GPU of its own."""

    def room(self, size: int, value: int = 0) -> Any:
        return Mover.room(self, size, value)

    def plain(self, size: int) -> Any:
        return Mover.plain(self, size)

    def seen(self, room: Any) -> numpy.ndarray[Any, Any]:
        return Mover.seen(self, room)

    def filled(self, size: int, seed: int) -> Any:
        return Mover.filled(self, size, seed)

    def clear(self, room: Any) -> None:
        Mover.clear(self, room)


class OtherGpuMover(GpuMover):
    """On a device that is not the owner's, and cannot reach that one's memory."""

    def __init__(self) -> None:
        self.driver = fake_cuda.install(visible=(1,), peers=False)


class RenumberedMover(GpuMover):
    """Has the owner's device under another number."""

    def __init__(self) -> None:
        self.driver = fake_cuda.install(visible=(1, 0))


class NoDeviceMover(FromGpuMover):
    """Has a driver and no device."""

    def __init__(self) -> None:
        self.driver = fake_cuda.install(visible=())


class FarGpuHolder(GpuHolder):
    """Serves it over TCP as it does other hosts: encrypted."""

    def __init__(self) -> None:
        super().__init__()
        be_far()


class RealGpuHolder(GpuHolder):
    fake = False


class RealFarGpuHolder(FarGpuHolder):
    fake = False


class RealGpuMover(GpuMover):
    fake = False


class RealFromGpuMover(FromGpuMover):
    fake = False


def _seen(memory: DeviceArray) -> numpy.ndarray[Any, Any]:
    return numpy.frombuffer(memory.tobytes(), numpy.uint8)


def _full_of(value: int, size: int) -> DeviceArray:
    found = DeviceArray(size)
    found.put(numpy.full(size, value, numpy.uint8))
    return found


def _held(driver: fake_cuda.FakeDriver | None) -> dict[str, int]:
    gc.collect()
    made = gpu().chunks.made
    return {"chunks": made} if driver is None else {**driver.held(), "chunks": made}


NO_REAL_GPU = why_no_gpu()


def ways(*wanted: tuple[str, str, str]) -> list[str]:
    """Those of transport, owner's and mover's side, over the fake driver, and a real one if any."""
    drivers = ("fake",) if NO_REAL_GPU else ("fake", "real")
    return [", ".join((*sides, driver)) for driver in drivers for sides in wanted]


def way_of(text: str) -> Way:
    """What one of `ways` says."""
    name, owner, mover, driver = text.split(", ")
    movers: dict[str, tuple[type[Mover], type[Mover]]] = {
        "to gpu": (GpuMover, RealGpuMover),
        "to host": (FromGpuMover, RealFromGpuMover),
        "to no gpu": (Mover, Mover),
    }
    holders = {
        "of gpu": (GpuHolder, RealGpuHolder),
        "of far gpu": (FarGpuHolder, RealFarGpuHolder),
        "of host": (Holder, Holder),
    }
    real = driver == "real"
    made = Way(name)
    made.parties = holders[owner][real], movers[mover][real]
    return made
