"""pyverbs, of rdma-core 44 (Debian 12) up to 59 (PyPI). Only this module imports it.

Differences: in the old version enums are names in one module, in the new one members of classes.
Only the new one has an attribute for the descriptor of a completion channel. In both, the memory of
a work request and its element is freed only by an explicit `close`.

Runs in: a process that opens a card. Invariants: nothing here blocks. Only `Verbs` calls methods of
pyverbs objects.
"""

from __future__ import annotations

import errno
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec

from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.verbs.device_choice import Gid
from monarch._src.rdma.verbs.protocol import Ends
from monarch._src.rdma.verbs.sysfs import INSTALL

TIMEOUT = 17  # 4.096 us * 2^17: retry after 0.54 s without an answer
RETRIES = 6  # the maximum is 7, which Soft-RoCE takes as unlimited
RNR_TIMER = 12  # required by the kernel; without receive requests it is never used
HOPS = 64
# Status codes of completions, from the InfiniBand specification.
STATUS = {
    1: "local length error", 2: "local queue pair error", 4: "local protection error",
    5: "the queue pair was in error", 6: "memory window error", 7: "bad response",
    8: "local access error", 9: "the other side reports an invalid request",
    10: "the other side reports no access to that memory", 11: "the other side failed",
    12: "no answer from the other side", 13: "the other side was not ready",
    21: "fatal error", 22: "no response in time", 23: "general error",
}  # fmt: skip
REMOTE_INVALID, REMOTE_ACCESS, REMOTE_OPERATION, NO_ANSWER = 9, 10, 11, 12


class Completion(msgspec.Struct, frozen=True):
    """The result of a work request: its number, its status (0: success), the vendor's code."""

    number: int
    status: int
    vendor: int

    @property
    def text(self) -> str:
        """A description for errors."""
        said = STATUS.get(self.status, "an error")
        return f"{said} (completion status {self.status}, vendor's code {self.vendor})"


class Limits(msgspec.Struct, frozen=True):
    """The limits of a card and its port. `mtu` in bytes."""

    mtu: int
    reads_out: int
    reads_in: int
    requests: int
    completions: int


@cache
def verbs() -> Verbs:
    """The pyverbs library, loaded. Raises TransportFailed."""
    return Verbs()


class Verbs:
    """A wrapper around pyverbs. Its objects have type Any outside."""

    def __init__(self) -> None:
        # Memory that a card uses must not be copied when this process forks. New kernels ensure
        # that; for old ones the library does, if this is set before the first card is opened.
        os.environ.setdefault("RDMAV_FORK_SAFE", "1")
        try:
            self._error: type[Exception] = _module("pyverbs_error").PyverbsError
            self._device, self._pd, self._cq = _module("device"), _module("pd"), _module("cq")
            self._qp, self._mr, self._wr = _module("qp"), _module("mr"), _module("wr")
            self._addr = _module("addr")
            enum = enums()
        except (ImportError, AttributeError) as error:
            raise TransportFailed(f"pyverbs cannot be used: {error}", INSTALL) from error
        self._rc = enum("ibv_qp_type", "IBV_QPT_RC")
        self._ways = {
            "read": enum("ibv_wr_opcode", "IBV_WR_RDMA_READ"),
            "write": enum("ibv_wr_opcode", "IBV_WR_RDMA_WRITE"),
        }
        self._signaled = enum("ibv_send_flags", "IBV_SEND_SIGNALED")
        self._local_write = enum("ibv_access_flags", "IBV_ACCESS_LOCAL_WRITE")
        self._remote_write = enum("ibv_access_flags", "IBV_ACCESS_REMOTE_WRITE")
        self._remote_read = enum("ibv_access_flags", "IBV_ACCESS_REMOTE_READ")

    def open(self, name: str, port: int) -> tuple[Any, Any, Limits]:
        """Open a card: its context, a protection domain, its limits."""
        context = self._try(lambda: self._device.Context(name=name), f"{name} cannot be opened")
        try:
            domain = self._pd.PD(context)
            device, found = context.query_device(), context.query_port(port)
        except self._error as error:
            context.close()
            raise TransportFailed(f"{name} cannot be used: {error}") from error
        limits = Limits(
            128 << int(found.active_mtu),
            max(1, min(16, device.max_qp_init_rd_atom)),
            max(1, min(16, device.max_qp_rd_atom)),
            device.max_qp_wr,
            device.max_cqe,
        )
        return context, domain, limits

    def register(
        self, domain: Any, address: int, size: int, *, writable: bool, remote: bool
    ) -> Any:
        """Pin memory and give it keys (`lkey`, `rkey`), until the result is closed.

        `writable`: the card may write to it. `remote`: peers with the key may reach it.
        """
        access = 0
        if writable:
            access |= self._local_write | (self._remote_write if remote else 0)
        if remote:
            access |= self._remote_read
        try:
            return self._mr.MR(domain, size, access, address=address)
        except self._error as error:
            number = getattr(error, "error_code", 0)
            remedy = ""
            if number in (errno.ENOMEM, errno.EAGAIN) or "annot allocate" in str(error):
                remedy = "raise the limit of locked memory (`ulimit -l unlimited`)"
            raise TransportFailed(
                f"{size:,} bytes could not be registered: {error}", remedy
            ) from error

    def completion_channel(self, context: Any) -> tuple[Any, int]:
        """A completion channel, and its descriptor, which is set to non-blocking."""
        for _ in range(16):
            with _finding:
                before = _event_files()
                channel = self._try(lambda: self._cq.CompChannel(context), "no completion channel")
                fd = getattr(channel, "fd", None)
                new = _event_files() - before if fd is None else {int(fd)}
            if len(new) == 1:
                (found,) = new
                os.set_blocking(found, False)
                return channel, found
            channel.close()  # another library in this process opened one at the same time
        raise TransportFailed("the descriptor of the completion channel could not be identified")

    def completion_queue(self, context: Any, size: int, channel: Any | None) -> Any:
        """A queue for that many completions."""
        return self._try(
            lambda: self._cq.CQ(context, size, None, channel, 0), "no completion queue"
        )

    def queue_pair(self, domain: Any, queue: Any, port: int, depth: int) -> Any:
        """A queue pair in state INIT, to be connected."""
        cap = self._qp.QPCap(max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        wanted = self._qp.QPInitAttr(qp_type=self._rc, scq=queue, rcq=queue, cap=cap, sq_sig_all=0)
        attributes = self._qp.QPAttr(port_num=port)
        attributes.qp_access_flags = self._remote_read | self._remote_write

        def make() -> Any:
            pair = self._qp.QP(domain, wanted)
            pair.to_init(attributes)
            return pair

        return self._try(make, "no queue pair")

    def connect(
        self, pair: Any, own: tuple[int, Gid], first: int, theirs: Ends, at: int, mtu: int,
        reads: tuple[int, int],
    ) -> None:  # fmt: skip
        """Connect the local side of a queue pair: INIT to RTR to RTS.

        Args:
            own: the local port and its address.
            first: the number of the first local packet.
            at: the index of the other side's queue pair.
            reads: how many READs may be open in each direction.
        """
        port, gid = own
        attributes = self._qp.QPAttr(port_num=port, path_mtu=mtu.bit_length() - 8)
        attributes.dest_qp_num, attributes.rq_psn = theirs.pairs[at]
        attributes.sq_psn = first
        attributes.max_rd_atomic, attributes.max_dest_rd_atomic = reads
        attributes.min_rnr_timer = RNR_TIMER
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = TIMEOUT, RETRIES, RETRIES
        attributes.qp_access_flags = self._remote_read | self._remote_write
        place = theirs.place
        if place.link_layer == "InfiniBand" and gid.value[:16] == place.gid.value[:16]:
            attributes.ah_attr = self._addr.AHAttr(dlid=place.lid, is_global=0, port_num=port)
        else:
            value = place.gid.value
            text = ":".join(value[n : n + 4] for n in range(0, 32, 4))
            route = self._addr.GlobalRoute(
                dgid=self._addr.GID(text), sgid_index=gid.index, hop_limit=HOPS
            )
            attributes.ah_attr = self._addr.AHAttr(
                dlid=place.lid, is_global=1, port_num=port, gr=route
            )
        self._try(lambda: pair.to_rts(attributes), "the queue pair cannot be connected")

    def post(
        self, pair: Any, number: int, way: str, local: tuple[int, int], remote: tuple[int, int],
        size: int,
    ) -> None:  # fmt: skip
        """Have the card move bytes between two (address, key) pairs. Raises TransportFailed."""
        element = self._wr.SGE(local[0], size, local[1])
        request = self._wr.SendWR(
            wr_id=number, opcode=self._ways[way], num_sge=1, sg=[element],
            send_flags=self._signaled,
        )  # fmt: skip
        try:
            request.set_wr_rdma(remote[1], remote[0])
            self._try(lambda: pair.post_send(request), "a request could not be posted")
        finally:
            request.close()
            element.close()

    def arm(self, queue: Any) -> None:
        """Request an event on its channel for the next completion."""
        self._try(queue.req_notify, "a completion queue cannot be armed")

    def take_event(self, channel: Any, queue: Any) -> None:
        """Consume an event of the channel, once its descriptor is readable."""
        try:
            channel.get_cq_event(queue)
        except self._error:
            return  # there was no event
        queue.ack_events(1)

    def poll(self, queue: Any, most: int) -> Sequence[Completion]:
        """Up to `most` completions."""
        _, found = self._try(lambda: queue.poll(most), "a completion queue cannot be read")
        return [Completion(wc.wr_id, int(wc.status), wc.vendor_err) for wc in found]

    def close(self, thing: Any) -> None:
        """Close an object. Errors are ignored: the kernel refuses if the card is gone."""
        try:
            thing.close()
        except self._error:
            pass

    def _try(self, make: Callable[[], Any], what: str) -> Any:
        try:
            return make()
        except self._error as error:
            raise TransportFailed(f"{what}: {error}") from error


def _module(name: str) -> Any:
    return importlib.import_module(f"pyverbs.{name}")


def enums() -> Callable[[str, str], int]:
    """A function that returns the value of a constant, given its enum and its name."""
    try:
        scoped = _module("libibverbs_enums")
    except ImportError:
        scoped = None
    if scoped is not None and hasattr(scoped, "ibv_qp_type"):
        return lambda scope, name: int(getattr(getattr(scoped, scope), name))
    flat = _module("enums")
    return lambda _, name: int(getattr(flat, name))


_finding = threading.Lock()


def _event_files() -> set[int]:
    """The descriptors of this process for events of cards."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if "[infinibandevent]" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
        except OSError:
            pass  # closed by another thread since it was listed
    return found
