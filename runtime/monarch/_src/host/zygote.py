"""The zygote: a clean, single-threaded process from which procs are forked in milliseconds.

Runs in: a process of its own. The host agent forks it before it has a thread or a socket, so the
zygote is as clean as an executed process and costs no second start of Python.
Owns: the procs, as their parent. Only the zygote can reap them, and it tells the agent how each
ended.
Invariants: it has one thread when it forks, and no socket of a node. Procs die with the zygote (on
Linux the kernel ensures that; elsewhere end-of-file on `lifeline` does), and the zygote dies with
the agent.

Processes that a proc has started end with the proc. Its process group is killed. A process that
has left the group for a session of its own is an orphan once its parent has ended: the proc adopts
it while the proc lives, and the zygote after that. So a child of the zygote that is neither a proc,
nor a zygote, nor started by a preloaded module was started by a proc that has ended.

A zygote that has imported modules for procs to come (`host.state.zygotes`) is a fork of another
zygote, and serves the agent as that one does, on a socket of its own. It dies with its parent.

A proc that needs another interpreter, or a command in front of it, is forked too and then executes
that (`monarch._src.host.exec_proc`): the parent, the pipes and the reaping stay the same.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import NoReturn, TypeAlias

from monarch._src.host import spawn_spec as wire
from monarch._src.host.exec_proc import begin, execute, import_path, prepared
from monarch._src.host.import_checks import ProcessState, variables_read
from monarch._src.host.spawn_spec import (
    Begun,
    Boot,
    CannotBegin,
    DropMesh,
    Ended,
    EndZygote,
    Imported,
    Importing,
    MakeZygote,
    MeshSpec,
    NotStarted,
    Spoiled,
    Started,
    StartRank,
)
from monarch._src.host.workspace_paths import workspace_paths
from monarch._src.net.local.interrupt import plain_signal
from monarch._src.system.interpreter_exit import exit_now, exit_status
from monarch._src.system.process import (
    adopt_orphans,
    allow_stack_reads_by,
    die_with_parent,
    peak_bytes,
    pidfd,
)
from monarch._src.system.process_table import children

LARGEST = 1 << 20
IDLE_MS = 100
ORPHANS_S = 0.2  # how long the report of an end waits for the proc's orphans
FORKS_AT_ONCE = 16  # each fork closes the descriptors of all
FD = struct.Struct("i")

StartOrder: TypeAlias = tuple[StartRank, list[int]]  # with its stdout and stderr


def seqpacket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep message boundaries and pass descriptors."""
    kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGEST)
    return pair


class Zygote:
    """The loop of the zygote process."""

    def __init__(
        self, agent: socket.socket, lifeline: int, entry: str, spare_time: Sequence[str]
    ) -> None:
        """`spare_time` names modules that many procs need, to be imported while idle."""
        self._entry = entry
        self._spare_time = list(spare_time)
        self._agent = agent
        self._agent_pid = os.getppid()
        self._lifeline = lifeline
        self._meshes: dict[int, MeshSpec] = {}
        self._failed_preloads: dict[int, str] = {}  # meshes that cannot start, and why
        self._ranks: dict[int, tuple[int, int, int]] = {}  # pid -> (mesh, rank, life)
        self._own: set[int] = set()  # processes that preloaded modules have started
        self._zygotes: dict[int, int] = {}  # by number, the pids of those that were forked here
        self._inbox = memoryview(bytearray(LARGEST))  # touched up to the largest message
        self._open_wake_pipe()

    def _open_wake_pipe(self) -> None:
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)

    def run(self) -> NoReturn:
        """Serve until the agent has ended."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _on_child_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A scheduler sends it to all processes of a job; the agent ends this one, after the ranks.
        # A handler, unlike SIG_IGN, is not inherited by programs.
        signal.signal(signal.SIGTERM, _leave_to_agent)
        adopt_orphans()
        # Done once here: a fork pays most for the pages that it writes to.
        try:
            self._main = prepared(self._entry)
        except BaseException as error:
            traceback.print_exc()
            self._send(CannotBegin(f"{type(error).__name__}: {error}"))
            self._await_end()
        self._streams = sys.stdout, sys.stderr
        gc.freeze()  # no collection first, as in the agent
        gc.enable()
        self._serve_all()

    def _serve_all(self) -> NoReturn:
        poller = select.poll()
        poller.register(self._agent, select.POLLIN)
        poller.register(self._wake_r, select.POLLIN)
        while True:
            self._reap()
            ready = poller.poll(IDLE_MS if self._spare_time else None)
            if not ready:
                importlib.import_module(self._spare_time.pop(0))
                gc.freeze()
            for fd, _ in ready:
                if fd == self._wake_r:
                    _read_empty(fd)
                else:
                    self._serve()

    def _await_end(self) -> NoReturn:
        """End after the agent has ended.

        If the zygote closed the socket with messages unread, the agent would see a reset before it
        could read the zygote's last message.
        """
        with contextlib.suppress(ConnectionResetError):
            while self._agent.recv(LARGEST):
                pass
        os._exit(1)

    def _serve(self) -> None:
        starts: list[StartOrder] = []
        while len(starts) < FORKS_AT_ONCE and (received := self._receive()) is not None:
            message, fds = received
            if isinstance(message, StartRank):
                starts.append((message, fds))
                continue
            self._start(starts)
            starts = []
            match message:
                case MeshSpec():
                    self._meshes[message.mesh] = message
                    self._prepare(message)
                case DropMesh():
                    self._meshes.pop(message.mesh, None)
                    self._failed_preloads.pop(message.mesh, None)
                case MakeZygote():
                    self._make_zygote(message, fds)
                case EndZygote():
                    pid = self._zygotes.get(message.zygote)
                    if pid is not None:  # not reaped yet
                        os.kill(pid, signal.SIGKILL)
        self._start(starts)

    def _make_zygote(self, order: MakeZygote, fds: list[int]) -> None:
        """Fork a zygote that imports those modules. If that fails, the agent reads end-of-file."""
        with contextlib.suppress(OSError):
            pid = os.fork()
            if pid == 0:
                self._become_zygote(order, fds[0])
            self._zygotes[order.zygote] = pid
        for fd in fds:
            os.close(fd)

    def _become_zygote(self, order: MakeZygote, agent: int) -> NoReturn:
        """In the child: import, then serve the agent on that socket. Never returns."""
        try:
            die_with_parent(os.getppid())
            adopt_orphans()
            for fd in (self._agent.detach(), self._wake_r, self._wake_w):
                os.close(fd)
            self._open_wake_pipe()
            signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
            self._agent = socket.socket(fileno=agent)
            for kept in (
                self._meshes,
                self._failed_preloads,
                self._ranks,
                self._own,
                self._zygotes,
            ):
                kept.clear()
            self._import(order)
            self._serve_all()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _import(self, order: MakeZygote) -> None:
        """Import these modules, and end this process after one that leaves it unfit to fork."""
        own_path, own_variables = sys.path[:], dict(os.environ)
        sys.path[:] = import_path(order.path, own_path)
        _set_variables(order.env)
        with variables_read() as reads:
            for module in order.modules:
                if module in sys.modules:  # most subpackages come with their library
                    continue
                self._send(Importing(module))
                before = ProcessState.now()
                try:
                    importlib.import_module(module)
                except BaseException as error:
                    why = f"{type(error).__name__}: {error}"
                else:
                    why = before.what_was_left()
                if why:
                    self._send(Spoiled(module, why))
                    self._await_end()
        _set_variables({name: own_variables.get(name) for name in order.env})
        sys.path[:] = own_path
        self._make_ready_to_fork()
        self._send(Imported(sorted(reads)))

    def _make_ready_to_fork(self) -> None:
        for stream in self._streams:  # or each fork would write the buffered text
            stream.flush()
        gc.collect()
        gc.freeze()

    def _receive(self) -> tuple[wire.ToZygote, list[int]] | None:
        """The next message and its descriptors; None if none has arrived."""
        try:
            size, passed, _, _ = self._agent.recvmsg_into(
                [self._inbox], socket.CMSG_SPACE(2 * FD.size), socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return None
        except ConnectionResetError:  # the agent ended with messages unread
            size, passed = 0, []
        if not size:
            os._exit(0)  # the agent has ended; the procs end with this process
        fds = [
            fd
            for _, _, data in passed
            for (fd,) in FD.iter_unpack(data[: len(data) // FD.size * FD.size])
        ]
        return wire.decode_to_zygote(bytes(self._inbox[:size])), fds

    def _prepare(self, spec: MeshSpec) -> None:
        if not (spec.forks and spec.preload):
            return
        own = sys.path[:]
        before = children()
        try:
            sys.path[:] = import_path(spec.path, own)
            copy = workspace_paths(spec.directory)
            if copy is not None:
                sys.path[:] = copy.import_path(sys.path)
            for name in spec.preload:
                importlib.import_module(name)
        except BaseException as error:
            self._failed_preloads[spec.mesh] = (
                f"preloading {name!r} failed with {type(error).__name__}: {error}"  # pyright: ignore[reportPossiblyUnboundVariable]
            )
        finally:
            sys.path[:] = own
        self._own |= children() - before
        self._make_ready_to_fork()

    def _start(self, starts: list[StartOrder]) -> None:
        # Fork in a row with little work in between: after a fork every page is shared, and each
        # page that the zygote writes to is copied (docs/explanation/performance.md).
        pids: list[tuple[StartRank, int]] = []
        for message, fds in starts:
            reason = self._obstacle(message, fds)
            if reason is None:
                # No child is reaped before its pid is recorded: SIGCHLD only sets a flag.
                try:
                    pid = os.fork()
                except OSError as error:
                    reason = f"fork failed: {error.strerror}"
                else:
                    if pid == 0:
                        self._become(message, fds, starts)
                    pids.append((message, pid))
                    continue
            self._send(NotStarted(message.mesh, message.rank, reason, message.life))
        begun: list[Begun] = []
        for message, pid in pids:
            self._ranks[pid] = (message.mesh, message.rank, message.life)
            begun.append(Begun(message.mesh, message.rank, message.life, pid))
        if begun:
            self._send(Started(begun))
        for _, fds in starts:
            for fd in fds:
                os.close(fd)

    def _obstacle(self, message: StartRank, fds: list[int]) -> str | None:
        """Why that rank cannot start, or None if it can."""
        command = message.command
        if command is None:
            reason = self._failed_preloads.get(message.mesh)
        elif not (os.path.isfile(command.program) and os.access(command.program, os.X_OK)):
            reason = f"{command.program} is not an executable file"
        else:
            reason = None
        if reason is None and len(fds) != 2:
            reason = "its output pipes did not arrive: out of file descriptors"
        return reason

    def _become(self, start: StartRank, fds: list[int], starts: list[StartOrder]) -> NoReturn:
        """In the child: turn into the proc. Never returns.

        `starts` has all ranks of this batch, whose descriptors the child inherits too.
        """
        status = 1
        try:
            spec = self._meshes[start.mesh]
            zygote = os.getppid()
            signal.set_wakeup_fd(-1)
            plain_signal.signal(signal.SIGCHLD, plain_signal.SIG_DFL)
            plain_signal.signal(signal.SIGINT, signal.default_int_handler)
            plain_signal.signal(signal.SIGTERM, plain_signal.SIG_DFL)
            os.setsid()
            die_with_parent(zygote)
            allow_stack_reads_by(self._agent_pid)
            os.close(self._agent.detach())
            os.close(self._wake_r)
            os.close(self._wake_w)
            os.dup2(fds[0], 1)
            os.dup2(fds[1], 2)
            for _, passed in starts:
                for fd in passed:
                    os.close(fd)
            sys.stdout, sys.stderr = self._streams  # preloaded modules may have replaced them
            boot = Boot(spec, start.rank, start.affinity, start.ties, life=start.life)
            if start.command is not None:
                adopt_orphans()  # the command may start the proc as its child
                execute(start.command, start.env, boot, self._lifeline)
            _set_variables(start.env)
            status = begin(boot, self._lifeline, self._main)
        except SystemExit as end:
            status = exit_status(end)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            exit_now(status)

    def _reap(self) -> None:
        found: list[Ended] = []
        is_over = False
        while not is_over:
            try:
                ended = _ended_child()
            except ChildProcessError:
                break
            if ended is None:
                is_over = True
                continue
            pid, status, usage = ended
            self._own.discard(pid)
            if pid in self._zygotes.values():
                self._zygotes = {n: one for n, one in self._zygotes.items() if one != pid}
                self._end_left_by_zygote()
            place = self._ranks.pop(pid, None)
            if place is not None:
                mesh, rank, life = place
                found.append(Ended(mesh, rank, pid, status, life, peak_bytes(usage)))
        if is_over:  # children remain
            self._end_orphans()
        for one in found:
            self._send(one)

    def _end_left_by_zygote(self) -> None:
        """Kill what the imports of a zygote have started, which this process has adopted."""
        known = {*self._ranks, *self._own, *self._zygotes.values()}
        for pid in children() - known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _end_orphans(self) -> None:
        """Kill processes that ended procs have left behind, and their descendants.

        Each end raises SIGCHLD and leads back here, so a process that takes long is not waited for.
        """
        deadline = time.monotonic() + ORPHANS_S
        while orphans := _of_other_sessions(children() - self._ranks.keys() - self._own):
            fds = [fd for fd in map(pidfd, orphans) if fd is not None]
            try:
                for pid in orphans:
                    _end_group(pid)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                if not _await_all(fds, deadline):
                    return
            finally:
                for fd in fds:
                    os.close(fd)
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _send(self, message: wire.FromZygote) -> None:
        try:
            self._agent.sendall(wire.encode(message))
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def _set_variables(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is not None:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def _ended_child() -> tuple[int, int, resource.struct_rusage] | None:
    """Reap a child that has ended, as `os.wait4` does, and kill its process group.

    Raises:
        ChildProcessError: there are no children.
    """
    if not hasattr(os, "waitid"):  # as on macOS before Python 3.13
        ended = os.wait4(-1, os.WNOHANG)
        if ended[0]:
            _end_group(ended[0])
        return ended if ended[0] else None
    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    _end_group(found.si_pid)  # a zombie's pid, and so its group, is not reused
    return os.wait4(found.si_pid, 0)


def _of_other_sessions(pids: Iterable[int]) -> list[int]:
    """Those in another session than the zygote's, as procs and their descendants are."""
    own = os.getsid(0)
    return [pid for pid in pids if os.getsid(pid) != own]  # a child, even a zombie, has one


def _await_all(fds: Sequence[int], deadline: float) -> bool:
    """Wait until all these processes have ended; False if the deadline came first."""
    if not fds:
        return False  # no pidfd on this system
    for fd in fds:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            return False
    return True


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _leave_to_agent(_signum: int, _frame: FrameType | None) -> None:
    pass


def _on_child_signal(_signum: int, _frame: FrameType | None) -> None:
    pass


def _read_empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
