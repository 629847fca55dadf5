"""The zygote: a clean, single-threaded process from which procs are forked in milliseconds.

Runs in: a process of its own, forked by the host agent before the agent has a thread or a socket,
so it is as clean as one that was executed, and costs no second start of Python.
Owns: the procs, as their parent: it alone can reap them, and tells the agent how each ended.
Invariants: no second thread when it forks; no socket of a node. Procs die with it (the kernel sees
to it on Linux; elsewhere end-of-file on `lifeline` does), and it dies with the agent.

What a proc has started ends with it. Its process group is killed. What has left that, for a session
of its own, is adopted: by the proc while it lives, if what had started it has ended, and then by
the zygote. So a child of the zygote that is neither a proc nor of a preloaded module was started by
a proc that has ended.

A proc that needs another interpreter, or a command in front of it, is forked too and then executes
that (`monarch._src.host.exec_proc`): the same parent, the same pipes, the same reaping.
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
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import NoReturn, TypeAlias

from monarch._src.host import spawn_spec as wire
from monarch._src.host.exec_proc import begin, execute, import_path, prepared
from monarch._src.host.spawn_spec import (
    Begun,
    Boot,
    CannotBegin,
    DropMesh,
    Ended,
    MeshSpec,
    NotStarted,
    Started,
    StartRank,
)
from monarch._src.net.local.interrupt import plain_signal
from monarch._src.system.process import (
    adopt_orphans,
    die_with_parent,
    may_be_looked_into_by,
    peak_bytes,
    pidfd,
)
from monarch._src.system.process_table import children

LARGEST = 1 << 20
IDLE_MS = 100
ORPHANS_S = 0.2  # for how long the end of a proc waits for that of what it had started
FORKS_AT_ONCE = 16  # each closes the descriptors of all
FD = struct.Struct("i")

Asked: TypeAlias = tuple[StartRank, list[int]]  # who is to start, and its stdout and stderr


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
        """`spare_time` names modules that many procs need, imported once there is nothing to do."""
        self._entry = entry
        self._spare_time = list(spare_time)
        self._agent = agent
        self._agent_pid = os.getppid()
        self._lifeline = lifeline
        self._meshes: dict[int, MeshSpec] = {}
        self._broken: dict[int, str] = {}  # meshes none of whose procs can start, and why
        self._ranks: dict[int, tuple[int, int, int]] = {}  # pid -> (mesh, rank, life)
        self._own: set[int] = set()  # processes that preloaded modules have started
        self._inbox = memoryview(bytearray(LARGEST))  # takes the memory of the largest so far
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)

    def run(self) -> NoReturn:
        """Serve until the agent is gone."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        adopt_orphans()
        # Made here once and not by each fork: a fork pays most for the pages that it writes to.
        try:
            self._main = prepared(self._entry)
        except BaseException as error:
            traceback.print_exc()
            self._tell(CannotBegin(f"{type(error).__name__}: {error}"))
            self._await_end()
        self._streams = sys.stdout, sys.stderr
        gc.freeze()  # without a collection, as in the agent
        gc.enable()
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
        """End once the agent has: to one that left before, unread messages would be a reset.

        That is what the agent would find first, and not what it was told.
        """
        with contextlib.suppress(ConnectionResetError):
            while self._agent.recv(LARGEST):
                pass
        os._exit(1)

    def _serve(self) -> None:
        starts: list[Asked] = []
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
                    self._broken.pop(message.mesh, None)
        self._start(starts)

    def _receive(self) -> tuple[wire.ToZygote, list[int]] | None:
        """A message that has come, and the descriptors with it; None if there is none."""
        try:
            size, passed, _, _ = self._agent.recvmsg_into(
                [self._inbox], socket.CMSG_SPACE(2 * FD.size), socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it went without reading all that we told it
            size, passed = 0, []
        if not size:
            os._exit(0)  # the agent is gone; so are our procs, the moment we are
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
            for name in spec.preload:
                importlib.import_module(name)
        except BaseException as error:
            self._broken[spec.mesh] = (
                f"preloading {name!r} failed with {type(error).__name__}: {error}"  # pyright: ignore[reportPossiblyUnboundVariable]
            )
        finally:
            sys.path[:] = own
        self._own |= children() - before
        for stream in self._streams:  # or each fork would write what is held
            stream.flush()
        gc.collect()
        gc.freeze()

    def _start(self, starts: list[Asked]) -> None:
        # One after the other with as little in between as can be: after a fork no page is ours
        # alone, and each that we write to is copied (docs/explanation/performance.md).
        pids: list[tuple[StartRank, int]] = []
        for message, fds in starts:
            reason = self._hindered(message, fds)
            if reason is None:
                # No reaping between fork and the note of who it is: SIGCHLD only sets a flag.
                try:
                    pid = os.fork()
                except OSError as error:
                    reason = f"fork failed: {error.strerror}"
                else:
                    if pid == 0:
                        self._become(message, fds, starts)
                    pids.append((message, pid))
                    continue
            self._tell(NotStarted(message.mesh, message.rank, reason, message.life))
        begun: list[Begun] = []
        for message, pid in pids:
            self._ranks[pid] = (message.mesh, message.rank, message.life)
            begun.append(Begun(message.mesh, message.rank, message.life, pid))
        if begun:
            self._tell(Started(begun))
        for _, fds in starts:
            for fd in fds:
                os.close(fd)

    def _hindered(self, message: StartRank, fds: list[int]) -> str | None:
        """Why that one cannot start, if it cannot."""
        command = message.command
        if command is None:
            reason = self._broken.get(message.mesh)
        elif not (os.path.isfile(command.program) and os.access(command.program, os.X_OK)):
            reason = f"{command.program} is not an executable file"
        else:
            reason = None
        if reason is None and len(fds) != 2:
            reason = "its output pipes did not arrive: out of file descriptors"
        return reason

    def _become(self, start: StartRank, fds: list[int], starts: list[Asked]) -> NoReturn:
        """In the child: turn into the proc. Never returns.

        `starts`: all that are started with it, whose descriptors it has too.
        """
        status = 1
        try:
            spec = self._meshes[start.mesh]
            zygote = os.getppid()
            signal.set_wakeup_fd(-1)
            plain_signal.signal(signal.SIGCHLD, plain_signal.SIG_DFL)
            plain_signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            die_with_parent(zygote)
            may_be_looked_into_by(self._agent_pid)
            os.close(self._agent.detach())
            os.close(self._wake_r)
            os.close(self._wake_w)
            os.dup2(fds[0], 1)
            os.dup2(fds[1], 2)
            for _, passed in starts:
                for fd in passed:
                    os.close(fd)
            sys.stdout, sys.stderr = self._streams  # what was preloaded may have set others
            boot = Boot(spec, start.rank, start.affinity, start.ties, life=start.life)
            if start.command is not None:
                adopt_orphans()  # it may be a program that starts the proc
                execute(start.command, start.env, boot, self._lifeline)
            for name, value in start.env.items():
                if value is not None:
                    os.environ[name] = value
                else:
                    os.environ.pop(name, None)
            status = begin(boot, self._lifeline, self._main)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)

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
            place = self._ranks.pop(pid, None)
            if place is not None:
                mesh, rank, life = place
                found.append(Ended(mesh, rank, pid, status, life, peak_bytes(usage)))
        if is_over:  # there are children yet
            self._end_orphans()
        for one in found:
            self._tell(one)

    def _end_orphans(self) -> None:
        """End what procs that have ended had started, and what that has started in turn.

        Each that ends is a SIGCHLD, and so another look: one that takes its time is not waited for.
        """
        deadline = time.monotonic() + ORPHANS_S
        while orphans := _elsewhere(children() - self._ranks.keys() - self._own):
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

    def _tell(self, message: wire.FromZygote) -> None:
        try:
            self._agent.sendall(wire.encode(message))
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def _ended_child() -> tuple[int, int, resource.struct_rusage] | None:
    """A child that has ended, as `os.wait4` tells of it, and with it what it had started.

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
    _end_group(found.si_pid)  # while it is a zombie its pid, and so its group, is its own
    return os.wait4(found.si_pid, 0)


def _elsewhere(pids: Iterable[int]) -> list[int]:
    """Those in another session than this process, as procs and all that they start are."""
    own = os.getsid(0)
    return [pid for pid in pids if os.getsid(pid) != own]  # of a child there is always one


def _await_all(fds: Sequence[int], deadline: float) -> bool:
    """Wait until all of these processes have ended; False if they had not in time."""
    if not fds:
        return False  # this system has no such descriptors
    for fd in fds:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            return False
    return True


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _nothing(_signum: int, _frame: FrameType | None) -> None:
    pass


def _read_empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
