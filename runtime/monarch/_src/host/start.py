"""What a host agent does to start a process and to end one, and what stands in the way.

Runs in: the host agent, on its one thread.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from monarch._src.host.output_pipes import OutputPipes
from monarch._src.host.spawn_spec import (
    CannotBegin,
    DropMesh,
    Ended,
    NotStarted,
    Started,
    StartRank,
    Ties,
    ToZygote,
    decode_from_zygote,
    encode,
)
from monarch._src.host.state.host import Host, StartProc
from monarch._src.host.state.procs import ProcState
from monarch._src.host.zygote import LARGEST
from monarch._src.system.hardware import CUDA, nvidia_devices
from monarch._src.system.process import free_descriptors
from monarch._src.wire.ids import life_of
from monarch._src.wire.messages import SpawnProcs

T = TypeVar("T")
log = logging.getLogger("monarch.agent")
SPAWN_WINDOW = 64
FDS_A_PROC = 3
SPARE_FDS = 16


class ProcStarter:
    """The procs that are to start: what the zygote is told, and what it reports.

    Owns: the socket to the zygote. `ties`: the client to which procs are tied, and its number;
    `failed`: told of a node that cannot be started, and why.
    """

    def __init__(
        self,
        zygote: socket.socket,
        host: Host,
        outputs: OutputPipes,
        ties: Callable[[], tuple[str, int]],
        failed: Callable[[str, str], None],
    ) -> None:
        self._zygote = zygote
        self._inbox = memoryview(bytearray(LARGEST))
        self._host = host
        self._outputs = outputs
        self._ties = ties
        self._failed = failed
        self._waiting: deque[StartProc] = deque()
        self._hindered: dict[int, str] = {}  # meshes none of whose procs can start, and why
        self._in_flight = 0
        self._room = 0  # descriptors known to be free, at least; counted again when used up

    def add(self, start: StartProc) -> None:
        """That one is to start."""
        self._waiting.append(start)

    def cannot(self, mesh: int, why: str) -> None:
        """None of that mesh can start."""
        self._hindered[mesh] = why

    def drop(self, mesh: int) -> None:
        """That mesh is gone."""
        self._hindered.pop(mesh, None)
        self.tell(DropMesh(mesh))

    def took(self, descriptors: int) -> None:
        """So many are used for something else."""
        self._room -= descriptors

    def start_more(self) -> None:
        """Have the zygote start some of those that are to start."""
        # A window, so that a mesh of a thousand leaves room for a smaller one asked for after it.
        while self._waiting and self._in_flight < SPAWN_WINDOW:
            start = self._waiting.popleft()
            proc = self._host.proc(start.node)
            if proc is None or proc.state is ProcState.ENDED:
                continue
            # One that is to stop still starts: its owner may have sent it something before.
            if proc.killed_for is not None:
                self._failed(start.node, "its mesh was stopped before it began")
                continue
            hindered = self._hindered.get(start.spec.mesh)
            if hindered is None and not self._fits():
                hindered = no_descriptors()
            if hindered is not None:
                self._failed(start.node, hindered)
                continue
            try:
                out_w, err_w = self._outputs.open(start.node)
            except OSError as error:
                self._failed(start.node, fd_reason(error))
                continue
            try:
                self.tell(start_rank(start, *self._ties()), [out_w, err_w])
                self._in_flight += 1
            except OSError as error:
                self._failed(start.node, fd_reason(error))
            finally:
                os.close(out_w)
                os.close(err_w)

    def _fits(self) -> bool:
        """Whether there are descriptors for one more proc: two pipes, and its connection.

        One that cannot be accepted for want of a descriptor would wait until another has gone.
        """
        if self._room < FDS_A_PROC:
            waiting = [self._host.proc(node) for node in self._outputs.nodes()]
            coming = sum(proc is not None and not proc.said_hello for proc in waiting)
            self._room = free_descriptors() - coming - SPARE_FDS
        self._room -= FDS_A_PROC
        return self._room >= 0

    def tell(self, message: ToZygote, fds: list[int] | None = None) -> None:
        """Say that to the zygote, with these descriptors.

        Raises:
            OSError: it is too large to be said, or no descriptor can be passed.
        """
        data = encode(message)
        if len(data) > LARGEST:  # it would arrive cut off, and end the zygote
            raise OSError(
                errno.EMSGSIZE,
                f"what it is to start with takes {len(data)} bytes, and {LARGEST} is the most; "
                "pass less in its environment",
            )
        # The window above bounds what can be queued, so blocking here is short or the end.
        socket.send_fds(self._zygote, [data], fds or [])

    def reported(self) -> Iterator[Started | NotStarted | Ended]:
        """What the zygote has said since. Ends this process if that has ended, or has to."""
        while True:
            try:
                size = self._zygote.recv_into(self._inbox, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                size = 0
            if not size:
                log.error("the zygote is gone; every proc of this host went with it")
                os._exit(70)
            message = decode_from_zygote(bytes(self._inbox[:size]))
            if isinstance(message, CannotBegin):
                log.error("what processes need cannot be loaded: %s", message.why)
                os._exit(70)
            if isinstance(message, Started):
                self._in_flight -= len(message.begun)
            elif isinstance(message, NotStarted):
                self._in_flight -= 1
            yield message


def start_rank(start: StartProc, client: str, number: int) -> StartRank:
    """What the zygote is told to make the process of a rank; the client, and its number."""
    spec, here = start.spec, start.rank - start.spec.first
    env, command = _of_rank(spec.env, here) or {}, _of_rank(spec.commands, here)
    if spec.devices and CUDA not in os.environ and nvidia_devices() >= spec.count:
        env = {CUDA: str(here), **env}
    if command is not None and not command.program:
        command = replace(command, program=sys.executable)
    return StartRank(
        spec.mesh, start.rank, env, _of_rank(spec.affinity, here) or [], command,
        Ties(client, number, spec.owner, spec.owner_address), life_of(start.node),
    )  # fmt: skip


def is_forked(spec: SpawnProcs, rank: int) -> bool:
    """Whether the process of that rank is a fork of the zygote, and no program is executed."""
    return _of_rank(spec.commands, rank - spec.first) is None


def _of_rank(options: list[T], here: int) -> T | None:
    """There is one for all, or one a rank of this host, or none."""
    return options[here if len(options) > 1 else 0] if options else None


def kill_group(pid: int) -> None:
    """SIGKILL a process and what it has started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def fd_reason(error: OSError) -> str:
    """Why a process cannot be made, where a descriptor could not be."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
        return no_descriptors()
    return f"{error.strerror}"


def no_descriptors() -> str:
    """That there are none left, and what to do."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"the host agent is out of file descriptors (its limit is {limit}, each proc takes "
        f"{FDS_A_PROC}); raise the hard limit (`ulimit -Hn`) or spawn fewer procs"
    )


def no_board(path: Path, error: OSError) -> str:
    """Why processes cannot be made, where their status board could not be."""
    return (
        f"its status board {path} cannot be made ({error.strerror}); make room in that file "
        "system, or set XDG_RUNTIME_DIR to a directory with room before the session starts"
    )


def unlink(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)
