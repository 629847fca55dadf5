"""Which transport this process uses with each peer, and why not a faster one."""

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
    """The transports between this process and one whose memory it has used.

    transport: the fastest one in use; None before the first transfer has succeeded.
    encrypted: whether transfers over TCP are encrypted, if there are any (`rdma_encrypt_tcp`).
    failed: the reason why each unused transport is not used. It may contain the one in use, or a
        faster one that works, if it cannot reach some of that process's memory.
    transfers, bytes_read, bytes_written: totals for each transport.
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
    """One entry for each living process whose memory this process has read or written."""
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
    """The transport that this process uses for that memory, or would try first."""
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
    """The transport for memory of that kind of device between hosts.

    For `"cpu"`: `ibverbs` over an RDMA card, otherwise `tcp`. For `"cuda"`, memory of a GPU: `tcp`.
    `none` if TCP is forbidden (`rdma_allow_tcp_fallback`). Two processes of one host have faster
    transports (`shm`, `cma`, `cuda_ipc`): see `transports()` and `RDMABuffer.backend`.

    Raises:
        ValueError: memory of such a device cannot be moved.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r}: give 'cpu' or 'cuda'")
    return "ibverbs" if device == "cpu" and is_ibverbs_available() else _last_resort()


def _last_resort() -> Literal["tcp", "none"]:
    return "tcp" if settings().rdma_allow_tcp_fallback else "none"


def is_ibverbs_available() -> bool:
    """Whether this machine has a usable RDMA network card.

    That is a card with an active port that this process may open; pyverbs has to be installed, and
    `rdma_disable_ibverbs` must not be set.
    """
    return not settings().rdma_disable_ibverbs and sysfs.usable_here()[0] is not None


def is_rdma_available() -> bool:
    """The same as `is_ibverbs_available`; Monarch has both names."""
    return is_ibverbs_available()


def _plane() -> DataPlane | None:
    run = runtime_or_none()
    return None if run is None else run.data
