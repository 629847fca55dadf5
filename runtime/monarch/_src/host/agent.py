"""The host agent: owns the procs of one host, says why they died, reads what they write.

Runs in: a process of its own, executed by the client that starts a session; one thread, one loop.
Owns: the session directory (holds its lock, removes it), the zygote, one pipe pair a proc, one
status board a mesh. Decides nothing: `host.state.host` does, this carries it out.
Invariants: runs no user code, so it always answers. It ends, and everything it owns ends before it,
when it is told to, or when the client that it is tied to is gone; one that is kept, when nothing is
left of that (`session.agent_part`).
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from monarch._src.host import report
from monarch._src.host.agent_requests import AgentRequests
from monarch._src.host.cast_relay import CastRelay
from monarch._src.host.output_pipes import OutputPipes
from monarch._src.host.owner import AgentOwner, AgentServices
from monarch._src.host.spawn_spec import ENTRY, Ended, MeshSpec, NotStarted, Started
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
from monarch._src.net import session_directory as sessions
from monarch._src.net.node import Node
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
LOOK_AGAIN_S = 0.001


class Agent:
    """The driver of one `Host`."""

    def __init__(
        self,
        directory: Path,
        zygote: socket.socket,
        tenure: Callable[[Node, Host, AgentServices], AgentOwner],
        site: str = "",
        cwd: str = "",
    ) -> None:
        """`cwd`: where its procs are to be, in place of where their client is."""
        self._directory = directory
        self._cwd = cwd
        self._host = Host()
        self._boards: dict[int, Board] = {}
        self._want_output: set[str] = set()
        self._memory = KillsForMemory()
        self._ending = False
        self._told_by_client = False  # to end: then it is told of the ends of its procs
        self._owners: set[str] = set()  # procs of other sites that are watched
        self.status = 0  # with which the process is to end
        self._node = Node(
            AGENT, "agent", sessions.address_of(directory, AGENT), self._handle, site=site
        )
        self._casting = CastRelay(self._node, self._host)
        # Ends that wait for the last answers of who has ended.
        self._endings: Notices[Ended] = Notices()
        self._selector = selectors.DefaultSelector()
        self._quiet: set[int] = set()
        self._stirred = True  # since all parts of this have looked
        self._outputs = OutputPipes(self._selector, self._said, self._tally)
        self._starts = ProcStarter(zygote, self._host, self._outputs, self._ties, self._not_started)
        self._register_quietly(self._node.router.fd, self._node.router.poll_now)
        self._register(zygote.fileno(), self._from_zygote)
        self._terminated_r, self._terminated_w = os.pipe()
        self._register(self._terminated_r, self._told_to_end)
        self._tenure = tenure(
            self._node, self._host,
            AgentServices(self._register, self._register_quietly, self._selector.unregister,
            self._do,
                   self._end, self._casting.receivers, self._part, self._casting.site_lost,
                   self._seen, self._stir),
        )  # fmt: skip
        self._asked = AgentRequests(
            self._node, self._host, self._tenure, self._boards, self._selector,
            lambda: self._ending,
        )  # fmt: skip
        self._handlers: dict[type, Callable[[str, Any, Payload], None]] = {
            Hello: self._on_hello,
            Cast: self._on_cast,
            CastTree: self._on_cast_tree,
            TreeDone: self._casting.tree_done,
            Answer: self._casting.answered,
            SpawnProcs: self._on_spawn,
            StopMesh: self._on_stop,
            Watch: self._on_watch,
            GaveUp: self._on_gave_up,
            WantOutput: self._on_want_output,
            FlushOutput: self._on_flush,
            Shutdown: self._on_shutdown,
            ProcEnded: self._on_owner_ended,
            Relay: self._node.on_relay,
            **self._asked.handlers,
            **self._tenure.handlers,
        }

    def run(self) -> None:
        """Serve until told to end or the client is gone, and until nothing is left."""
        self._tenure.begin()
        due = 0.0
        while not (self._ending and not self._host.meshes):
            self._node.drain()
            # What was only passed on to others concerns nobody here.
            if self._stirred or time.monotonic() >= due:
                self._stirred = False
                again = self._look()
                if self._ending and not self._host.meshes:
                    break
                left = 0.0 if again else self._patience()
                due = math.inf if left is None else time.monotonic() + left
            ready = self._selector.select(self._wait_s(due))
            self._node.router.skip_next_poll()
            for key, _ in ready:
                if key.fd not in self._quiet:
                    self._stirred = True
                key.data()
        self._tenure.close()
        self._selector.close()
        self._node.close(linger_s=0.2)

    # --- the loop -----------------------------------------------------------------------------

    def _look(self) -> bool:
        """Have all parts do what follows of what has happened; True to look at the socket again."""
        self._casting.looked()
        again = self._tell_of_ends() | self._tenure.tell_of_ends()
        self._do(self._host.time_passed(time.monotonic()))
        self._outputs.time_passed(time.monotonic())
        self._starts.start_more()
        self._tenure.looked()
        self._asked.looked()
        return again

    def _wait_s(self, due: float) -> float | None:
        """How long to wait for what may come."""
        if self._stirred or self._tenure.is_pending or self._node.router.is_pending:
            return 0.0
        left = None if due == math.inf else max(0.0, due - time.monotonic())
        retry = self._node.router.due_in()
        return left if retry is None else retry if left is None else min(left, retry)

    def _stir(self) -> None:
        self._stirred = True

    def _seen(self, message: Snapshot) -> Snapshotted:
        return self._asked.seen(message)  # who asks may be there before that is

    def _register(self, fd: int, ready: Callable[[], None]) -> None:
        self._quiet.discard(fd)
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def _register_quietly(self, fd: int, ready: Callable[[], None]) -> None:
        """What comes there is handled by `_handle`, or is for others."""
        self._register(fd, ready)
        self._quiet.add(fd)

    def _patience(self) -> float | None:
        if self._tenure.looks:
            self._tenure.look()
        deadlines = [
            self._host.next_deadline(), self._tenure.next_deadline(), self._outputs.deadline,
            self._casting.next_deadline(),
        ]  # fmt: skip
        deadline = min((found for found in deadlines if found is not None), default=None)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self._tenure.looks:
            left = PARENT_CHECK_S if left is None else min(left, PARENT_CHECK_S)
        if self._endings or self._tenure.is_restless:  # one look more, and not for ever
            left = LOOK_AGAIN_S if left is None else min(left, LOOK_AGAIN_S)
        return left

    def _part(self, client: str) -> None:
        """That client is owed nothing any more: no answers, no output."""
        self._want_output.discard(client)
        self._casting.lost(client)
        self._asked.gone(client)

    def _end(self, why: str) -> None:
        self._ending = True
        client = self._tenure.client
        if not (self._told_by_client or self._tenure.is_awaited):
            self._part(client)
            self._node.forget(client)
        self._do(self._host.node_lost(client, time.monotonic(), why))

    def terminate(self, _signum: int, _frame: FrameType | None) -> None:
        """On SIGTERM: end in order, as when the client is gone; on a second one, at once."""
        if self.status:
            raise SystemExit(TERMINATED)
        self.status = TERMINATED
        os.write(self._terminated_w, b".")

    def _told_to_end(self) -> None:
        os.read(self._terminated_r, 1)
        # The client, if it lives, learns of everything at once, by our end.
        self._tenure.told_to_end("its session was ended")

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(to, message):
                    self._node.send(to, message)
                case StartProc():
                    self._starts.add(action)
                case Kill(_, pid):
                    kill_group(pid)
                case RenewProc(mesh, rank, old, new):
                    self._renew(mesh, rank, old, new)
                case FreeMesh(mesh, nodes):
                    self._free(mesh, nodes)

    # --- starting -----------------------------------------------------------------------------

    def _watch_owner(self, spec: SpawnProcs) -> None:
        """Hear of the end of an owner that is a process of another site."""
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
        if message.owner != self._tenure.client:
            self._node.link_to(message.owner, message.owner_address)
        path = self._directory / f"{message.mesh:x}.board"
        # First, so that the zygote is awake and knows of it when it is to fork.
        self._starts.tell(
            MeshSpec(
                message.mesh, message.name, message.labels, message.sizes, str(self._directory),
                self._cwd or message.cwd, message.path, message.preload, ENTRY, str(path),
                message.bootstrap,
                not message.commands or None in message.commands, message.while_restarting,
                self._node.site, message.sites, self._tenure.serves_at,
            )
        )  # fmt: skip
        try:
            board = Board(path, message.ranks)
        except OSError as error:
            board = Board(None, message.ranks)
            self._starts.cannot(message.mesh, no_board(path, error))
        self._starts.took(2)  # the board's, and a new owner's
        self._boards[message.mesh] = board
        for proc in self._host.meshes[message.mesh].procs:
            self._node.expect(proc.node)  # a cast may come before it
        self._tenure.spawned(message)
        self._tenure.note("spawn", peer, mesh=message.name, ranks=str(message.count))
        self._do(actions)
        self._do(self._casting.spawned(message.mesh))

    def _from_zygote(self) -> None:
        for message in self._starts.reported():
            match message:
                case Started():
                    for one in message.begun:
                        node = proc_node(one.mesh, one.rank, one.life)
                        self._do(self._host.forked(node, one.pid, time.monotonic()))
                case NotStarted():
                    node = proc_node(message.mesh, message.rank, message.life)
                    self._not_started(node, message.reason)
                case Ended():
                    node = proc_node(message.mesh, message.rank, message.life)
                    if self._has_more_to_say(node, message):
                        self._endings.add(message, node, time.monotonic())
                    else:
                        self._ended(message)

    def _has_more_to_say(self, node: str, ended: Ended) -> bool:
        """Whether something of a process that has ended may still be on its way, and matters."""
        # Other sites hear of ends behind what was said before, which comes by the same way.
        if self._casting.owes(ended.mesh, ended.rank) or self._node.remote_links is not None:
            return True
        proc = self._host.proc(node)
        # With which failure of an actor it has ended, if it has ended by itself.
        return proc is not None and proc.restarts is not None and os.WIFEXITED(ended.status)

    def _ties(self) -> tuple[str, int]:
        return self._tenure.client, self._tenure.client_number

    def _not_started(self, node: str, reason: str) -> None:
        self._outputs.drop(node)
        self._do(self._host.start_failed(node, reason, time.monotonic()))

    # --- ending -------------------------------------------------------------------------------

    def _tell_of_ends(self) -> bool:
        """Enter the ends of those who have said all; True to look at the socket once more."""
        if not self._endings:
            return False
        for message in self._endings.due():
            self._ended(message)
        return self._endings.look(self._node.has_received_all)

    def _ended(self, message: Ended) -> None:
        node = proc_node(message.mesh, message.rank, message.life)
        proc = self._host.proc(node)
        if proc is None:
            return
        last_lines = self._outputs.read_all(node)
        now = time.monotonic()
        board = self._boards.get(proc.mesh)
        state = NONE if board is None else board.read(proc.rank).state
        # It and its owner may have been quicker than what they told us.
        if state != NONE:
            self._do(self._host.hello(node, now))
        if state == LEFT:
            self._host.told_to_stop(node)
        death = report.death(proc, message, board, last_lines, now, self._memory)
        self._outputs.drop(node)
        self._node.forget(node)
        self._casting.ended(node)
        self._asked.proc_ended(node)
        self._tenure.proc_ended(proc.mesh, proc.rank)
        self._do(self._host.ended(node, death, now))

    def _on_stop(self, peer: str, message: StopMesh, _payload: Payload) -> None:
        now = time.monotonic()
        self._do(
            self._host.stop_requested(message.mesh, peer, message.reason, message.grace_s, now)
        )

    def _on_shutdown(self, peer: str, message: Shutdown, _payload: Payload) -> None:
        self._told_by_client = peer == self._tenure.client_now
        self._tenure.note("kill", peer, why=message.reason, host="all of it")
        self._tenure.told_to_end("" if self._told_by_client else message.reason)

    def _renew(self, mesh: int, rank: int, old: str, new: str) -> None:
        self._outputs.drop(old)
        self._node.drop(old)
        unlink(self._directory / old)
        self._boards[mesh].clear(rank)
        self._node.expect(new)  # a cast may come before it
        self._tenure.proc_comes(new)

    def _free(self, mesh: int, nodes: Sequence[str]) -> None:
        self._casting.freed(mesh)
        board = self._boards.pop(mesh, None)
        if board is not None:
            board.close()
            for node in nodes:
                self._outputs.drop(node)
                self._node.drop(node)
                unlink(self._directory / node)
        self._starts.drop(mesh)
        self._tenure.mesh_freed(mesh)

    # --- output -------------------------------------------------------------------------------

    def _tally(self, node: str) -> Reads | None:
        place = parse_proc_node(node)
        board = None if place is None else self._boards.get(place[0])
        return None if place is None or board is None else board.reads(place[1])

    def _said(self, node: str, lines: list[tuple[int, str]]) -> None:
        proc = self._host.proc(node)
        if proc is None or not lines:
            return
        owner = self._host.meshes[proc.mesh].spec.owner
        for wants in self._want_output:
            if wants in (owner, self._tenure.client):
                self._node.send(wants, OutputLines(proc.mesh, proc.rank, lines))

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
                self._memory.met(peer, message.pid, forked=is_forked(spec, proc.rank))
            self._do(self._host.hello(peer, time.monotonic()))
            self._asked.hello(peer)

    def _on_gave_up(self, peer: str, message: GaveUp, _payload: Payload) -> None:
        self._host.gave_up(peer, message.failure, time.monotonic())

    def _on_cast(self, peer: str, message: Cast, payload: Payload) -> None:
        self._do(self._casting.cast(peer, message, payload))

    def _on_cast_tree(self, peer: str, message: CastTree, payload: Payload) -> None:
        if self._tenure.obeys(message.cast.sender):  # it may come from one that was replaced since
            self._do(self._casting.tree(peer, message, payload))

    def _on_watch(self, peer: str, message: Watch, _payload: Payload) -> None:
        self._do(self._host.watch_requested(message.node, peer, message.owner, place=message.place))

    def _handle(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        handler = self._handlers.get(type(message))
        if type(message) is not Relay:
            self._stirred = True
        if not self._tenure.obeys(peer):
            return
        if handler is None:
            log.warning("%s sent a %s, which an agent has no use for", peer, type(message).__name__)
        else:
            handler(peer, message, payload)
