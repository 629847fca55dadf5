"""Which transport this process uses with whom, and why not a faster one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from monarch._src.actor.runtime import runtime_or_none
from monarch._src.config import settings
from monarch._src.rdma.cuda.gpu import why_no_gpu
from monarch._src.rdma.handle import Handle
from monarch._src.rdma.peer_transports import suited
from monarch._src.rdma.plane import DataPlane
from monarch._src.rdma.transports import cma
from monarch._src.rdma.transports.base import Transport
from monarch._src.rdma.transports.cuda_ipc import CudaIpcLink
from monarch._src.rdma.transports.tcp_client import TcpLink
from monarch._src.rdma.verbs import sysfs


@dataclass(frozen=True)
class TransportUse:
    """What this process knows of the ways to one other process whose memory it has used.

    transport: the fastest that bytes go over now; None before the first transfer has gone through.
    encrypted: whether what goes by TCP is, if anything does (`rdma_encrypt_tcp`).
    failed: why each of those that do not work is not used. That which is used may be there too, or
        a faster one that works: it cannot reach some of that process's memory.
    transfers, bytes_read, bytes_written: how much went over each.
    """

    node: str
    pid: int
    host: str
    transport: str | None
    failed: dict[str, str]
    transfers: dict[str, int] = field(default_factory=dict[str, int])
    bytes_read: dict[str, int] = field(default_factory=dict[str, int])
    bytes_written: dict[str, int] = field(default_factory=dict[str, int])
    encrypted: bool = False

    def __str__(self) -> str:
        why = "".join(
            f"; not {name}{' for all memory' if name == self.transport else ''}: {text}"
            for name, text in self.failed.items()
        )
        sealed = ", encrypted" if self.encrypted and self.transport == "tcp" else ""
        return f"{self.node} (pid {self.pid}): {self.transport or 'nothing yet'}{sealed}{why}"


def transports() -> list[TransportUse]:
    """One entry for each process whose memory this one has read or written, while it lives."""
    plane = _plane()
    return [] if plane is None else [
        TransportUse(
            pair.owner.node,
            pair.owner.pid,
            pair.owner.host.partition("/")[0],
            next((n for n in pair.choice.order if n in pair.links and pair.transfers[n]), None),
            pair.whys(),
            dict(pair.transfers),
            dict(pair.bytes_read),
            dict(pair.bytes_written),
            _is_sealed(pair.links.get("tcp")),
        )
        for pair in plane.pairs()
    ]  # fmt: skip


def _is_sealed(link: Transport | None) -> bool:
    return isinstance(link, TcpLink) and link.sealed


def backend_of(handle: Handle) -> str:
    """What this process uses for that memory, or would try first."""
    plane = _plane()
    if plane is not None:
        if plane.is_own(handle):
            return "local"
        for pair in plane.pairs():
            if pair.owner.incarnation == handle.owner.incarnation:
                link = pair.links.get("cuda_ipc")
                closed = isinstance(link, CudaIpcLink) and not link.reaches(handle)
                names = [n for n in suited(handle) if not (closed and n == "cuda_ipc")]
                found = pair.choice.best(names) or "none"
                return _last_resort() if found == "tcp" else found
    if handle.gpu:
        usable = "cuda_ipc" in suited(handle) and not why_no_gpu()
        return "cuda_ipc" if usable else _last_resort()
    if "cma" in suited(handle) and cma.works_here() is None:
        return "shm" if handle.shared else "cma"
    return get_rdma_backend()


def get_rdma_backend(device: str = "cpu") -> Literal["ibverbs", "tcp", "none"]:
    """What moves memory of that kind of device between hosts.

    Of `"cpu"`: `ibverbs` over an RDMA card, else `tcp`. Of `"cuda"`, a GPU's: `tcp`. `none` if TCP
    may not be used (`rdma_allow_tcp_fallback`). Two processes of one host have faster ways (`shm`,
    `cma`, `cuda_ipc`): `transports()` and `RDMABuffer.backend` say which they use.

    Raises:
        ValueError: there is no memory of such a device that could be moved.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r}: memory of 'cpu' or 'cuda' is moved")
    return "ibverbs" if device == "cpu" and is_ibverbs_available() else _last_resort()


def _last_resort() -> Literal["tcp", "none"]:
    return "tcp" if settings().rdma_allow_tcp_fallback else "none"


def is_ibverbs_available() -> bool:
    """Whether bytes could go over an RDMA network card of this machine.

    There is one with an active port that this process may open, pyverbs is installed, and
    `rdma_disable_ibverbs` is not set.
    """
    return not settings().rdma_disable_ibverbs and sysfs.usable_here()[0] is not None


def is_rdma_available() -> bool:
    """The same as `is_ibverbs_available`: Monarch has both names."""
    return is_ibverbs_available()


def _plane() -> DataPlane | None:
    run = runtime_or_none()
    return None if run is None else run.data
