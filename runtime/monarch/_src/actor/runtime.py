"""One process's part: what it called, whom it knows, which actors it runs.

Runs in: the client and every proc; one instance a process. Messages are handled on the thread that
holds the baton, so every handler is quick and blocks on nothing; user code runs elsewhere.
Owns: the Node, the table of open calls, the workers.
Invariants: a call that was opened is answered, or fails when what it waits for is known to be gone;
a death is handled only after every message that can be read before it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from monarch._src.actor.context import ActorId, ActorInstance, Context
from monarch._src.actor.cycles import Cycles
from monarch._src.actor.ends import Ends
from monarch._src.actor.future import Future
from monarch._src.actor.questions import Questions
from monarch._src.actor.refs import Known, ProcsRef
from monarch._src.actor.routes import Ordered, Routes
from monarch._src.core.calls import CallTable
from monarch._src.core.ids import AGENT, UidSource
from monarch._src.core.metrics import MetricsTable
from monarch._src.core.waiting import Waiting
from monarch._src.errors import MeshFailure, RankFailure
from monarch._src.events import ProcReady, bus
from monarch._src.net.directory import address_of
from monarch._src.net.node import Node
from monarch._src.proc.board import Slot
from monarch._src.shape import Extent
from monarch._src.wire.figures import packed
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import (
    OK,
    ActorFailed,
    Answers,
    AnyMessage,
    Bootstrap,
    Bootstrapped,
    Call,
    Cast,
    Hello,
    MeshStopped,
    OutputFlushed,
    OutputLines,
    Probe,
    ProcEnded,
    ReadMetrics,
    Refused,
    Reply,
    Snapshotted,
    SpawnActor,
    StopActor,
    StopProc,
)

log = logging.getLogger("monarch.actor")


class Worker(Protocol):
    """What runs one actor; see `monarch._src.actor.worker`. `dead` says why it has ended."""

    dead: RankFailure | None
    instance: ActorInstance

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Queue a message for it."""
        ...

    def supervise(self, failure: MeshFailure) -> None:
        """Queue the failure of something that it owns."""
        ...


class Receiver(Protocol):
    """What reads a port; see `monarch._src.actor.ports`."""

    def deliver(self, rank: int, status: int, payload: Payload) -> None:
        """A message came."""
        ...


class Runtime:
    """See the module's text."""

    def __init__(
        self, name: str, kind: str, directory: str, *, mesh: int = 0, rank: int = -1
    ) -> None:
        self.name = name
        self.directory = directory
        self.host = os.uname().nodename
        self.uids = UidSource()
        self.calls = CallTable(time.monotonic_ns)
        self.metrics = MetricsTable()
        # Answers are entered by the thread that receives, the known dead by the one that calls.
        self.answering = threading.RLock()
        self.slot = Slot(None, 0)
        self.workers: dict[int, Worker] = {}
        self.client_ref: ProcsRef | None = None
        self.rank = rank
        self._proc_ref: ProcsRef | None = None
        self._ports: WeakValueDictionary[int, Receiver] = WeakValueDictionary()
        # In a proc: how its main program takes these messages.
        self.unknown_actor: Callable[[str, Call | StopActor, Payload], None] | None = None
        self.on_spawn: Callable[[str, SpawnActor, Payload], None] | None = None
        self.on_bootstrap: Callable[[Payload], None] | None = None
        # Whether this proc runs what comes before any actor.
        self.bootstrapping = False
        self.on_stop_proc: Callable[[StopProc], None] | None = None
        self.on_proc_ready: Callable[[int, int], None] | None = None
        node = self.node = Node(
            name, kind, address_of(directory, name), self._handle,
            mesh=mesh, rank=rank,
        )  # fmt: skip
        known = self.known = Known()
        routes = self.routes = Routes(node, known, rank)
        self.agent = Questions(node, known, self.new_future)
        self.ends = Ends(node, known, routes, self.calls, self.answering, self.new_future)
        self.cycles = Cycles(node, routes, self.workers)
        self.ends.on_mesh_gone = self.metrics.drop
        node.after_drain = self.ends.after_drain
        self._handlers: dict[type, Callable[[str, Any, Payload], None]] = {
            Reply: self._on_reply,
            Answers: self._on_answers,
            Call: self._on_direct,
            StopActor: self._on_direct,
            SpawnActor: self._on_direct,
            StopProc: self._on_direct,
            Cast: self._on_cast,
            Bootstrap: self._on_bootstrap,
            Bootstrapped: self.ends.on_bootstrap_ended,
            Hello: self._on_hello,
            Refused: self._on_refused,
            ProcEnded: self.ends.on_proc_ended,
            MeshStopped: self.ends.on_mesh_stopped,
            ActorFailed: self.ends.on_actor_failed,
            Snapshotted: self.agent.on_snapshotted,
            OutputLines: self.agent.on_output,
            OutputFlushed: self.agent.on_flushed,
            Probe: self.cycles.on_probe,
            ReadMetrics: self._on_read_metrics,
        }
        self._takers: dict[type, Callable[[str, Any, Payload], None]] = {
            Call: self._on_call,
            StopActor: self._on_call,
            SpawnActor: self._on_spawn,
            StopProc: self._on_stop_proc,
        }
        client = ActorInstance(
            ActorId(name, 0, "client"), Extent((), ()).point_of_rank(0), "client", "",
            Waiting(name, 0),
        )  # fmt: skip
        self.root = Context(client, 0, [], [])

    @property
    def proc_ref(self) -> ProcsRef | None:
        """The mesh of which this process is one; None in a client."""
        return self._proc_ref

    @proc_ref.setter
    def proc_ref(self, ref: ProcsRef) -> None:
        self._proc_ref = self.cycles.proc_ref = ref
        self.known.learn(ref)

    def open_port(self, receiver: Receiver) -> int:
        """A number for a port; it is closed when nobody holds its receiver any more."""
        number = self.calls.new_number()
        self._ports[number] = receiver
        return number

    def new_future(self) -> Future[Any]:
        """A future that threads of this process can wait for."""
        return Future(self.node.baton, self.cycles.probe)

    # --- messages -----------------------------------------------------------------------------

    def _handle(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            log.warning("%s sent a %s, which has no use here", peer, type(message).__name__)
        else:
            handler(peer, message, payload)

    def _on_reply(self, _peer: str, message: Reply, payload: Payload) -> None:
        if self._ports:
            receiver = self._ports.get(message.call)
            if receiver is not None:
                receiver.deliver(message.rank, message.status, payload)
                return
        with self.answering:
            self.calls.answer(message.call, message.rank, message.status, payload)

    def _on_answers(self, _peer: str, message: Answers, payload: Payload) -> None:
        bodies = memoryview(payload.body)
        end = 0
        for first, count, status, size in message.runs:
            begin, end = end, end + size
            body = bytes(bodies[begin:end])
            with self.answering:
                self.calls.answer_alike(message.call, first, count, status, Payload(body))

    def _on_direct(self, peer: str, message: Ordered, payload: Payload) -> None:
        self.routes.came(peer, message, payload, self._take)

    def _on_cast(self, peer: str, message: Cast, payload: Payload) -> None:
        if peer != AGENT:
            log.warning("%s sent a cast; only a host agent relays them", peer)
        else:
            self.routes.cast_came(message, payload, self._take)

    def _take(self, peer: str, message: Ordered, payload: Payload) -> None:
        self._takers[type(message)](peer, message, payload)

    def _on_call(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        worker = self.workers.get(message.actor)
        if worker is not None:
            worker.post(peer, message, payload)
        elif self.unknown_actor is not None:
            self.unknown_actor(peer, message, payload)

    def _on_spawn(self, peer: str, message: SpawnActor, payload: Payload) -> None:
        if self.on_spawn is not None:
            self.on_spawn(peer, message, payload)

    def _on_bootstrap(self, _peer: str, _message: Bootstrap, payload: Payload) -> None:
        if self.on_bootstrap is not None:
            self.on_bootstrap(payload)

    def _on_stop_proc(self, _peer: str, message: StopProc, _payload: Payload) -> None:
        if self.on_stop_proc is not None:
            self.on_stop_proc(message)

    def _on_hello(self, _peer: str, message: Hello, _payload: Payload) -> None:
        if message.kind == "proc" and self.on_proc_ready is not None:
            self.on_proc_ready(message.mesh, message.rank)
            bus.emit(ProcReady(message.mesh, message.rank, message.pid))

    def _on_refused(self, peer: str, message: Refused, _payload: Payload) -> None:
        if self.proc_ref is not None and peer in (AGENT, self.proc_ref.owner):
            # Nobody can use this process. Its last words reach whoever wanted it.
            sys.stderr.write(f"{peer} refuses to talk to this process: {message.why}\n")
            sys.stderr.flush()
            os._exit(1)
        log.error("%s refused to talk: %s", peer, message.why)

    def _on_read_metrics(self, peer: str, message: ReadMetrics, _payload: Payload) -> None:
        figures = packed(self.metrics.figures(time.monotonic_ns()))
        self.node.send(peer, Reply(message.call, message.rank, OK), figures)

    # --- life -------------------------------------------------------------------------------------

    def host_lost(self, reason: str, *, expected: bool) -> None:
        """The host agent is gone, and its procs with it. On the thread that holds the baton."""
        self.node.forget(AGENT)
        self.agent.agent_lost(reason)
        self.ends.host_lost(reason, expected=expected)

    def close(self, linger_s: float = 0.0) -> None:
        """End this process's part. Idempotent."""
        self.node.close(linger_s)


_runtime: Runtime | None = None
_runtime_pid = 0
_starter: Callable[[], Runtime] | None = None


def set_runtime(runtime: Runtime | None) -> None:
    """Make this the runtime of this process."""
    global _runtime, _runtime_pid
    _runtime, _runtime_pid = runtime, os.getpid()


def set_starter(starter: Callable[[], Runtime]) -> None:
    """Say how a client's runtime is started on first use. Called once by the mesh layer."""
    global _starter
    _starter = starter


def runtime_or_none() -> Runtime | None:
    """The runtime of this process if there is one; a fork of a client has none."""
    return _runtime if _runtime_pid == os.getpid() else None


def runtime() -> Runtime:
    """The runtime of this process; a client's is started on first use."""
    if _runtime is not None and _runtime_pid == os.getpid():
        return _runtime
    if _starter is None:
        raise RuntimeError("no runtime in this process; import monarch.actor first")
    return _starter()
