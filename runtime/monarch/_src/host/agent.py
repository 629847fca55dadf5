"""The host agent: owns the procs of one host, reports why they ended, reads their output.

Runs in: a process of its own, which the client executes to start a session; one thread, one loop.
Owns: the session directory (holds its lock, removes it), the zygotes, two output pipes for each
proc, one status board for each mesh.
Invariants: `host.state.host` makes every decision and the agent carries it out. The agent runs no
user code, so it always answers. It ends when it is told to, or when the client that it is tied to
has ended; the agent of a kept session ends when nothing of that session is left
(`session.agent_part`). Everything that it owns ends before it.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from monarch._src.host import report
from monarch._src.host.agent_requests import AgentRequests
from monarch._src.host.cast_relay import CastRelay
from monarch._src.host.draining import DRAIN, TOLD_TO_END, Drain, hand_on
from monarch._src.host.output_pipes import OutputPipes
from monarch._src.host.owner import AgentOwner, AgentServices
from monarch._src.host.parts import AgentView, Parts, PartTable
from monarch._src.host.spawn_spec import Ended, MeshSpec, NotStarted, Started
from monarch._src.host.start import ProcStarter, is_forked, kill_group, no_board, unlink
from monarch._src.host.state.death_notices import Notices
from monarch._src.host.state.host import (
    Action,
    FreeMesh,
    Host,
    Kill,
    RenewProc,
    Send,
    StartProc,
)
from monarch._src.host.state.procs import ProcState
from monarch._src.host.status_board import LEFT, NONE, Board, Reads
from monarch._src.host.zygote_pool import ZygotePool
from monarch._src.logs.state.line_ring import LineRing
from monarch._src.net import session_directory as sessions
from monarch._src.net.node import Node
from monarch._src.system.main_programs import PROC_ENTRY
from monarch._src.system.oom import KillsForMemory
from monarch._src.system.process import TERMINATED
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import (
    AGENT,
    agent_at,
    parse_proc_node,
    proc_node,
)
from monarch._src.wire.messages import (
    Answer,
    AnyMessage,
    Cast,
    CastTree,
    FlushOutput,
    GaveUp,
    Hello,
    ImportAhead,
    OutputFlushed,
    OutputLines,
    ProcEnded,
    Relay,
    Shutdown,
    Snapshot,
    Snapshotted,
    SpawnProcs,
    StopMesh,
    TreeDone,
    WantOutput,
    Watch,
)

log = logging.getLogger("monarch.agent")
PARENT_CHECK_S = 0.5
POLL_AGAIN_S = 0.001


class Agent:
    """The driver of one `Host`."""

    def __init__(
        self,
        directory: Path,
        zygote: socket.socket,
        make_owner: Callable[[Node, Host, AgentServices], AgentOwner],
        parts: PartTable,
        site: str = "",
        cwd: str = "",
        drain: Drain | None = None,
    ) -> None:
        """`cwd` is the working directory of its procs; if empty, they use their client's.

        `drain`: how its procs end after a SIGTERM; None: within their time for clean-up.

        `parts` names the handlers of messages that belong to features above this package.
        """
        self._directory = directory
        self._cwd = cwd
        self._drain = Drain() if drain is None else drain
        self._draining = False
        self._host = Host()
        self._boards: dict[int, Board] = {}
        self._want_output: set[str] = set()
        self._lines = LineRing()
        self._memory = KillsForMemory()
        self._ending = False
        self._ended_by_client = False  # the client asked for the end, and hears of its procs
        self._owners: set[str] = set()  # procs of other hosts whose ends other agents report
        self.status = 0  # exit status of the process
        self._node = Node(
            AGENT, "agent", sessions.address_of(directory, AGENT), self._handle, site=site
        )
        self._casts = CastRelay(self._node, self._host)
        # Ends of processes that are held back until their last answers have arrived.
        self._end_notices: Notices[Ended] = Notices()
        self._selector = selectors.DefaultSelector()
        self._quiet: set[int] = set()
        self._has_events = True  # an event that the parts have not handled yet
        self._outputs = OutputPipes(
            self._selector, self._on_lines, self._read_counter, self._is_behind
        )
        self._zygotes = ZygotePool(
            zygote, self._register, self._selector.unregister, self._from_zygote
        )
        self._starter = ProcStarter(
            self._zygotes, self._host, self._outputs, self._client_tie, self._on_not_started
        )
        self._register_quietly(self._node.router.fd, self._node.router.poll_now)
        self._terminated_r, self._terminated_w = os.pipe()
        self._register(self._terminated_r, self._on_terminated)
        self._owner = make_owner(
            self._node, self._host,
            AgentServices(self._register, self._register_quietly, self._selector.unregister,
            self._do,
                   self._end, self._casts.receivers, self._drop_client, self._casts.site_lost,
                   self._snapshot, self._wake_parts),
        )  # fmt: skip
        view = AgentView(
            self._node, self._host, self._owner, self._boards, self._selector, self._snapshot,
            self._lines,
        )  # fmt: skip
        self._parts = Parts(parts, view)
        self._requests = AgentRequests(
            view, self._parts, self._zygotes, lambda: self._ending, self._do
        )
        self._handlers: dict[type, Callable[[str, Any, Payload], None]] = {
            Hello: self._on_hello,
            Cast: self._on_cast,
            CastTree: self._on_cast_tree,
            TreeDone: self._casts.tree_done,
            Answer: self._casts.answered,
            SpawnProcs: self._on_spawn,
            StopMesh: self._on_stop,
            Watch: self._on_watch,
            GaveUp: self._on_gave_up,
            ImportAhead: self._on_import_ahead,
            WantOutput: self._on_want_output,
            FlushOutput: self._on_flush,
            Shutdown: self._on_shutdown,
            ProcEnded: self._on_owner_ended,
            Relay: self._node.on_relay,
            **self._requests.handlers,
            **self._parts.handlers,
            **self._owner.handlers,
        }

    def run(self) -> None:
        """Serve until the agent has to end and its last proc has ended."""
        self._owner.begin()
        due = 0.0
        while not (self._ending and not self._host.meshes):
            self._node.drain()
            # Messages that were only relayed need no pass over the parts.
            if self._has_events or time.monotonic() >= due:
                self._has_events = False
                again = self._advance()
                if self._ending and not self._host.meshes:
                    break
                left = 0.0 if again else self._idle_timeout_s()
                due = math.inf if left is None else time.monotonic() + left
            ready = self._selector.select(self._wait_s(due))
            self._node.router.skip_next_poll()
            for key, _ in ready:
                if key.fd not in self._quiet:
                    self._has_events = True
                key.data()
        self._zygotes.close()
        self._owner.close()
        self._selector.close()
        self._node.close(linger_s=0.2)

    # --- the loop -----------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Let every part act on what has happened; True if the socket has to be read once more."""
        self._casts.after_poll()
        again = self._report_ends() | self._owner.report_ends()
        self._do(self._host.time_passed(time.monotonic()))
        self._outputs.time_passed(time.monotonic())
        self._zygotes.time_passed(time.monotonic())
        self._starter.start_more()
        self._owner.after_poll()
        self._parts.after_poll()
        self._end_if_drained()
        return again

    def _wait_s(self, due: float) -> float | None:
        """How long the selector may block."""
        if self._has_events or self._owner.is_pending or self._node.router.is_pending:
            return 0.0
        left = None if due == math.inf else max(0.0, due - time.monotonic())
        retry = self._node.router.due_in()
        return left if retry is None else retry if left is None else min(left, retry)

    def _wake_parts(self) -> None:
        self._has_events = True

    def _snapshot(self, message: Snapshot) -> Snapshotted:
        return self._requests.snapshot(message)  # made after the owner, which is given this method

    def _register(self, fd: int, ready: Callable[[], None]) -> None:
        self._quiet.discard(fd)
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def _register_quietly(self, fd: int, ready: Callable[[], None]) -> None:
        """As `_register`, for a descriptor whose events need no pass over all parts."""
        self._register(fd, ready)
        self._quiet.add(fd)

    def _idle_timeout_s(self) -> float | None:
        if self._owner.needs_polling:
            self._owner.poll_client()
        deadlines = [
            self._host.next_deadline(), self._owner.next_deadline(), self._outputs.deadline,
            self._casts.next_deadline(), self._parts.next_deadline(),
            self._zygotes.next_deadline(),
        ]  # fmt: skip
        deadline = min((found for found in deadlines if found is not None), default=None)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self._owner.needs_polling:
            left = PARENT_CHECK_S if left is None else min(left, PARENT_CHECK_S)
        if self._end_notices or self._owner.needs_timer:  # poll once more; this ends
            left = POLL_AGAIN_S if left is None else min(left, POLL_AGAIN_S)
        return left

    def _drop_client(self, client: str) -> None:
        """Drop a client: it gets no more answers and no more output."""
        self._want_output.discard(client)
        self._casts.lost(client)
        self._parts.on_client_gone(client)

    def _end(self, why: str) -> None:
        self._ending = True
        client = self._owner.client
        if not (self._ended_by_client or self._owner.is_awaited):
            self._drop_client(client)
            self._node.forget(client)
        self._do(self._host.node_lost(client, time.monotonic(), why))

    def terminate(self, signum: int, _frame: FrameType | None) -> None:
        """On SIGTERM: end in order, as if the client had ended. A second one ends at once.

        With a grace it does not: a scheduler may send several.
        """
        has_grace = signum == signal.SIGTERM and self._drain.grace_s > 0
        if self.status:
            if has_grace:
                return
            raise SystemExit(TERMINATED)
        self.status = TERMINATED
        os.write(self._terminated_w, DRAIN if has_grace else b".")

    def _on_terminated(self) -> None:
        if os.read(self._terminated_r, 1) != DRAIN:
            # A client that lives learns everything from the end of this process.
            self._owner.told_to_end("its session was ended")
            return
        self._draining = True
        pids = [
            proc.pid for mesh in self._host.meshes.values() for proc in mesh.procs
            if proc.pid is not None and proc.state is not ProcState.ENDED
        ]  # fmt: skip
        if self._drain.tells_ranks:
            hand_on(signal.SIGTERM, pids)
        self._do(self._host.drain(TOLD_TO_END, self._drain.grace_s, time.monotonic()))

    def _end_if_drained(self) -> None:
        if self._draining and not self._ending and not self._host.meshes:
            self._owner.told_to_end(TOLD_TO_END)

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(to, message):
                    self._node.send(to, message)
                case StartProc():
                    self._starter.add(action)
                case Kill(_, pid):
                    kill_group(pid)
                case RenewProc(mesh, rank, old, new):
                    self._renew(mesh, rank, old, new)
                case FreeMesh(mesh, nodes):
                    self._free(mesh, nodes)

    # --- starting -----------------------------------------------------------------------------

    def _watch_owner(self, spec: SpawnProcs) -> None:
        """Ask another host's agent to report the end of an owner that runs there."""
        site, _ = sessions.site_and_pipe(spec.owner_address)
        if site == self._node.site or parse_proc_node(spec.owner) is None:
            return
        self._host.owner_elsewhere(spec.owner)
        if spec.owner not in self._owners:
            self._owners.add(spec.owner)
            self._node.link_remote(agent_at(site), site)
            self._node.send(agent_at(site), Watch(spec.owner))

    def _on_owner_ended(self, _peer: str, message: ProcEnded, _payload: Payload) -> None:
        self._owners.discard(message.node)
        now = time.monotonic()
        self._do(self._host.node_lost(message.node, now, f"its owner {message.node} has ended"))
        self._node.drop(message.node)

    def _on_spawn(self, peer: str, message: SpawnProcs, _payload: Payload) -> None:
        now = time.monotonic()
        self._watch_owner(message)
        actions = self._host.spawn_requested(message, now)
        if message.owner != self._owner.client:
            self._node.link_to(message.owner, message.owner_address)
        path = self._directory / f"{message.mesh:x}.board"
        # Sent first, so that the zygote is awake and knows the mesh before it has to fork.
        self._zygotes.mesh_spawned(
            MeshSpec(
                message.mesh, message.name, message.labels, message.sizes, str(self._directory),
                self._cwd or message.cwd, message.path, message.preload, PROC_ENTRY, str(path),
                message.bootstrap,
                not message.commands or None in message.commands, message.while_restarting,
                self._node.site, message.sites, self._owner.serves_at,
            ),
            message,
        )  # fmt: skip
        try:
            board = Board(path, message.ranks)
        except OSError as error:
            board = Board(None, message.ranks)
            self._starter.refuse_mesh(message.mesh, no_board(path, error))
        self._starter.account_for(2)  # descriptors: the board's, and a new owner's
        self._boards[message.mesh] = board
        for proc in self._host.meshes[message.mesh].procs:
            self._node.expect(proc.node)  # a cast may arrive before the proc connects
        self._owner.mesh_spawned(message)
        self._owner.note("spawn", peer, mesh=message.name, ranks=str(message.count))
        self._do(actions)
        if self._draining:
            self._do(self._host.drain(TOLD_TO_END, self._drain.grace_s, now))
        self._do(self._casts.spawned(message.mesh))

    def _from_zygote(self, message: Started | NotStarted | Ended) -> None:
        match message:
            case Started():
                self._starter.reported(message)
                for one in message.begun:
                    node = proc_node(one.mesh, one.rank, one.life)
                    self._do(self._host.forked(node, one.pid, time.monotonic()))
            case NotStarted():
                self._starter.reported(message)
                node = proc_node(message.mesh, message.rank, message.life)
                self._on_not_started(node, message.reason)
            case Ended():
                node = proc_node(message.mesh, message.rank, message.life)
                if self._may_have_messages_left(node, message):
                    self._end_notices.add(message, node, time.monotonic())
                else:
                    self._on_ended(message)

    def _on_import_ahead(self, _peer: str, message: ImportAhead, _payload: Payload) -> None:
        self._zygotes.import_ahead(message.imports)

    def _may_have_messages_left(self, node: str, ended: Ended) -> bool:
        """Whether messages of an ended process may still arrive that must precede its end."""
        # Other hosts must get a proc's messages before the report of its end.
        if self._casts.owes(ended.mesh, ended.rank) or self._node.remote_links is not None:
            return True
        proc = self._host.proc(node)
        # A proc that exits by itself may have sent the failure of the actor that ended it.
        return proc is not None and proc.restarts is not None and os.WIFEXITED(ended.status)

    def _client_tie(self) -> tuple[str, int]:
        return self._owner.client, self._owner.client_number

    def _on_not_started(self, node: str, reason: str) -> None:
        self._outputs.drop(node)
        self._do(self._host.start_failed(node, reason, time.monotonic()))

    # --- ending -------------------------------------------------------------------------------

    def _report_ends(self) -> bool:
        """Report ends whose messages have all arrived; True to read the socket once more."""
        if not self._end_notices:
            return False
        for message in self._end_notices.due():
            self._on_ended(message)
        return self._end_notices.poll(self._node.has_received_all)

    def _on_ended(self, message: Ended) -> None:
        node = proc_node(message.mesh, message.rank, message.life)
        proc = self._host.proc(node)
        if proc is None:
            return
        last_lines = self._outputs.read_all(node)
        now = time.monotonic()
        board = self._boards.get(proc.mesh)
        state = NONE if board is None else board.read(proc.rank).state
        # The process may have ended before its hello, or its owner's stop, arrived here.
        if state != NONE:
            self._do(self._host.hello(node, now))
        if state == LEFT:
            self._host.told_to_stop(node)
        death = report.death(proc, message, board, last_lines, now, self._memory)
        self._outputs.drop(node)
        self._node.forget(node)
        self._casts.ended(node)
        self._parts.on_proc_ended(node)
        self._owner.proc_ended(proc.mesh, proc.rank)
        self._do(self._host.ended(node, death, now))

    def _on_stop(self, peer: str, message: StopMesh, _payload: Payload) -> None:
        now = time.monotonic()
        self._do(
            self._host.stop_requested(message.mesh, peer, message.reason, message.grace_s, now)
        )

    def _on_shutdown(self, peer: str, message: Shutdown, _payload: Payload) -> None:
        self._ended_by_client = peer == self._owner.client_now
        self._owner.note("kill", peer, why=message.reason, host="all of it")
        self._owner.told_to_end("" if self._ended_by_client else message.reason)

    def _renew(self, mesh: int, rank: int, old: str, new: str) -> None:
        self._outputs.drop(old)
        self._node.drop(old)
        unlink(self._directory / old)
        self._boards[mesh].clear(rank)
        self._node.expect(new)  # a cast may arrive before the proc connects
        self._owner.proc_starting(new)

    def _free(self, mesh: int, nodes: Sequence[str]) -> None:
        self._casts.freed(mesh)
        board = self._boards.pop(mesh, None)
        if board is not None:
            board.close()
            for node in nodes:
                self._outputs.drop(node)
                self._node.drop(node)
                unlink(self._directory / node)
        self._starter.drop(mesh)
        self._owner.mesh_freed(mesh)

    # --- output -------------------------------------------------------------------------------

    def _read_counter(self, node: str) -> Reads | None:
        place = parse_proc_node(node)
        board = None if place is None else self._boards.get(place[0])
        return None if place is None or board is None else board.reads(place[1])

    def _on_lines(self, node: str, lines: list[tuple[int, str]]) -> None:
        proc = self._host.proc(node)
        if proc is None or not lines:
            return
        spec = self._host.meshes[proc.mesh].spec
        now_us, client = time.time_ns() // 1000, self._owner.client
        self._lines.add(now_us, proc.mesh, spec.name, proc.rank, lines, client)
        for wants in self._readers(spec):
            self._node.send(wants, OutputLines(proc.mesh, proc.rank, lines))

    def _readers(self, spec: SpawnProcs) -> list[str]:
        """The nodes that receive the lines of a mesh."""
        return [one for one in self._want_output if one in (spec.owner, self._owner.client)]

    def _is_behind(self, node: str) -> bool:
        proc = self._host.proc(node)
        if proc is None:
            return False
        readers = self._readers(self._host.meshes[proc.mesh].spec)
        return any(self._node.is_behind(one) for one in readers)

    def _on_want_output(self, peer: str, message: WantOutput, _payload: Payload) -> None:
        if message.wanted:
            self._want_output.add(peer)
        else:
            self._want_output.discard(peer)

    def _on_flush(self, peer: str, message: FlushOutput, _payload: Payload) -> None:
        self._outputs.read_held()
        self._node.send(peer, OutputFlushed(message.request))

    # --- questions ----------------------------------------------------------------------------

    def _on_hello(self, peer: str, message: Hello, _payload: Payload) -> None:
        if parse_proc_node(peer) is not None:
            proc = self._host.proc(peer)
            if proc is not None and proc.state is not ProcState.ENDED:
                spec = self._host.meshes[proc.mesh].spec
                self._memory.proc_started(peer, message.pid, forked=is_forked(spec, proc.rank))
            self._do(self._host.hello(peer, time.monotonic()))
            self._parts.on_proc_connected(peer)

    def _on_gave_up(self, peer: str, message: GaveUp, _payload: Payload) -> None:
        self._host.gave_up(peer, message.failure, time.monotonic())

    def _on_cast(self, peer: str, message: Cast, payload: Payload) -> None:
        self._do(self._casts.cast(peer, message, payload))

    def _on_cast_tree(self, peer: str, message: CastTree, payload: Payload) -> None:
        if self._owner.obeys(message.cast.sender):  # another client may have replaced the sender
            self._do(self._casts.tree(peer, message, payload))

    def _on_watch(self, peer: str, message: Watch, _payload: Payload) -> None:
        self._do(self._host.watch_requested(message.node, peer, message.owner, place=message.place))

    def _handle(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        handler = self._handlers.get(type(message))
        if type(message) is not Relay:
            self._has_events = True
        if not self._owner.obeys(peer):
            return
        if handler is None:
            log.warning(
                "%s sent a %s, which the host agent does not handle", peer, type(message).__name__
            )
        else:
            handler(peer, message, payload)
