"""Memory of a GPU between two processes of this host, against what the GPU itself copies at.

    python -m tests.benchmarks.gpu_memory [--most MIB]

MiB a second, the best of several. `device` and `pinned` are copies within one process, over the
same GPU and between it and pinned memory of the host: what the ways below can reach at most. It
needs a GPU; without one it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from monarch._src.rdma.cuda.gpu import gpu, why_no_gpu
from monarch.actor import endpoint, shutdown_context, this_host
from monarch.rdma import RDMABuffer
from tests.benchmarks.rdma import best, rounds
from tests.integration.rdma.gpu_parties import RealGpuHolder, RealGpuMover
from tests.integration.rdma.parties import Holder
from tests.support.fake_gpu_arrays import DeviceArray

MIB = 1 << 20
SIZES = [64 << 10, MIB, 16 * MIB, 256 * MIB, 1024 * MIB]


class Timed(RealGpuMover):
    """Times what it moves to and from its GPU, and what its GPU copies by itself."""

    @endpoint
    def time(self, buffer: RDMABuffer, way: str) -> float:
        room = DeviceArray(buffer.size())
        move = buffer.read_into if way == "read" else buffer.write_from
        return best(lambda: move(room).get(), rounds(buffer.size()))

    @endpoint
    def device(self, size: int) -> float:
        one, other = DeviceArray(size), DeviceArray(size)
        return best(lambda: gpu().copy(one.address, other.address, size, 0), rounds(size))

    @endpoint
    def pinned(self, size: int, way: str) -> float:
        found, there = gpu(), DeviceArray(size)
        here = found.allocate_pinned(0, size)
        to, source = (there.address, here) if way == "read" else (here, there.address)
        try:
            return best(lambda: found.copy(to, source, size, 0), rounds(size))
        finally:
            found.free_pinned(0, here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1024, help="largest size in MiB")
    sizes = [size for size in SIZES if size <= parser.parse_args().most * MIB]
    why = why_no_gpu()
    if why:
        sys.exit(f"no GPU to measure on, so there are no figures: {why}")

    def spawned(actor: type[Any]) -> Any:
        return this_host().spawn_procs({"gpus": 1}).spawn(actor.__name__.lower(), actor)

    on_gpu, on_host = spawned(RealGpuHolder), spawned(Holder)
    movers: dict[str, Any] = {}
    for name in ("cuda_ipc", "tcp", "cma"):
        movers[name] = spawned(Timed)
        movers[name].only.call_one(name).get()
    ways = [
        ("device to device", "cuda_ipc", on_gpu),
        ("through the host at both ends", "tcp", on_gpu),
        ("from and to memory of the host", "cma", on_host),
    ]
    print(f"{'bytes':>12}  {'way':<32}{'over':<10}{'read':>10}{'write':>10}  MiB a second")
    for size in sizes:
        alone = movers["cuda_ipc"]
        seconds = alone.device.call_one(size).get()
        _line(size, "device", "the GPU", seconds, seconds)
        pinned = [alone.pinned.call_one(size, way).get() for way in ("read", "write")]
        _line(size, "pinned", "the GPU", *pinned)
        for text, name, holder in ways:
            buffer = holder.make.call_one(size, False).get()
            took = [movers[name].time.call_one(buffer, way).get() for way in ("read", "write")]
            _line(size, text, name, *took)
            holder.forget.call_one().get()
    shutdown_context().get()


def _line(size: int, text: str, over: str, read_s: float, write_s: float) -> None:
    read, write = size / MIB / read_s, size / MIB / write_s
    print(f"{size:>12,}  {text:<32}{over:<10}{read:>10,.0f}{write:>10,.0f}")


if __name__ == "__main__":
    main()
