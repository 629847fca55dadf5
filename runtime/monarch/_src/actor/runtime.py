"""The runtime of one process: its open calls, its actors, and the meshes that it knows.

Runs in: the client and every proc, one instance in each. The receiving thread handles messages, so
no handler may block; user code runs on other threads.
Owns: the Node, the table of open calls, the actor cells.
Invariants: every open call is answered, or fails when the process that it waits for is known to be
gone. The death of a process is handled after every message of it that can be read.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Container
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from monarch._src.actor import forked
from monarch._src.actor.call.target import target_of
from monarch._src.actor.context import ActorId, ActorInstance, Context, set_runtime_lookup
from monarch._src.actor.deadlines import Deadlines
from monarch._src.actor.deadlock.detector import DeadlockDetector
from monarch._src.actor.deadlock.state.waits import ActorWaits
from monarch._src.actor.deliver.inbound import Inbound
from monarch._src.actor.deliver.output_barrier import OutputBarrier
from monarch._src.actor.deliver.payloads import Payloads
from monarch._src.actor.deliver.routes import Routes
from monarch._src.actor.deliver.undeliverable import UndeliverableMessages
from monarch._src.actor.future import PAUSES, Future, Prober, set_canceller
from monarch._src.actor.inspect.agent_client import AgentClient
from monarch._src.actor.inspect.handlers import InspectHandlers
from monarch._src.actor.parts import RuntimeHooks, parts
from monarch._src.actor.protocols import LocalActor, Receiver
from monarch._src.actor.refs import Known, ProcsRef, agent_of, client_ref
from monarch._src.actor.run.tombstones import Tombstones
from monarch._src.actor.state.calls import CallTable, PendingCall
from monarch._src.actor.state.endpoint_metrics import MetricsTable
from monarch._src.actor.supervise.ownership import OwnedMeshes
from monarch._src.actor.supervise.terminations import Terminations
from monarch._src.config import history_is_set, spin_s
from monarch._src.events import ProcReady, bus
from monarch._src.host.state.cast_relay import unpacked
from monarch._src.host.status_board import Slot
from monarch._src.logs.output_counters import WRITTEN
from monarch._src.net.local.leader import ReceiveLeader
from monarch._src.net.node import Node
from monarch._src.net.session_directory import address_of
from monarch._src.shape import Extent
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT, UidSource, parse_proc_node
from monarch._src.wire.messages import (
    HEARD,
    OK,
    STATUS,
    ActorFailed,
    AnswerRun,
    Answers,
    AnyMessage,
    AskData,
    AskPart,
    AskPayload,
    Bootstrap,
    Bootstrapped,
    Call,
    CancelCall,
    Cast,
    ClientIs,
    ClientKnown,
    Hello,
    MeshStopped,
    OutputFlushed,
    OutputLines,
    PayloadSent,
    PayloadTaken,
    Probe,
    ProcEnded,
    ProcLife,
    RanksRestarting,
    Refused,
    Relay,
    Reply,
    RestartsSet,
    Signalled,
    SiteLost,
    SiteRoom,
    Snapshotted,
    SpawnActor,
    StacksRead,
    StacksSampled,
    StopActor,
    StopProc,
    TableRead,
    TreeDone,
    TreeStuck,
    Undelivered,
)

log = logging.getLogger("monarch.actor")


class Runtime:
    """The parts of a process's messaging, and the handler of each message type."""

    def __init__(
        self,
        name: str,
        kind: str,
        directory: str,
        *,
        mesh: int = 0,
        rank: int = -1,
        site: str = "",
    ) -> None:
        """Without a name, `begin` must follow.

        The zygote constructs a runtime without a name once, and every proc that it forks begins it.
        """
        self.host = os.uname().nodename
        self.calls = CallTable(time.monotonic_ns)
        self.metrics = MetricsTable()
        # The receiving thread enters answers, the calling thread ranks that are known to be dead.
        self.answering = threading.RLock()
        self.slot = Slot(None, 0)
        self.origin = 0  # of the call that began last in this process
        self.cells: dict[int, LocalActor] = {}
        self._client_ref: ProcsRef | None = None
        self._proc_ref: ProcsRef | None = None
        self._ports: WeakValueDictionary[int, Receiver] = WeakValueDictionary()
        self._had_ports = False  # a look-up in a weak dictionary takes as long as a message
        self.hooks = RuntimeHooks()
        self.bootstrapping = False  # whether this proc's bootstrap function runs now
        # The data plane, once this process has moved or registered bytes.
        self.data: Any = None
        self.serves_at: tuple[str, list[str]] = ("", [])  # the data plane's address; see MeshSpec
        self.deadlines = Deadlines()
        self.closers: list[Callable[[], None]] = []
        node = self.node = Node("", kind, "", self._handle)
        known = self.known = Known()
        payloads = self.payloads = Payloads(node, known)
        self._held_payloads = payloads.held
        self.tombstones = Tombstones(self)
        inbound = Inbound(self.cells, self.tombstones, self.hooks)
        routes = self.routes = Routes(node, known, payloads, inbound)
        payloads.reach = routes.reach_node
        self.agent = AgentClient(node, known, self.new_future)
        self.barrier = OutputBarrier(self.agent.flush_output_of)
        self.closers.append(self.barrier.close)
        self.ownership = OwnedMeshes(self.cells, self.tombstones.supervisor_of)
        self.terminations = Terminations(
            node, known, routes, self.calls, self.answering, self.new_future, self.ownership
        )
        self.undeliverable = UndeliverableMessages(
            node, known, routes, self.cells, self.tombstones, self.ownership, self.host
        )
        self.deadlocks = DeadlockDetector(node, routes, self.cells)
        self.inspect_handlers = InspectHandlers(self)
        self.terminations.on_mesh_gone = self.metrics.drop
        self._receive_leader, self._prober = node.leader, self.deadlocks
        node.after_drain = self.terminations.after_drain
        node.on_fork = self._on_fork
        self.handlers: dict[type, Callable[[str, Any, Payload], None]] = {
            Reply: self._on_reply,
            Answers: self._on_answers,
            TreeDone: self._on_tree_done,
            TreeStuck: self.routes.on_tree_stuck,
            Call: inbound.on_direct,
            StopActor: inbound.on_direct,
            SpawnActor: inbound.on_direct,
            StopProc: inbound.on_direct,
            Cast: self._on_cast,
            Bootstrap: self._on_bootstrap,
            Bootstrapped: self.terminations.on_bootstrap_ended,
            Hello: self._on_hello,
            Refused: self._on_refused,
            ProcEnded: self.terminations.on_proc_ended,
            ProcLife: self.terminations.on_proc_life,
            MeshStopped: self.terminations.on_mesh_stopped,
            ActorFailed: self.terminations.on_actor_failed,
            Snapshotted: self.agent.on_answer,
            StacksRead: self.agent.on_answer,
            StacksSampled: self.agent.on_answer,
            Signalled: self.agent.on_answer,
            RestartsSet: self.agent.on_answer,
            RanksRestarting: self.agent.on_answer,
            TableRead: self.agent.on_answer,
            OutputLines: self.agent.on_output,
            OutputFlushed: self.agent.on_answer,
            Undelivered: self.undeliverable.on_undelivered,
            Probe: self.deadlocks.on_probe,
            CancelCall: self._on_cancel_call,
            AskData: self._on_ask_data,
            AskPayload: payloads.on_payload_request,
            AskPart: payloads.on_part_request,
            PayloadTaken: payloads.on_payload_fetched,
            PayloadSent: self._on_payload,
            ClientIs: self._on_client_is,
            Relay: node.on_relay,
            SiteLost: self._on_site_lost,
            SiteRoom: self._on_site_room,
            **self.inspect_handlers.handlers,
        }
        if name:
            self.begin(name, directory, mesh=mesh, rank=rank, site=site)

    def begin(
        self, name: str, directory: str, *, mesh: int = 0, rank: int = -1, site: str = ""
    ) -> None:
        """Become the runtime of the node `name`, in the session of that directory."""
        self.name = name
        self.site = site  # this host's; empty on the client's host
        self.directory = directory
        self.rank = rank
        self.uids = UidSource()
        self.begun_ns = time.monotonic_ns()
        self.node.begin(name, address_of(directory, name), mesh=mesh, rank=rank, site=site)
        self.node.leader.spin(spin_s())
        self.payloads.begin(rank)
        self.routes.begin(rank, directory)
        client = ActorInstance(
            ActorId(name, 0, "client"), Extent((), ()).point_of_rank(0), "client",
            ActorWaits(name, 0),
        )  # fmt: skip
        self.root = Context(client, 0, [], [])
        if history_is_set():
            parts().begin_history()

    @property
    def proc_ref(self) -> ProcsRef | None:
        """The proc mesh that this process belongs to; None in a client."""
        return self._proc_ref

    @proc_ref.setter
    def proc_ref(self, ref: ProcsRef) -> None:
        self._proc_ref = self.deadlocks.proc_ref = ref
        self.known.learn(ref)

    @property
    def client_ref(self) -> ProcsRef | None:
        """The client's process; while no client is attached, the last client's."""
        return self._client_ref

    @client_ref.setter
    def client_ref(self, ref: ProcsRef) -> None:
        self._client_ref = ref
        self.routes.client = ref.owner

    def handle(self, kind: type, handler: Callable[[str, Any, Payload], None]) -> None:
        """Register the handler of a message type; the receiving thread calls it."""
        self.handlers[kind] = handler

    def report_to_creator(self, creator: str, message: ActorFailed) -> None:
        """Report an actor's failure to the process that spawned the actor, or inherited it.

        If that is a client, the failure goes to the host agent too, which reports it to the next
        client if this one is gone or detached.
        """
        if creator and self._proc_ref is not None and parse_proc_node(creator) is None:
            creator = "" if self._client_ref is None else self._client_ref.owner
            creator = creator if self.node.knows(creator) else ""
            self.node.send(AGENT, msgspec.structs.replace(message, told=creator))
        if creator:
            self.node.send(creator, message)

    def open_port(self, receiver: Receiver) -> int:
        """Give a port its number. The port closes when the receiver is garbage collected."""
        number = self.calls.new_number()
        self._had_ports = True
        self._ports[number] = receiver
        return number

    def cancel(
        self, pending: PendingCall, only: Container[int] | None = None, *, queued_only: bool = False
    ) -> None:
        """Ask the ranks that owe an answer to cancel the call; they still answer it. Any thread.

        `only`: restricts the request to these ranks of the proc mesh. `queued_only`: ranks that
        have begun the call run it, and the others answer None. A pending call that runs no endpoint
        cannot be cancelled.
        """
        if not pending.endpoint:
            return
        target = target_of(pending)
        message = CancelCall(target.uid, pending.number, queued_only)
        for rank in map(pending.region.global_rank, pending.owing()):
            if only is None or rank in only:
                self.node.send(self.routes.route_to(target.procs, rank), message)

    def new_future(self) -> Future[Any]:
        """A future that threads of this process can wait for."""
        return Future(self._receive_leader, self._prober)

    def future_parts(self) -> tuple[ReceiveLeader, Prober]:
        """The constructor arguments of a Future, for its subclasses."""
        return self._receive_leader, self._prober

    # --- messages -----------------------------------------------------------------------------

    def _handle(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        if (payload.buffers or self._held_payloads) and not self.payloads.on_message(
            peer, message, payload, self._dispatch
        ):
            return
        handler = self.handlers.get(type(message))
        if handler is None:
            log.warning(
                "%s sent a %s, which this process does not handle", peer, type(message).__name__
            )
        else:
            handler(peer, message, payload)

    def _dispatch(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        """Handle a message that has waited for its payload, or for that of an earlier message."""
        handler = self.handlers.get(type(message))
        if handler is not None:
            handler(peer, message, payload)

    def _on_payload(self, peer: str, message: PayloadSent, parts: Payload) -> None:
        self.payloads.on_sent(peer, message, parts, self._dispatch)

    def _on_reply(self, peer: str, message: Reply, payload: Payload) -> None:
        if self._had_ports:
            receiver = self._ports.get(message.call)
            if receiver is not None:
                self._deliver(receiver, message, payload)
                return
        if message.sent_by >= 0 and not self.calls.is_open(message.call):
            self.undeliverable.on_unread_port(peer, message)
            return
        status = message.status
        if status > STATUS or self.barrier.is_shut:
            status = self._after_output(message.call, status)
        with self.answering:
            self.calls.answer(message.call, message.rank, status, payload)

    def _deliver(self, receiver: Receiver, message: Reply, payload: Payload) -> None:
        rank, status = message.rank, message.status & STATUS
        if message.status > STATUS:
            self._note_output(0, everywhere=True)  # the mesh of the sender is unknown
        if self.agent.output_wanted and (message.status > STATUS or self.barrier.is_shut):
            self.barrier.after(lambda: receiver.deliver(rank, status, payload))
        else:
            receiver.deliver(rank, status, payload)

    def _after_output(self, number: int, status: int) -> int:
        """Hold back the answer until earlier output is shown; returns the plain status."""
        call = self.calls.get(number)
        if status > STATUS and call is not None:
            self._note_output(call.mesh, everywhere=bool(status & HEARD))
        if call is not None and self.agent.output_wanted:
            call.after_output = self.barrier.after
        return status & STATUS

    def _note_output(self, mesh: int, *, everywhere: bool) -> None:
        if self.agent.output_wanted:
            self.barrier.note(mesh, everywhere=everywhere)
        else:  # the process that this one answers may show output
            WRITTEN.heard()

    def _on_answers(self, _peer: str, message: Answers, payload: Payload) -> None:
        self._on_runs(message.call, message.runs, payload)

    def _on_tree_done(self, peer: str, message: TreeDone, payload: Payload) -> None:
        self._on_runs(message.call, message.runs, payload)
        self.routes.on_tree_done(peer, message)

    def _on_runs(self, call: int, runs: list[AnswerRun], payload: Payload) -> None:
        for first, count, status, body in unpacked(runs, payload):
            if status > STATUS or self.barrier.is_shut:
                status = self._after_output(call, status)
            with self.answering:
                self.calls.answer_run(call, first, count, status, Payload(body))

    def _on_cast(self, peer: str, message: Cast, payload: Payload) -> None:
        if peer != AGENT:
            log.warning("%s sent a cast; only a host agent relays them", peer)
        else:
            self.routes.inbound.on_cast(message, payload)

    def _on_bootstrap(self, _peer: str, message: Bootstrap, payload: Payload) -> None:
        self.hooks.program.on_bootstrap(message, payload)

    def _on_hello(self, _peer: str, message: Hello, _payload: Payload) -> None:
        if message.kind == "proc" and self.hooks.on_proc_ready is not None:
            self.hooks.on_proc_ready(message.mesh, message.rank)
            bus.emit(ProcReady(message.mesh, message.rank, message.pid))

    def _on_refused(self, peer: str, message: Refused, _payload: Payload) -> None:
        if self.proc_ref is not None and peer in (AGENT, self.proc_ref.owner):
            # This process is of no use; the host agent passes its stderr on.
            sys.stderr.write(f"{peer} refuses to talk to this process: {message.why}\n")
            sys.stderr.flush()
            os._exit(1)
        log.error("%s refused to talk: %s", peer, message.why)

    def _on_client_is(self, peer: str, message: ClientIs, _payload: Payload) -> None:
        old, own = self._client_ref, self._proc_ref
        if peer != AGENT or old is None or own is None:
            return
        if message.number < old.uid:  # older than this process
            return
        if old.owner != message.node:
            self._lose_other_hosts(message.why)
            self.terminations.on_client_gone(old, message.why)
        if message.node:
            new = client_ref(message.node, self.directory, self.host, message.number)
            self.client_ref = new
            if own.owner == old.owner:
                self.proc_ref = msgspec.structs.replace(own, owner=new.owner)
            if not self.site:
                self.node.gateway, self.node.gateway_pipe = message.node, message.address
                self.node.send_limits.reset()
            self.node.link_to(message.node, message.address)
            self.node.send(AGENT, ClientKnown(message.number))

    def _lose_other_hosts(self, why: str) -> None:
        """Give up the hosts whose messages went through the client that is gone.

        Messages under way may be lost, so those hosts are out of reach from here on.
        """
        sites = {site for ref in self.known.refs() for site in ref.places if site != self.site}
        for site in {""} if self.site else sites:
            self.on_site_lost(site, why, out_of_reach=True)

    def _on_site_lost(self, peer: str, message: SiteLost, _payload: Payload) -> None:
        if peer == self.node.gateway:
            self.on_site_lost(message.site, message.why)

    def _on_site_room(self, peer: str, message: SiteRoom, _payload: Payload) -> None:
        if peer == self.node.gateway:
            self.node.send_limits.on_limit_raised(message.site, message.limit)

    def _on_cancel_call(self, peer: str, message: CancelCall, _payload: Payload) -> None:
        cell = self.cells.get(message.actor)
        if cell is not None:
            cell.cancel(peer, message.call, queued_only=message.queued_only)
        elif message.actor not in self.tombstones and not message.queued_only:
            self.hooks.actors.on_early_cancel(message.actor, peer, message.call)

    def _on_ask_data(self, peer: str, message: AskData, _payload: Payload) -> None:
        if self.hooks.on_ask_data is not None:
            self.hooks.on_ask_data(peer, message)
        else:  # asked about an earlier session in this process: nothing is registered
            self.node.send(peer, Reply(message.call, 0, OK), Payload(b""))

    # --- the end ----------------------------------------------------------------------------------

    def on_host_lost(self, reason: str, *, expected: bool, let_go: bool = False) -> None:
        """The host agent is gone, and its procs with it. Called on the receiving thread.

        `let_go`: the procs live on, but no longer belong to this process.
        """
        self.node.forget(AGENT)
        self.agent.on_agent_lost(AGENT, reason)
        self.terminations.on_host_lost(reason, expected=expected, let_go=let_go)

    def on_site_lost(
        self, site: str, why: str, *, let_go: bool = False, out_of_reach: bool = False
    ) -> None:
        """A site is lost. Called on the receiving thread.

        `let_go`: this process has released it. `out_of_reach`: processes there may live on.
        """
        self.agent.on_agent_lost(agent_of(site, self.site), why)
        for node in self.node.remote_nodes(site):
            self.node.forget(node)
        self.terminations.on_site_lost(site, why, expected=let_go, let_go=out_of_reach)
        self.routes.on_site_lost(site)
        self.node.send_limits.released(site)

    def _on_fork(self) -> None:
        forked.is_fork = True
        self.slot.forked()

    def close(self, linger_s: float = 0.0) -> None:
        """Close all parts. Idempotent; waits up to `linger_s` for payloads and messages."""
        while self.closers:
            self.closers.pop()()
        PAUSES.clear()
        self.deadlines.close()
        self.payloads.close(linger_s)
        self.node.close(linger_s)


_runtime: Runtime | None = None
_runtime_pid = 0
_starter: Callable[[], Runtime] | None = None


def set_runtime(runtime: Runtime | None) -> None:
    """Set the runtime of this process."""
    global _runtime, _runtime_pid
    _runtime, _runtime_pid = runtime, os.getpid()


def set_starter(starter: Callable[[], Runtime]) -> None:
    """Set the function that starts a client's runtime on first use. Called once by `mesh`."""
    global _starter
    _starter = starter


def runtime_or_none() -> Runtime | None:
    """The runtime of this process, or None; a fork of a client has none."""
    return _runtime if _runtime_pid == os.getpid() else None


def _cancel_pending(pending: PendingCall) -> None:
    run = runtime_or_none()
    if run is not None:
        run.cancel(pending)


set_canceller(_cancel_pending)
set_runtime_lookup(runtime_or_none)


def is_forked() -> bool:
    """Whether this is a fork of a process with a runtime, and has started none itself."""
    return _runtime is not None and _runtime.node.is_fork


def runtime() -> Runtime:
    """The runtime of this process; in a client, the first call starts it."""
    if _runtime is not None and _runtime_pid == os.getpid():
        return _runtime
    if _starter is None:
        raise RuntimeError("no runtime in this process; import monarch.actor first")
    return _starter()
