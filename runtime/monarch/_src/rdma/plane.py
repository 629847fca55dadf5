"""The data plane of one process: its registered memory, and the peers it exchanges bytes with.

Runs in: a client and every proc, from the first RDMABuffer or transfer until its session ends.
A small transfer runs in the caller's thread once its transport is open; others run in the pool.
Owns: the Regions, the Pairs, the Pool, the TCP server (`dialling`) and the RDMA card (`cards`).
Invariants: a future is settled only when no thread touches the memory of its transfer any more. The
resources of a peer are closed when its process ends, or when this one leaves the session.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime
from monarch._src.errors import (
    RDMAOwnerLostError,
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMATimeoutError,
    RDMAWriteTransferWarning,
)
from monarch._src.net.local.interrupt import GuardedLock, uninterrupted
from monarch._src.net.streams.dialling import Dialling
from monarch._src.net.streams.sockets import CannotConnect, Connector, Opener, ServerAddress
from monarch._src.net.streams.thread_pool import Pool
from monarch._src.net.tunnel.local_socket import connect_through, door_of
from monarch._src.rdma.batch import Batch
from monarch._src.rdma.cuda.gpu import gpu_if_used
from monarch._src.rdma.handle import VERSION, Handle, Owner
from monarch._src.rdma.memory import Memory
from monarch._src.rdma.peer_transports import Pair, suited
from monarch._src.rdma.regions import Regions, was_here
from monarch._src.rdma.transfer import Lane, Op, Way
from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    NotSupported,
    OwnerGone,
    Piece,
    Transport,
    TransportFailed,
)
from monarch._src.rdma.transports.gpu_staging import StagedLink
from monarch._src.rdma.transports.same_process import LocalLink
from monarch._src.rdma.transports.tcp_regions import RegionRequests
from monarch._src.rdma.verbs.process_card import Cards, Watch
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import COME, DROP, HANG_UP, OK, SERVE, AskData, Reply

log = logging.getLogger("monarch.rdma")
INLINE = 1 << 20  # bytes: moving them takes 0.1 ms, less than a hand-over to a thread and back
LOOK_S = 0.2
MOST_WAITS = 256
_NOTHING, _DROPPED = b"", b"dropped"
_warned: set[tuple[type[Warning], str]] = set()
_making = GuardedLock()


def plane_of(run: Runtime) -> DataPlane:
    """The data plane of this process, made on first use."""
    plane = run.data
    if plane is None:
        with _making:
            if run.data is None:
                run.data = DataPlane(run)
            plane = run.data
    return plane


class DataPlane:
    """The data plane of one process; see the module's docstring."""

    def __init__(self, run: Runtime) -> None:
        self._run = run
        self._lock = GuardedLock()
        self._pairs: dict[bytes, Pair] = {}
        self._closed = False
        self.pool = Pool()
        self.waits = Pool(most=MOST_WAITS)  # tasks that wait for peers; they must not block `pool`
        self.ended = threading.Event()
        self.regions = Regions(run.name, run.node.address)
        self._local = LocalLink(self.regions)
        self.dialling = Dialling(
            RegionRequests(self.regions), run.host, lambda: run.serves_at,
            lambda peer: run.node.site_of(peer) == run.node.site,
            self._opener,
        )  # fmt: skip
        leader = run.node.leader
        self.cards = Cards(
            self.regions, Watch(leader.watch, leader.unwatch, run.node.knows, self.pool.submit)
        )
        run.hooks.on_ask_data = self._on_ask
        run.payloads.on_gone.append(self._node_gone)
        run.closers.append(self.close)

    # --- registered memory ------------------------------------------------------------------------

    def register(self, memory: Memory, actor: str, actor_id: str) -> Handle:
        """Make memory reachable for processes with the handle. See Regions.register."""
        slot, key, shared = self.regions.register(memory)
        return Handle(
            VERSION, self.regions.owner, slot, key, memory.size, memory.readonly, shared, actor,
            actor_id, memory.device is not None,
        )  # fmt: skip

    def is_own(self, handle: Handle) -> bool:
        """Whether the memory belongs to this process."""
        return handle.owner.incarnation == self.regions.owner.incarnation

    def drop(self, handle: Handle, timeout_s: float) -> Future[None]:
        """Revoke a region; done when no process writes to it any more."""
        future: Future[None] = self._run.new_future()
        deadline = time.monotonic() + timeout_s

        def work() -> None:
            try:
                if self.is_own(handle):
                    self.regions.drop(handle.slot, handle.key)
                else:
                    self._ask(handle.owner, DROP, handle.slot, handle.key, deadline)
            except DeadlineExceeded:
                future.fail(
                    RDMATimeoutError(
                        f"dropping {handle.text}: no answer from its owner in {timeout_s:g} s",
                        handle.text, handle.actor_id, handle.size,
                    )
                )  # fmt: skip
            except OwnerGone:
                future.settle(lambda: None)  # the memory is gone too
            else:
                future.settle(lambda: None)

        if not self.pool.submit(work):
            future.settle(lambda: None)
        return future

    # --- transfers --------------------------------------------------------------------------------

    def submit(self, ops: Sequence[Op], timeout_s: float, keep: object = None) -> Future[None]:
        """Move all of it; the future fails with an RDMAError if any part fails.

        `keep`: an object that has to live until then.
        """
        future: Future[None] = self._run.new_future()
        deadline = time.monotonic() + timeout_s
        if len(ops) == 1 and ops[0].size <= INLINE:
            with uninterrupted():  # it holds a region meanwhile, and locks
                done = self._moved_at_once(ops[0], deadline)
            if done:
                future.settle(lambda: None)
                return future
        jobs = [Batch(self.move, ops, deadline, timeout_s, keep=keep)]

        def work() -> None:
            error = jobs.pop().run()  # popped, so that nothing here holds the memory afterwards
            if error is None:
                future.settle(lambda: None)
            else:
                future.fail(error)

        if not ops:
            future.settle(lambda: None)
        elif not self.pool.submit(work):
            future.fail(RDMAOwnerLostError("the session of this process has ended"))
        return future

    def run(
        self, ops: Sequence[Op], deadline: float, timeout_s: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        """Move all of it before this returns, with the help of the pool.

        `progress`: see Lane. Raises the error with which the future of `submit` would fail.
        """
        error = Batch(self.move, ops, deadline, timeout_s, progress).run()
        if error is not None:
            raise error

    def _moved_at_once(self, op: Op, deadline: float) -> bool:
        """Whether a small op was done on this thread; otherwise the pool has to start it anew."""
        handle = op.handle
        if handle.gpu or op.local.device is not None:
            return False  # a copy on a GPU waits for the work that is queued there
        pair = None
        link: Transport | None = self._local
        if not self.is_own(handle):
            pair = self._pairs.get(handle.owner.incarnation)
            link = None if pair is None else pair.ready(suited(handle))
        if link is None or not link.at_once:
            return False
        move = link.read_into if op.way == "read" else link.write_from
        try:
            move([Piece(handle, op.offset, op.local.address, op.size, op.local)], deadline)
        except (TransportFailed, OwnerGone, HandleExpired, DeadlineExceeded):
            return False
        if pair is not None:
            pair.count(op.way, link.name, op.size)
        return True

    def move(self, lane: Lane, handle: Handle, deadline: float, used: list[str]) -> None:
        """Move the ops of a lane; appends the names of the transports that were tried to `used`."""
        if self.is_own(handle):
            used.append(self._local.name)
            lane.run(self._local, deadline, self.pool.submit)
            return
        pair = self.pair(handle.owner)
        fits = suited(handle)
        unfit: set[str] = set()  # transports that cannot reach some of that memory
        while True:
            if lane.finished:
                if not lane.take_up():
                    return
                fits = tuple(name for name in fits if name not in unfit)
            if self._closed:
                raise OwnerGone("the session of this process has ended")
            try:
                link, is_new = pair.open(fits, deadline)
            except OwnerGone:
                self._forget(handle.owner.incarnation)
                raise
            used.append(link.name)
            if is_new or (fits, link.name) not in pair.reported:  # or open, but for other memory
                pair.reported.add((fits, link.name))
                self._warn(pair, link, fits, lane.way)
            before = lane.done
            try:
                over = StagedLink(link) if lane.on_gpu and not link.takes_gpus else link
                lane.run(over, deadline, self.pool.submit)
            except NotSupported as error:
                pair.unfit[link.name] = error.why
                unfit.add(link.name)
                lane.put_aside(error.slots)
            except TransportFailed as error:
                log.debug("%s to %s failed: %s", link.name, handle.owner.node, error)
                pair.failed(link, error.why)
                if link.name == "tcp" and pair.pidfd is None:
                    self._check_alive(handle.owner, deadline)
            except OwnerGone:
                self._forget(handle.owner.incarnation)
                raise
            finally:
                if lane.done > before:
                    pair.count(lane.way, link.name, lane.done - before)

    def _check_alive(self, owner: Owner, deadline: float) -> None:
        """Raise OwnerGone if the owner has ended.

        A connection from another host may break before the control plane reports the end.
        """
        try:
            self._ask(owner, SERVE, 0, b"", deadline)
        except OwnerGone:
            self._forget(owner.incarnation)
            raise

    def _warn(self, pair: Pair, link: Transport, fits: tuple[str, ...], way: Way) -> None:
        whys = pair.whys()
        if link.name == "tcp":
            some = "some " if pair.unfit.keys() - set(fits) else ""
            reasons = "; ".join(f"{name}: {text}" for name, text in whys.items()) or (
                "there is no faster transport for memory of a GPU between hosts"
            )
            _warn_once(
                RDMATcpFallbackWarning,
                f"{some}bytes to and from {pair.owner.node} (pid {pair.owner.pid}) go over TCP, "
                f"since nothing faster works: {reasons}. To have an error instead: "
                "configure(rdma_allow_tcp_fallback=False)",
            )
        elif link.name != (fastest := next(n for n in pair.choice.order if n in fits)):
            category = RDMAReadTransferWarning if way == "read" else RDMAWriteTransferWarning
            _warn_once(
                category,
                f"bytes to and from {pair.owner.node} (pid {pair.owner.pid}) go over {link.name}, "
                f"since {fastest} does not work: {whys.get(fastest, '')}",
            )

    def pair(self, owner: Owner) -> Pair:
        """The transports to that process."""
        key = owner.incarnation
        pair = self._pairs.get(key)
        if pair is not None:
            return pair
        if was_here(owner):
            raise OwnerGone("the session of this process in which it was registered has ended")
        self._run.routes.reach_node(owner.node, owner.address)  # so that its end is reported
        with self._lock:
            pair = self._pairs.get(key)
            if pair is None:
                if self._closed:
                    raise OwnerGone("the session of this process has ended")
                pair = self._pairs[key] = Pair(
                    owner, self._connector_to, self._over_card,
                    partial(self._run.node.knows, owner.node),
                )  # fmt: skip
                if pair.pidfd is not None:
                    self._run.node.leader.watch(pair.pidfd, lambda: self._forget(key))
        return pair

    def pairs(self) -> list[Pair]:
        """All pairs."""
        with self._lock:
            return list(self._pairs.values())

    def _forget(self, incarnation: bytes) -> None:
        """That process has ended: close its transports when no transfer uses them any more."""
        with self._lock:
            pair = self._pairs.pop(incarnation, None)
        if pair is not None:
            if pair.pidfd is not None:
                self._run.node.leader.unwatch(pair.pidfd)
            if not self.pool.submit(pair.close):
                pair.close()

    # --- requests over the control plane ----------------------------------------------------------

    def _opener(self) -> Opener | None:
        """A function that connects through a tunnel; None if this process dials hosts itself."""
        door = None if self._run.site else door_of(self._run.directory)
        return None if door is None else partial(connect_through, door)

    def _connector_to(self, owner: Owner, deadline: float) -> Connector:
        answer = self._ask(owner, SERVE, 0, b"", deadline)

        def ask_to_come(body: bytes, deadline: float) -> bytes:
            return self._ask(owner, COME, 0, b"", deadline, body)

        place = msgspec.msgpack.decode(answer, type=ServerAddress)
        try:
            return self.dialling.connector(place, ask_to_come, owner.node)
        except CannotConnect as error:
            raise TransportFailed(error.reason, error.remedy) from error

    def _over_card(self, owner: Owner, gone: Callable[[], bool], deadline: float) -> Transport:
        node = self._run.node

        def ask(what: int, body: bytes, deadline: float) -> bytes:
            return self._ask(owner, what, 0, b"", deadline, body)

        def tell(what: int, body: bytes) -> None:
            node.send(owner.node, AskData(0, what, owner.incarnation, 0, b"", body))

        def has_ended() -> bool:
            return gone() or not node.knows(owner.node)

        return self.cards.link(owner, ask, tell, has_ended, deadline)

    def _ask(
        self, owner: Owner, what: int, slot: int, key: bytes, deadline: float, body: bytes = b""
    ) -> bytes:
        """Send the owner of memory a request; raises OwnerGone or DeadlineExceeded."""
        run = self._run
        answer = _Answer(run)
        run.routes.reach_node(owner.node, owner.address)
        if not run.node.send(
            owner.node, AskData(answer.number, what, owner.incarnation, slot, key, body)
        ):
            raise OwnerGone("its process has ended")
        pair = None if what == DROP else self._pairs.get(owner.incarnation)
        while not answer.future.done:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded
            if self._closed:
                raise OwnerGone("the session of this process has ended")
            if not run.node.wait(answer.future, min(left, LOOK_S)):
                lost = (pair is not None and pair.is_gone()) or not run.node.knows(owner.node)
                if lost and not answer.future.done:
                    raise OwnerGone("its process has ended")
        said = answer.future.get()
        if said == _NOTHING:
            raise OwnerGone("it has left the session in which the memory was registered")
        return said

    def _on_ask(self, peer: str, message: AskData) -> None:
        """Handle a request of a peer, in the pool: the receiving thread may not block."""

        def work() -> None:
            said = _NOTHING
            if message.incarnation == self.regions.owner.incarnation and not self._closed:
                if message.what == DROP:
                    self.regions.drop(message.slot, message.key)
                    said = _DROPPED
                elif message.what == SERVE:
                    said = msgspec.msgpack.encode(self.dialling.serve(peer))
                else:
                    said = self._answer(message.what, message.body)
            if message.what == HANG_UP:
                return
            self._run.node.send(peer, Reply(message.call, 0, OK), Payload(said))

        # Connecting blocks until the other side answers.
        (self.waits if message.what == COME else self.pool).submit(work)

    def _answer(self, what: int, body: bytes) -> bytes:
        try:
            return self.dialling.come(body) if what == COME else self.cards.answer(what, body)
        except ValueError as error:
            log.warning("a peer sent an unreadable request: %s", error)
            return _NOTHING

    def _node_gone(self, node: str) -> None:
        """Cut the transfers with a process of another host that has ended or is lost.

        Processes of this host are watched by their pidfds instead.
        """
        for pair in self.pairs():
            if pair.pidfd is None and pair.owner.node == node:
                self._forget(pair.owner.incarnation)
                pair.cut()

    @property
    def serves(self) -> bool:
        """Whether a peer has asked for memory of this process over TCP."""
        return self.dialling.serves

    def close(self) -> None:
        """Close the data plane at the end of the session. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            pairs, self._pairs = list(self._pairs.values()), {}
        self._run.hooks.on_ask_data = None
        self._run.payloads.on_gone.remove(self._node_gone)
        self.dialling.close()
        for pair in pairs:
            pair.cut()  # so that transfers fail now, not at their deadline
        self.ended.set()
        self.waits.close()
        self.pool.close()
        for pair in pairs:
            if pair.pidfd is not None:
                self._run.node.leader.unwatch(pair.pidfd)
            pair.close()
        self.cards.end_serving()
        self.regions.close()
        self.cards.close()
        used = gpu_if_used()
        if used is not None:
            used.give_back()


class _Answer:
    """Receives the answer of another process; see `ports` of the actor layer."""

    def __init__(self, run: Runtime) -> None:
        self.future: Future[bytes] = run.new_future()
        self.number = run.open_port(self)

    def deliver(self, rank: int, status: int, payload: Payload) -> None:
        """The answer has come."""
        self.future.settle(lambda: bytes(payload.body))


def _warn_once(category: type[Warning], text: str) -> None:
    reason = re.sub(r"[0-9a-f]*\d[\w.-]*", "", text)  # nodes and pids differ, reasons do not
    if (category, reason) not in _warned:
        _warned.add((category, reason))
        warnings.warn(text, category, stacklevel=2)


def forget_warnings() -> None:
    """Repeat warnings that were given before: for tests, and a new session in a notebook."""
    _warned.clear()
