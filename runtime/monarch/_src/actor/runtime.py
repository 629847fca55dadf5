"""One process's part: what it called, whom it knows to be dead, which actors it runs.

Runs in: the client and every proc; one instance a process. Messages are handled on the thread that
holds the baton, so every handler is quick and blocks on nothing; user code runs elsewhere.
Owns: the Node, the table of open calls, the workers.
Invariants: a call that was opened is answered, or fails when what it waits for is known to be gone;
a death is handled only after every message that can be read before it.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec

from monarch._src.actor.context import ActorId, ActorInstance, Context
from monarch._src.actor.future import Future
from monarch._src.core.calls import CallTable, PendingCall
from monarch._src.core.ids import AGENT, UidSource, parse_proc_node, proc_node
from monarch._src.core.notices import Notices
from monarch._src.core.waiting import Waiting
from monarch._src.errors import DeadlockError, Death, MeshFailure, RankFailure, at_text
from monarch._src.events import MeshStopped as MeshStoppedEvent
from monarch._src.events import Output, OutputLine, ProcReady, RankFailed, bus
from monarch._src.net.directory import address_of
from monarch._src.net.node import Node
from monarch._src.proc.board import Slot
from monarch._src.shape import Extent
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import (
    ActorFailed,
    AnyMessage,
    Bootstrap,
    Bootstrapped,
    Call,
    FlushOutput,
    Hello,
    MeshState,
    MeshStopped,
    OutputFlushed,
    OutputLines,
    Probe,
    ProcEnded,
    Refused,
    Reply,
    Snapshot,
    Snapshotted,
    SpawnActor,
    StopActor,
    StopProc,
    WantOutput,
    Watch,
)

log = logging.getLogger("monarch.actor")
LOOK_AGAIN_S = 0.001
CLIENT_MESH = 0  # no mesh that is spawned has this uid


class ProcsRef(msgspec.Struct, frozen=True):
    """Where the procs of one mesh are: enough to call them from any process of the session."""

    uid: int
    name: str
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    directory: str
    owner: str
    host: str
    nodes: tuple[str, ...] = ()  # where the procs are no procs of a mesh: the client itself

    @property
    def extent(self) -> Extent:
        """The dims of the whole mesh."""
        return Extent(self.labels, self.sizes)

    def node(self, rank: int) -> str:
        """The node name of one proc."""
        return self.nodes[rank] if self.nodes else proc_node(self.uid, rank)


def client_ref(client: str, directory: str, host: str) -> ProcsRef:
    """The client's own process, as a proc mesh without dims: where controllers live."""
    return ProcsRef(CLIENT_MESH, "client", (), (), directory, client, host, (client,))


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
        self.host = socket.gethostname()
        self.uids = UidSource()
        self.calls = CallTable()
        # Answers are entered by the thread that receives, the known dead by the one that calls.
        self.answering = threading.RLock()
        self.slot = Slot(None, 0)
        self.workers: dict[int, Worker] = {}
        self.proc_ref: ProcsRef | None = None
        self.client_ref: ProcsRef | None = None
        self.rank = rank
        self._known: dict[int, ProcsRef] = {}
        self._dead: dict[tuple[int, int], RankFailure] = {}
        self._notices: Notices[ProcEnded | MeshStopped] = Notices()
        self._ports: WeakValueDictionary[int, Receiver] = WeakValueDictionary()
        self._owners: dict[int, int] = {}
        self._faults: dict[tuple[int, int | None], list[RankFailure]] = {}
        self._requests = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._stopping: dict[int, Future[None]] = {}
        # In a proc: how its main program takes these messages.
        self.unknown_actor: Callable[[str, Call | StopActor, Payload], None] | None = None
        self.on_spawn: Callable[[str, SpawnActor, Payload], None] | None = None
        self.on_bootstrap: Callable[[Payload], None] | None = None
        # Whether this proc runs what comes before any actor.
        self.bootstrapping = False
        self.on_stop_proc: Callable[[StopProc], None] | None = None
        self.on_proc_ready: Callable[[int, int], None] | None = None
        self.on_bootstrapped: Callable[[int, int, RankFailure | None], None] | None = None
        # Told of failures of what this process owns, those of one mesh and moment together:
        # the proc mesh's uid or 0, the actor mesh's uid or None, the failures.
        self.on_failure: Callable[[int, int | None, list[RankFailure]], None] | None = None
        self._handlers: dict[type, Callable[[str, Any, Payload], None]] = {
            Reply: self._on_reply,
            Call: self._on_call,
            StopActor: self._on_call,
            SpawnActor: self._on_spawn,
            Bootstrap: self._on_bootstrap,
            Bootstrapped: self._on_bootstrapped,
            StopProc: self._on_stop_proc,
            Hello: self._on_hello,
            Refused: self._on_refused,
            ProcEnded: self._on_proc_ended,
            MeshStopped: self._on_mesh_stopped,
            ActorFailed: self._on_actor_failed,
            Snapshotted: self._on_snapshotted,
            OutputLines: self._on_output,
            OutputFlushed: self._on_flushed,
            Probe: self._on_probe,
        }
        self.node = Node(
            name, kind, address_of(directory, name), self._handle,
            mesh=mesh, rank=rank, after_drain=self._after_drain,
        )  # fmt: skip
        client = ActorInstance(
            ActorId(name, 0, "client"), Extent((), ()).point_of_rank(0), "client", "",
            Waiting(name, 0),
        )  # fmt: skip
        self.root = Context(client, 0, [], [])

    # --- sending ------------------------------------------------------------------------------

    def own(self, uid: int, actor: int) -> None:
        """That mesh, of procs or of actors, was made by this local actor (0: the client)."""
        self._owners[uid] = actor

    def owner_of(self, mesh: int, actor: int | None) -> int | None:
        """The local actor that made that actor mesh, or else that proc mesh."""
        return self._owners.get(mesh if actor is None else actor)

    def learn(self, ref: ProcsRef) -> None:
        """Remember where a mesh is, so that failures of it can be named."""
        self._known.setdefault(ref.uid, ref)

    def reach(self, ref: ProcsRef, rank: int) -> str:
        """The node name of a proc, with a route to it."""
        node = ref.node(rank)
        if not self.node.knows(node) and (ref.uid, rank) not in self._dead:
            self._known.setdefault(ref.uid, ref)
            if ref.owner == self.name:  # one of ours that was stopped, and forgotten since
                self.node.expect(node)
            else:
                self.node.link(node, address_of(ref.directory, node))
            self.node.send(AGENT, Watch(node, ref.owner))
        return node

    def reach_node(self, node: str, address: str) -> None:
        """Have a route to a node that listens at that address."""
        if not self.node.knows(node):
            place = parse_proc_node(node)
            if place is not None and place in self._dead:
                return
            self.node.link(node, address)
            if place is not None:
                self.node.send(AGENT, Watch(node))

    def open_port(self, receiver: Receiver) -> int:
        """A number for a port; it is closed when nobody holds its receiver any more."""
        number = self.calls.new_number()
        self._ports[number] = receiver
        return number

    def dead(self, ref: ProcsRef, rank: int) -> RankFailure | None:
        """Why that proc is gone, if this process has heard so."""
        return self._dead.get((ref.uid, rank)) if self._dead else None

    def new_future(self) -> Future[Any]:
        """A future that threads of this process can wait for."""
        return Future(self.node.baton, self.probe)

    # --- the host agent -----------------------------------------------------------------------

    def snapshot(self, meshes: list[int]) -> Future[list[MeshState]]:
        """Ask the agent what the ranks of these meshes do."""
        return self._ask(lambda number: Snapshot(number, meshes))

    def flush_output(self) -> Future[None]:
        """Ask the agent to send all that ranks have written; done when it has arrived."""
        return self._ask(FlushOutput)

    def want_output(self, wanted: bool) -> None:
        """Ask the agent for what ranks write, or for no more of it."""
        self.node.send(AGENT, WantOutput(wanted))

    def stopping(self, mesh: int) -> Future[None]:
        """The future that is done when no process of that mesh is left."""
        future = self._stopping.get(mesh)
        if future is None:
            future = self._stopping[mesh] = self.new_future()
        return future

    def _ask(self, request: Callable[[int], Snapshot | FlushOutput]) -> Future[Any]:
        number = next(self._requests)
        future = self._asked[number] = self.new_future()
        if not self.node.send(AGENT, request(number)):
            self._asked.pop(number, None)
            future.fail(RuntimeError("the host agent is gone"))
        return future

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

    def _on_bootstrapped(self, _peer: str, message: Bootstrapped, _payload: Payload) -> None:
        failure = message.failure
        if self.on_bootstrapped is not None:
            self.on_bootstrapped(message.mesh, message.rank, failure)
        if failure is not None:
            bus.emit(RankFailed(failure))
            self._faults.setdefault((message.mesh, None), []).append(failure)

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

    def _on_mesh_stopped(self, _peer: str, message: MeshStopped, _payload: Payload) -> None:
        self._notices.add(message, "", time.monotonic())

    def _mesh_gone(self, mesh: int) -> None:
        future = self._stopping.pop(mesh, None)
        ref = self._known.pop(mesh, None)
        self._owners.pop(mesh, None)
        if ref is not None:
            for rank in range(ref.extent.nelements):
                self.node.drop(ref.node(rank))
                self._dead.pop((ref.uid, rank), None)
            bus.emit(MeshStoppedEvent(f"{ref.uid:x}", ref.name))
        if future is not None:
            future.settle(lambda: None)

    def _on_snapshotted(self, _peer: str, message: Snapshotted, _payload: Payload) -> None:
        future = self._asked.pop(message.request, None)
        if future is not None:
            future.settle(lambda: message.meshes)

    def _on_flushed(self, _peer: str, message: OutputFlushed, _payload: Payload) -> None:
        future = self._asked.pop(message.request, None)
        if future is not None:
            future.settle(lambda: None)

    def _on_output(self, _peer: str, message: OutputLines, _payload: Payload) -> None:
        ref = self._known.get(message.mesh)
        if ref is None:
            return
        point = dict(ref.extent.point_of_rank(message.rank))
        names = {1: "stdout", 2: "stderr"}
        uid = f"{ref.uid:x}"
        lines = tuple(
            OutputLine(ref.name, uid, message.rank, point, names[stream], text)
            for stream, text in message.lines
        )
        bus.emit(Output(lines))

    # --- cycles -------------------------------------------------------------------------------

    def probe(self, instance: ActorInstance, waits_for: Future[Any]) -> None:
        """An actor has waited for a while: find out whether that can ever end."""
        begun = instance.waiting.probe()
        if begun is not None:
            self._send_probe(waits_for.pending, Probe(0, *begun, [self._described(instance)]))

    def _on_probe(self, _peer: str, message: Probe, _payload: Payload) -> None:
        worker = self.workers.get(message.actor)
        waits_for = worker.instance.waits_for if worker is not None else None
        if worker is None or waits_for is None:
            return
        verdict = worker.instance.waiting.probed((message.node, message.initiator, message.call))
        if verdict == "cycle":
            waits_for.fail(DeadlockError(message.path))
        elif verdict == "forward":
            message.path.append(self._described(worker.instance))
            self._send_probe(waits_for.pending, message)

    def _send_probe(self, pending: PendingCall, probe: Probe) -> None:
        target: Any = pending.actor_mesh
        probe.actor = target.uid
        for position in list(pending.waiting):
            rank = pending.region.global_rank(position)
            self.node.send(self.reach(target.procs, rank), probe)

    def _described(self, instance: ActorInstance) -> str:
        where = self.proc_ref.name if self.proc_ref is not None else "client"
        at = at_text(dict(instance.rank))
        return f"{instance.class_name}.{instance.endpoint} on {where}{at}"

    # --- failures -----------------------------------------------------------------------------

    def _on_proc_ended(self, _peer: str, message: ProcEnded, _payload: Payload) -> None:
        self._notices.add(message, message.node, time.monotonic())

    def _after_drain(self) -> bool:
        """Tell what is due; True if the socket should be looked at once more at once."""
        if self._notices:
            for notice in self._notices.due():
                self._tell(notice)
            again = self._notices.look(self.node.has_said_all)
            # A pipe's end comes from another thread, within a millisecond or so.
            self.node.baton.look_again_s = LOOK_AGAIN_S if self._notices else None
        else:
            again = False
        if self._faults:
            faults, self._faults = self._faults, {}
            for (mesh, actor), failures in faults.items():
                if self.on_failure is not None:
                    self.on_failure(mesh, actor, failures)
        return again

    def _tell(self, notice: ProcEnded | MeshStopped) -> None:
        if isinstance(notice, MeshStopped):
            self._mesh_gone(notice.mesh)
            return
        ref = self._known.get(notice.mesh)
        if ref is not None:
            self._proc_lost(ref, notice)
        else:
            self.node.forget(notice.node)

    def _proc_lost(self, ref: ProcsRef, ended: ProcEnded) -> None:
        failure = RankFailure(
            mesh_name=ref.name,
            rank=ended.rank,
            point=dict(ref.extent.point_of_rank(ended.rank)),
            actor_class="",
            endpoint=None,
            host=ref.host,
            pid=ended.pid or None,
            kind=ended.kind,  # pyright: ignore[reportArgumentType]
            exception_type="",
            message=ended.death.reason,
            death=ended.death,
        )
        self._dead[ref.uid, ended.rank] = failure
        self.node.forget(ref.node(ended.rank))
        with self.answering:
            self.calls.proc_lost(ref.uid, ended.rank, failure)
        if not ended.expected:
            bus.emit(RankFailed(failure))
            if ref.owner == self.name:
                self._faults.setdefault((ref.uid, None), []).append(failure)

    def _on_actor_failed(self, _peer: str, message: ActorFailed, _payload: Payload) -> None:
        bus.emit(RankFailed(message.failure))
        self._faults.setdefault((0, message.actor), []).append(message.failure)

    def host_lost(self, reason: str, *, expected: bool) -> None:
        """The host agent is gone, and its procs with it. On the thread that holds the baton."""
        self.node.forget(AGENT)
        for future in list(self._asked.values()):
            future.fail(RuntimeError(f"the host agent is gone: {reason}"))
        self._asked.clear()
        for ref in list(self._known.values()):
            for rank in range(ref.extent.nelements):
                if (ref.uid, rank) in self._dead:
                    continue
                death = Death(None, None, (), None, 0.0, reason)
                stopping = expected or ref.uid in self._stopping
                kind = "stopped" if stopping else "host lost"
                node = ref.node(rank)
                ended = ProcEnded(node, ref.uid, rank, 0, stopping, kind, death)
                self._notices.add(ended, node, 0.0)
        for notice in self._notices.all():
            self._tell(notice)
        self._after_drain()
        for mesh, future in list(self._stopping.items()):
            self._stopping.pop(mesh, None)
            future.settle(lambda: None)

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
