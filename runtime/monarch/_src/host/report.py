"""Reports of the host agent on its procs: how a process died, what each rank does now.

Runs in: the host agent. A report reads the status boards and the process table, and changes
nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.failures.report import Death
from monarch._src.host.spawn_spec import Ended
from monarch._src.host.state.procs import Mesh, Proc, ProcState
from monarch._src.host.status_board import BUSY, LEFT, Board
from monarch._src.system.oom import KillsForMemory
from monarch._src.system.process import cpu_use, rss_bytes, signal_name
from monarch._src.wire.ids import proc_node
from monarch._src.wire.messages import MeshState, RankState

if TYPE_CHECKING:
    from monarch._src.system.nvml import GpuUse


def death(
    proc: Proc,
    ended: Ended,
    board: Board | None,
    last_lines: Sequence[str],
    now: float,
    memory: KillsForMemory,
) -> Death:
    """Why a process ended. `last_lines` are those of its stderr."""
    last = board.read(proc.rank) if board is not None else None
    doing = since_s = None
    if last is not None and last.state == BUSY and last.endpoint:
        doing = endpoint_text(last.actor, last.endpoint)
        since_s = last.since_s
    node = proc_node(ended.mesh, ended.rank, ended.life)
    code = name = why = None
    dumped = False
    if os.WIFSIGNALED(ended.status):
        number = os.WTERMSIG(ended.status)
        name, dumped = signal_name(number), os.WCOREDUMP(ended.status)
        reason = f"killed by {name}{' (core dumped)' if dumped else ''}"
        if number == signal.SIGKILL and proc.killed_for is None:
            why = memory.explain(node, ended.peak_bytes)
        if why is not None:
            reason += f", {why.text()}"
    else:
        code = os.WEXITSTATUS(ended.status)
        reason = f"exited with status {code}"
    memory.forget(node)
    return Death(
        code, name, tuple(last_lines), doing, now - proc.asked_at, reason, since_s, dumped, why
    )


def mesh_state(
    mesh: Mesh, board: Board, now: float, gpus: Mapping[int, GpuUse] | None = None
) -> MeshState:
    """The entry of one mesh in a snapshot. `gpus`: the use of devices by pid."""
    ranks = [rank_state(proc, board, now, gpus) for proc in mesh.procs]
    if any(rank.state == "failed" for rank in ranks):
        state = "failed"
    elif mesh.stopping:
        state = "stopped"
    else:
        state = "starting" if any(rank.state == "starting" for rank in ranks) else "ready"
    spec = mesh.spec
    return MeshState(
        mesh.uid, state, now - mesh.asked_at, ranks, spec.name, spec.labels, spec.sizes, spec.owner
    )


def rank_state(
    proc: Proc, board: Board, now: float, gpus: Mapping[int, GpuUse] | None = None
) -> RankState:
    """The entry of one rank in a snapshot."""
    seen = board.read(proc.rank, now)  # at the time with which it is compared below
    since = now - proc.story[-1][0]
    state, failure = "starting", ""
    if proc.state is ProcState.ENDED:
        state = "stopped" if proc.expected else "failed"
        failure = "" if proc.expected or proc.death is None else proc.death.reason
    elif proc.state is ProcState.RESTARTING:
        failure = "" if proc.death is None else proc.death.reason
    elif proc.state is ProcState.STOPPING or seen.state == LEFT:
        state = "stopped"
    elif proc.said_hello or seen.state:  # its hello may not have arrived yet
        state = "busy" if seen.state == BUSY else "idle"
        since = min(since, seen.since_s) if seen.state else since
    pid = proc.pid or 0
    living = pid if proc.state is not ProcState.ENDED else 0
    cpu_s, suspended = cpu_use(living) if living else (None, False)
    gpu = None if gpus is None else gpus.get(living)
    busy = state == "busy"
    if suspended and state in ("busy", "idle"):
        state = "suspended"
    busy_s = seen.busy_s
    if seen.state == BUSY and proc.state is ProcState.ENDED:
        busy_s -= min(since, seen.since_s)  # it died in an endpoint; the time since does not count
    return RankState(
        rank=proc.rank,
        pid=pid,
        state=state,
        actor=seen.actor if busy else "",
        endpoint=seen.endpoint if busy else "",
        since_s=since,
        messages=seen.messages,
        rss_bytes=rss_bytes(living) if living else 0,
        failure=failure,
        errors=seen.errors,
        busy_s=busy_s,
        restarts=proc.life,
        cpu_s=-1.0 if cpu_s is None else cpu_s,
        gpu_bytes=-1 if gpu is None else gpu.memory_bytes,
        gpu_percent=-1 if gpu is None else gpu.percent,
    )
