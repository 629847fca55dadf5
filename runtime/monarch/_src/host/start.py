"""Starts the processes of a host through its zygotes, and kills them.

Runs in: the host agent, on its one thread.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from monarch._src.host.output_pipes import OutputPipes
from monarch._src.host.spawn_spec import NotStarted, Started, StartRank, Ties
from monarch._src.host.state.host import Host, StartProc
from monarch._src.host.state.procs import ProcState
from monarch._src.host.zygote_pool import ZygotePool
from monarch._src.system.hardware import CUDA, nvidia_devices
from monarch._src.system.process import free_descriptors
from monarch._src.wire.ids import life_of
from monarch._src.wire.messages import SpawnProcs

T = TypeVar("T")
SPAWN_WINDOW = 64
FDS_A_PROC = 3
SPARE_FDS = 16


class ProcStarter:
    """The queue of procs to start, and the zygote's reports about them.

    `ties` returns the client that new procs are tied to and its number; `on_failed` is called with
    a node that cannot start and the reason.
    """

    def __init__(
        self,
        zygotes: ZygotePool,
        host: Host,
        outputs: OutputPipes,
        ties: Callable[[], tuple[str, int]],
        on_failed: Callable[[str, str], None],
    ) -> None:
        self._zygotes = zygotes
        self._host = host
        self._outputs = outputs
        self._client_tie = ties
        self._on_failed = on_failed
        self._waiting: deque[StartProc] = deque()
        self._held: list[StartProc] = []  # of meshes that wait for a zygote
        self._refused: dict[int, str] = {}  # meshes that cannot start, and why
        self._in_flight = 0
        self._free_fds = 0  # a lower bound of free descriptors; recounted when used up

    def add(self, start: StartProc) -> None:
        """Queue a proc to be started."""
        self._waiting.append(start)

    def refuse_mesh(self, mesh: int, why: str) -> None:
        """Refuse to start any proc of that mesh, for that reason."""
        self._refused[mesh] = why

    def drop(self, mesh: int) -> None:
        """Forget a mesh, here and in its zygote."""
        self._refused.pop(mesh, None)
        self._zygotes.mesh_freed(mesh)

    def account_for(self, descriptors: int) -> None:
        """Account for descriptors that the agent has used for something else."""
        self._free_fds -= descriptors

    def start_more(self) -> None:
        """Hand queued procs to their zygotes, as many as the window allows."""
        if self._held:
            self._waiting.extendleft(reversed(self._held))
            self._held = []
        # The window keeps a mesh of a thousand from delaying a smaller one that follows.
        while self._waiting and self._in_flight < SPAWN_WINDOW:
            start = self._waiting.popleft()
            proc = self._host.proc(start.node)
            if proc is None or proc.state is ProcState.ENDED:
                continue
            # A proc that has to stop still starts: its owner may have sent it messages before.
            if proc.killed_for is not None:
                self._on_failed(start.node, "its mesh was stopped before it began")
                continue
            if self._zygotes.is_held(start.spec.mesh):
                if not self._host.meshes[start.spec.mesh].stopping:
                    self._held.append(start)
                    continue
                self._zygotes.stop_waiting(start.spec.mesh)
            refusal = self._refused.get(start.spec.mesh)
            if refusal is None and not self._fits():
                refusal = no_descriptors()
            if refusal is not None:
                self._on_failed(start.node, refusal)
                continue
            try:
                out_w, err_w = self._outputs.open(start.node)
            except OSError as error:
                self._on_failed(start.node, fd_reason(error))
                continue
            try:
                order = start_rank(start, *self._client_tie())
                self._zygotes.tell(self._zygotes.of_mesh(order.mesh), order, [out_w, err_w])
                self._in_flight += 1
            except OSError as error:
                self._on_failed(start.node, fd_reason(error))
            finally:
                os.close(out_w)
                os.close(err_w)

    def _fits(self) -> bool:
        """Whether the descriptors for one more proc are free: two pipes and its connection.

        Without a free descriptor its connection would not be accepted until another proc had ended.
        """
        if self._free_fds < FDS_A_PROC:
            waiting = [self._host.proc(node) for node in self._outputs.nodes()]
            coming = sum(proc is not None and not proc.said_hello for proc in waiting)
            self._free_fds = free_descriptors() - coming - SPARE_FDS
        self._free_fds -= FDS_A_PROC
        return self._free_fds >= 0

    def reported(self, message: Started | NotStarted) -> None:
        """A zygote has reported about processes that it was told to start."""
        self._in_flight -= len(message.begun) if isinstance(message, Started) else 1


def start_rank(start: StartProc, client: str, number: int) -> StartRank:
    """The zygote's order for one rank, tied to that client and its number."""
    spec, here = start.spec, start.rank - start.spec.first
    env, command = _option_of_rank(spec.env, here) or {}, _option_of_rank(spec.commands, here)
    if spec.devices and CUDA not in os.environ and nvidia_devices() >= spec.count:
        env = {CUDA: str(here), **env}
    if command is not None and not command.program:
        command = replace(command, program=sys.executable)
    return StartRank(
        spec.mesh, start.rank, env, _option_of_rank(spec.affinity, here) or [], command,
        Ties(client, number, spec.owner, spec.owner_address), life_of(start.node),
    )  # fmt: skip


def is_forked(spec: SpawnProcs, rank: int) -> bool:
    """Whether that rank is a fork of the zygote and executes no program."""
    return _option_of_rank(spec.commands, rank - spec.first) is None


def _option_of_rank(options: list[T], here: int) -> T | None:
    """The option of a rank of this host from a list of one for all, one for each, or none."""
    return options[here if len(options) > 1 else 0] if options else None


def kill_group(pid: int) -> None:
    """SIGKILL a process and its process group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def fd_reason(error: OSError) -> str:
    """Why a process cannot start, from the error of opening its pipes."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
        return no_descriptors()
    return f"{error.strerror}"


def no_descriptors() -> str:
    """The error text for a host agent without free descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"the host agent is out of file descriptors (its limit is {limit}, each proc takes "
        f"{FDS_A_PROC}); raise the hard limit (`ulimit -Hn`) or spawn fewer procs"
    )


def no_board(path: Path, error: OSError) -> str:
    """The error text for a status board that cannot be created."""
    return (
        f"its status board {path} cannot be made ({error.strerror}); make room in that file "
        "system, or set XDG_RUNTIME_DIR to a directory with room before the session starts"
    )


def unlink(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)
