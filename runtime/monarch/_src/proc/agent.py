"""The host agent: owns the procs of one host, says why they died, reads what they write.

Runs in: a process of its own, executed by the client that starts a session; one thread, one loop.
Owns: the session directory (holds its lock, removes it), the zygote, one pipe pair a proc, one
status board a mesh. Decides nothing: `core.host` does, this carries it out.
Invariants: runs no user code, so it always answers. It ends, and everything it owns ends before it,
when it is told to, or when the client that it is tied to is gone.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from monarch._src.core.host import (
    Action,
    FreeMesh,
    Host,
    Kill,
    ProcState,
    Send,
    StartProc,
)
from monarch._src.core.ids import AGENT, OBSERVER, parse_proc_node, proc_node
from monarch._src.core.notices import Notices
from monarch._src.net import directory as sessions
from monarch._src.net.node import Node
from monarch._src.proc import record, report
from monarch._src.proc import spec as wire
from monarch._src.proc.board import LEFT, NONE, Board
from monarch._src.proc.casting import Casting
from monarch._src.proc.outputs import Outputs
from monarch._src.proc.spec import DropMesh, Ended, MeshSpec, NotStarted, Started, StartRank
from monarch._src.proc.system import (
    TERMINATED,
    die_with_parent,
    free_descriptors,
    pidfd,
    raise_fd_limit,
)
from monarch._src.proc.zygote import LARGEST, Zygote, seqpacket_pair
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import (
    Answer,
    AnyMessage,
    Cast,
    FlushOutput,
    Hello,
    OutputFlushed,
    OutputLines,
    Shutdown,
    Snapshot,
    Snapshotted,
    SpawnProcs,
    StopMesh,
    WantOutput,
    Watch,
)

log = logging.getLogger("monarch.agent")
T = TypeVar("T")
PARENT_CHECK_S = 0.5
SPAWN_WINDOW = 64
LOOK_AGAIN_S = 0.001
FDS_A_PROC = 3
SPARE_FDS = 16


class Agent:
    """The driver of one `Host`."""

    def __init__(
        self, directory: Path, client: str, client_pid: int, zygote: socket.socket
    ) -> None:
        self._directory = directory
        self._client = client
        self._client_pid = client_pid
        self._host = Host()
        self._boards: dict[int, Board] = {}
        self._want_output: set[str] = set()
        self._starts: deque[StartProc] = deque()
        self._in_flight = 0
        self._room = 0  # descriptors known to be free, at least; counted again when used up
        self._ending = False
        self.status = 0  # with which the process is to end
        self._zygote = zygote
        zygote.setblocking(False)
        self._node = Node(AGENT, "agent", sessions.address_of(directory, AGENT), self._handle)
        self._casting = Casting(self._node, self._host)
        # Ends that wait for the last answers of who has ended: node and status.
        self._endings: Notices[tuple[str, int]] = Notices()
        self._selector = selectors.DefaultSelector()
        self._outputs = Outputs(self._selector, self._said)
        self._register(self._node.router.fd, self._nothing)
        self._register(zygote.fileno(), self._from_zygote)
        self._terminated_r, self._terminated_w = os.pipe()
        self._register(self._terminated_r, self._told_to_end)
        self._client_fd = pidfd(client_pid)
        if self._client_fd is not None:
            self._register(self._client_fd, self._client_gone)
        self._handlers: dict[type, Callable[[str, Any, Payload], None]] = {
            Hello: self._on_hello,
            Cast: self._on_cast,
            Answer: self._casting.answered,
            SpawnProcs: self._on_spawn,
            StopMesh: self._on_stop,
            Watch: self._on_watch,
            Snapshot: self._on_snapshot,
            WantOutput: self._on_want_output,
            FlushOutput: self._on_flush,
            Shutdown: self._on_shutdown,
        }

    def run(self) -> None:
        """Serve until told to end or the client is gone, and until nothing is left."""
        self._node.link(self._client, sessions.address_of(self._directory, self._client))
        while not (self._ending and not self._host.meshes):
            self._node.drain()
            self._casting.looked()
            again = self._tell_of_ends()
            self._do(self._host.time_passed(time.monotonic()))
            self._start_more()
            if self._ending and not self._host.meshes:
                break
            # Sending may have swallowed the edge on the socket's descriptor: look before waiting.
            patience = 0.0 if again or self._node.router.readable() else self._patience()
            for key, _ in self._selector.select(patience):
                key.data()
        self._selector.close()
        self._node.close(linger_s=0.2)

    # --- the loop -----------------------------------------------------------------------------

    def _register(self, fd: int, ready: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def _nothing(self) -> None:
        pass

    def _patience(self) -> float | None:
        deadline = self._host.next_deadline()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self._client_fd is None:  # no descriptor tells of the client's end: look
            if not self._ending and os.getppid() != self._client_pid:
                self._client_gone()
            left = PARENT_CHECK_S if left is None else min(left, PARENT_CHECK_S)
        if self._endings:  # a pipe's end comes from another thread, within a millisecond or so
            left = LOOK_AGAIN_S if left is None else min(left, LOOK_AGAIN_S)
        return left

    def _client_gone(self) -> None:
        if self._client_fd is not None:
            self._selector.unregister(self._client_fd)
            os.close(self._client_fd)
            self._client_fd = None
        self._end_without_client("")

    def _end_without_client(self, why: str) -> None:
        self._ending = True
        self._want_output.discard(self._client)
        self._node.forget(self._client)
        self._casting.lost(self._client)
        self._do(self._host.node_lost(self._client, time.monotonic(), why))

    def terminate(self, _signum: int, _frame: FrameType | None) -> None:
        """On SIGTERM: end in order, as when the client is gone; on a second one, at once."""
        if self.status:
            raise SystemExit(TERMINATED)
        self.status = TERMINATED
        os.write(self._terminated_w, b".")

    def _told_to_end(self) -> None:
        os.read(self._terminated_r, 1)
        # The client, if it lives, learns of everything at once, by our end.
        self._end_without_client("its session was ended")

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(to, message):
                    self._node.send(to, message)
                case StartProc():
                    self._starts.append(action)
                case Kill(_, pid):
                    _kill_group(pid)
                case FreeMesh(mesh):
                    self._free(mesh)

    # --- starting -----------------------------------------------------------------------------

    def _on_spawn(self, _peer: str, message: SpawnProcs, _payload: Payload) -> None:
        now = time.monotonic()
        actions = self._host.spawn_requested(message, now)
        if message.owner != self._client:
            self._node.link(message.owner, message.owner_address)
        ranks = len(self._host.meshes[message.mesh].procs)
        board = Board(self._directory / f"{message.mesh:x}.board", ranks)
        self._room -= 2  # the board's, and a new owner's
        self._boards[message.mesh] = board
        self._tell_zygote(
            MeshSpec(
                message.mesh, message.name, message.labels, message.sizes, str(self._directory),
                self._client, message.owner, message.owner_address, message.cwd, message.path,
                message.preload, ENTRY, str(board.path), message.bootstrap,
                not message.commands or None in message.commands,
            )
        )  # fmt: skip
        for proc in self._host.meshes[message.mesh].procs:
            self._node.expect(proc.node)  # a cast may come before it
        self._do(actions)
        self._do(self._casting.spawned(message.mesh))

    def _start_more(self) -> None:
        # A window, so that a mesh of a thousand leaves room for a smaller one asked for after it.
        while self._starts and self._in_flight < SPAWN_WINDOW:
            start = self._starts.popleft()
            proc = self._host.proc(start.node)
            if proc is None or proc.state is ProcState.ENDED:
                continue
            # One that is to stop still starts: its owner may have sent it something before.
            if proc.killed_for is not None:
                self._not_started(start.node, "its mesh was stopped before it began")
                continue
            if not self._fits():
                self._not_started(start.node, _no_descriptors())
                continue
            try:
                out_w, err_w = self._outputs.open(start.node)
            except OSError as error:
                self._not_started(start.node, _fd_reason(error))
                continue
            try:
                self._tell_zygote(_start_rank(start.spec, start.rank), [out_w, err_w])
                self._in_flight += 1
            except OSError as error:
                self._not_started(start.node, _fd_reason(error))
            finally:
                os.close(out_w)
                os.close(err_w)

    def _fits(self) -> bool:
        """Whether there are descriptors for one more proc: two pipes, and its connection.

        ZeroMQ ends the process when a connection comes and there is no descriptor for it.
        """
        if self._room < FDS_A_PROC:
            waiting = [self._host.proc(node) for node in self._outputs.nodes()]
            coming = sum(proc is not None and not proc.said_hello for proc in waiting)
            self._room = free_descriptors() - coming - SPARE_FDS
        self._room -= FDS_A_PROC
        return self._room >= 0

    def _tell_zygote(self, message: wire.ToZygote, fds: list[int] | None = None) -> None:
        data = wire.encode(message)
        if len(data) > LARGEST:  # it would arrive cut off, and end the zygote
            raise OSError(
                errno.EMSGSIZE,
                f"what it is to start with takes {len(data)} bytes, and {LARGEST} is the most; "
                "pass less in its environment",
            )
        # The window above bounds what can be queued, so blocking here is short or the end.
        self._zygote.setblocking(True)
        try:
            socket.send_fds(self._zygote, [data], fds or [])
        finally:
            self._zygote.setblocking(False)

    def _from_zygote(self) -> None:
        while True:
            try:
                data = self._zygote.recv(LARGEST)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                log.error("the zygote is gone; every proc of this host went with it")
                os._exit(70)
            message = wire.decode_from_zygote(data)
            node = proc_node(message.mesh, message.rank)
            match message:
                case Started():
                    self._in_flight -= 1
                    self._do(self._host.forked(node, message.pid, time.monotonic()))
                case NotStarted():
                    self._in_flight -= 1
                    self._not_started(node, message.reason)
                case Ended():
                    if self._casting.owes(message.mesh, message.rank):
                        self._endings.add((node, message.status), node, time.monotonic())
                    else:
                        self._ended(node, message.status)

    def _not_started(self, node: str, reason: str) -> None:
        self._outputs.drop(node)
        self._do(self._host.start_failed(node, reason, time.monotonic()))

    # --- ending -------------------------------------------------------------------------------

    def _tell_of_ends(self) -> bool:
        """Enter the ends of those who have said all; True to look at the socket once more."""
        if not self._endings:
            return False
        for node, status in self._endings.due():
            self._ended(node, status)
        return self._endings.look(self._node.has_said_all)

    def _ended(self, node: str, status: int) -> None:
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
        death = report.death(proc, status, board, last_lines, now)
        self._outputs.drop(node)
        self._node.forget(node)
        self._casting.ended(node)
        self._do(self._host.ended(node, death, now))

    def _on_stop(self, peer: str, message: StopMesh, _payload: Payload) -> None:
        now = time.monotonic()
        self._do(
            self._host.stop_requested(message.mesh, peer, message.reason, message.grace_s, now)
        )

    def _on_shutdown(self, _peer: str, _message: Shutdown, _payload: Payload) -> None:
        self._ending = True
        self._do(self._host.node_lost(self._client, time.monotonic()))

    def _free(self, mesh: int) -> None:
        self._casting.freed(mesh)
        board = self._boards.pop(mesh, None)
        if board is not None:
            ranks = board.ranks
            board.close()
            for rank in range(ranks):
                self._outputs.drop(proc_node(mesh, rank))
                self._node.drop(proc_node(mesh, rank))
                _unlink(self._directory / proc_node(mesh, rank))
        self._tell_zygote(DropMesh(mesh))

    # --- output -------------------------------------------------------------------------------

    def _said(self, node: str, lines: list[tuple[int, str]]) -> None:
        proc = self._host.proc(node)
        if proc is None or not lines:
            return
        owner = self._host.meshes[proc.mesh].spec.owner
        for wants in self._want_output:
            if wants in (owner, self._client):
                self._node.send(wants, OutputLines(proc.mesh, proc.rank, lines))

    def _on_want_output(self, peer: str, message: WantOutput, _payload: Payload) -> None:
        if message.wanted:
            self._want_output.add(peer)
        else:
            self._want_output.discard(peer)

    def _on_flush(self, peer: str, message: FlushOutput, _payload: Payload) -> None:
        for node in list(self._outputs.nodes()):
            self._outputs.read_all(node)
        self._node.send(peer, OutputFlushed(message.request))

    # --- questions ----------------------------------------------------------------------------

    def _on_hello(self, peer: str, _message: Hello, _payload: Payload) -> None:
        if parse_proc_node(peer) is not None:
            self._do(self._host.hello(peer, time.monotonic()))

    def _on_cast(self, peer: str, message: Cast, payload: Payload) -> None:
        self._do(self._casting.cast(peer, message, payload))

    def _on_watch(self, peer: str, message: Watch, _payload: Payload) -> None:
        self._do(self._host.watch_requested(message.node, peer, message.owner))

    def _on_snapshot(self, peer: str, message: Snapshot, _payload: Payload) -> None:
        wanted = message.meshes or list(self._host.meshes)
        found = [self._host.meshes[uid] for uid in wanted if uid in self._host.meshes]
        now = time.monotonic()
        states = [report.mesh_state(mesh, self._boards[mesh.uid], now) for mesh in found]
        self._node.send(peer, Snapshotted(message.request, states, self._ending))
        if peer.startswith(OBSERVER):  # it was here for that
            self._node.drop(peer)

    def _handle(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            log.warning("%s sent a %s, which an agent has no use for", peer, type(message).__name__)
        else:
            handler(peer, message, payload)


ENTRY = "monarch._src.actor.proc_main:main"
# What a proc loads before it can say hello: once, before the fork, and not in each.
BEFORE_FORK = (ENTRY.partition(":")[0], "monarch._src.net.router")
SPARE_TIME = ("monarch._src.actor.async_life",)


def _start_rank(spec: SpawnProcs, rank: int) -> StartRank:
    return StartRank(
        spec.mesh, rank, _of_rank(spec.env, rank) or {}, _of_rank(spec.affinity, rank) or [],
        _of_rank(spec.commands, rank),
    )  # fmt: skip


def _of_rank(options: list[T], rank: int) -> T | None:
    """There is one for all, or one a rank, or none."""
    return options[rank if len(options) > 1 else 0] if options else None


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _fd_reason(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
        return _no_descriptors()
    return f"{error.strerror}"


def _no_descriptors() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"the host agent is out of file descriptors (its limit is {limit}, each proc takes "
        f"{FDS_A_PROC}); raise the hard limit (`ulimit -Hn`) or spawn fewer procs"
    )


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def main() -> None:
    """`python -c ... DIRECTORY CLIENT_NODE CLIENT_PID LOCK_FD`: serve that session."""
    directory, client, client_pid = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_quietly)
    raise_fd_limit()
    lock = sessions.hold(directory, record.of_this_agent(client, client_pid))
    # Everything that procs need is imported before the fork, once for all of them.
    import importlib

    for name in BEFORE_FORK:
        importlib.import_module(name)
    gc.freeze()  # without a collection before: imports leave little, and it costs 2 ms
    ours, theirs = seqpacket_pair()
    lifeline_r, lifeline_w = os.pipe()
    agent_pid = os.getpid()
    zygote_pid = os.fork()
    if zygote_pid == 0:
        os.close(lock)
        os.close(lifeline_w)
        ours.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(agent_pid)
        Zygote(theirs, lifeline_r, SPARE_TIME).run()
    theirs.close()
    os.close(lifeline_r)
    try:
        agent = Agent(directory, client, client_pid, ours)
        signal.signal(signal.SIGTERM, agent.terminate)
        agent.run()
        raise SystemExit(agent.status)
    finally:
        os.kill(zygote_pid, signal.SIGKILL)  # a child of ours until it is waited for
        os.waitpid(zygote_pid, 0)
        sessions.remove(directory)


def _end_quietly(_signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
