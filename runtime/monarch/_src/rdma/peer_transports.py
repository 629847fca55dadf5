"""This process and one other: the open transports between them, and the choice of one.

Runs in: threads that move bytes; the receiving thread reports the end of the peer.
Owns: the links, the view of the peer's table, a pidfd.
Invariants: a transport is used only after its probe has passed. A transport that fails is not used
again for this pair, except TCP, after its error has been reported.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection

from monarch._src.config import settings
from monarch._src.net.streams.sockets import Connector
from monarch._src.rdma.handle import Handle, Owner
from monarch._src.rdma.transports.base import Choice, OwnerGone, Transport, TransportFailed, Why
from monarch._src.rdma.transports.cma import CmaLink
from monarch._src.rdma.transports.cuda_ipc import CudaIpcLink
from monarch._src.rdma.transports.local_peer import LocalPeer, is_alive, process_of
from monarch._src.rdma.transports.shm import ShmLink
from monarch._src.rdma.transports.tcp_client import TcpLink
from monarch._src.system.shared_memory import this_host

ORDER = ("cuda_ipc", "shm", "cma", "ibverbs", "tcp")
ConnectorTo = Callable[[Owner, float], Connector]
OverCard = Callable[[Owner, Callable[[], bool], float], Transport]


def suited(handle: Handle) -> tuple[str, ...]:
    """The transports that can move that memory, fastest first."""
    here = handle.owner.host == this_host()
    if handle.gpu:
        return ("cuda_ipc", "tcp") if here else ("tcp",)
    if not here:
        return ("ibverbs", "tcp")
    return ("shm", "cma", "ibverbs", "tcp") if handle.shared else ("cma", "ibverbs", "tcp")


class NoTransport(Exception):
    """No permitted transport works; `why` has the reason of each."""

    def __init__(self, why: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in why.items()))


class Pair:
    """The transports to one other process; see the module's docstring."""

    def __init__(
        self, owner: Owner, connector_to: ConnectorTo, over_card: OverCard,
        is_known: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`connector_to`: asks the owner to serve over TCP; returns a connector to it.
        `over_card`: connects by the RDMA cards of both. `is_known`: whether the control plane
        believes the owner to be alive."""
        self.owner = owner
        self._is_known = is_known
        self.choice = Choice(ORDER)
        self.links: dict[str, Transport] = {}
        self.unfit: dict[str, Why] = {}  # working links that cannot reach some memory: last reason
        # Pairs (suited transports, used one) that were reported in a warning.
        self.reported: set[tuple[tuple[str, ...], str]] = set()
        self.transfers: Counter[str] = Counter()
        self.bytes_read: Counter[str] = Counter()
        self.bytes_written: Counter[str] = Counter()
        self.pidfd = process_of(owner)
        self.openers: dict[str, Callable[[float], Transport]] = {
            "cuda_ipc": lambda _: CudaIpcLink(self.peer()),
            "shm": lambda _: ShmLink(self.peer()),
            "cma": lambda _: CmaLink(self.peer()),
            "ibverbs": lambda until: over_card(owner, self.is_gone, until),
            "tcp": lambda until: TcpLink(owner, connector_to(owner, until), self.is_gone, until),
        }
        self._opening = threading.Lock()
        self._peer: LocalPeer | None = None
        self._no_peer: Why | None = None

    def peer(self) -> LocalPeer:
        """The owner's table, opened once. Raises OwnerGone or TransportFailed."""
        if self._peer is None:
            if self._no_peer is not None:
                raise TransportFailed(self._no_peer.reason, self._no_peer.remedy)
            try:
                self._peer = LocalPeer(self.owner)
            except TransportFailed as error:
                self._no_peer = error.why
                raise
        return self._peer

    def is_gone(self) -> bool:
        """Whether the owner's process has ended, as far as this process can see."""
        if self.pidfd is None:
            return not self._is_known()
        return not is_alive(self.pidfd)

    def ready(self, suited: Collection[str]) -> Transport | None:
        """The preferred link for these transports, if it is open."""
        name = self.choice.best(suited)
        return None if name is None else self.links.get(name)

    def open(self, suited: Collection[str], deadline: float) -> tuple[Transport, bool]:
        """The fastest working link, and whether it was opened just now.

        Raises:
            NoTransport: no permitted transport works. OwnerGone: the owner has ended.
        """
        with self._opening:
            while True:
                name = self.choice.best(suited)
                if name is None:
                    why = self.whys()
                    self.choice.give_another_chance()
                    raise NoTransport(why)
                if name == "tcp" and not settings().rdma_allow_tcp_fallback:
                    raise NoTransport(self.whys() | {"tcp": "rdma_allow_tcp_fallback is False"})
                link = self.links.get(name)
                if link is not None:
                    return link, False
                try:
                    link = self.openers[name](deadline)
                except TransportFailed as error:
                    if self.is_gone():
                        raise OwnerGone("its process has ended") from error
                    self.choice.failed(name, error.why)
                    continue
                self.links[name] = link
                self.choice.worked(name)
                return link, True

    def failed(self, link: Transport, why: Why) -> None:
        """A transfer over that link has failed: close the link and remember the reason."""
        with self._opening:
            if self.links.get(link.name) is link:
                del self.links[link.name]
                link.close()
                self.choice.failed(link.name, why)

    def whys(self) -> dict[str, str]:
        """The reason why each unused transport is not used, even if for some memory only."""
        found = {name: why.text for name, why in self.unfit.items()} | self.choice.whys()
        return {name: found[name] for name in self.choice.order if name in found}

    def count(self, way: str, name: str, size: int) -> None:
        """Count a transfer."""
        self.transfers[name] += 1
        (self.bytes_read if way == "read" else self.bytes_written)[name] += size

    def cut(self) -> None:
        """Close all links; transfers on their way fail."""
        for link in list(self.links.values()):
            link.close(now=True)

    def close(self) -> None:
        """Close everything. No transfer may be on its way any more."""
        self.cut()
        with self._opening:
            self.links = {}
            fd, self.pidfd = self.pidfd, None
            self._peer = None
        if fd is not None:
            os.close(fd)
