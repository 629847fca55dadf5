"""What the host agent says of its procs: how one died, and what each does now.

Runs in: the agent. Reads the status boards and the process table; changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from monarch._src.core.host import Mesh, Proc, ProcState
from monarch._src.errors import Death
from monarch._src.proc.board import BUSY, LEFT, Board
from monarch._src.proc.system import rss_bytes, signal_name
from monarch._src.wire.messages import MeshState, RankState


def death(
    proc: Proc, status: int, board: Board | None, last_lines: Sequence[str], now: float
) -> Death:
    """Why a process ended. `status` as from `waitpid`; `last_lines` of its stderr."""
    last = board.read(proc.rank) if board is not None else None
    doing = None
    if last is not None and last.state == BUSY and last.endpoint:
        doing = f"{last.actor}.{last.endpoint}" if last.actor else last.endpoint
    ran_s = now - proc.asked_at
    if os.WIFSIGNALED(status):
        name = signal_name(os.WTERMSIG(status))
        return Death(None, name, tuple(last_lines), doing, ran_s, f"killed by {name}")
    code = os.WEXITSTATUS(status)
    return Death(code, None, tuple(last_lines), doing, ran_s, f"exited with status {code}")


def mesh_state(mesh: Mesh, board: Board, now: float) -> MeshState:
    """One mesh of a snapshot."""
    ranks = [rank_state(proc, board, now) for proc in mesh.procs]
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


def rank_state(proc: Proc, board: Board, now: float) -> RankState:
    """One proc of a snapshot."""
    seen = board.read(proc.rank)
    since = now - proc.story[-1][0]
    state, failure = "starting", ""
    if proc.state is ProcState.ENDED:
        state = "stopped" if proc.expected else "failed"
        failure = "" if proc.expected or proc.death is None else proc.death.reason
    elif proc.state is ProcState.STOPPING or seen.state == LEFT:
        state = "stopped"
    elif proc.said_hello or seen.state:  # its hello to us may still be on its way
        state = "busy" if seen.state == BUSY else "idle"
        since = min(since, seen.since_s) if seen.state else since
    pid = proc.pid or 0
    busy = state == "busy"
    busy_s = seen.busy_s
    if seen.state == BUSY and proc.state is ProcState.ENDED:
        busy_s -= min(since, seen.since_s)  # it died in the middle, and is busy no more
    return RankState(
        rank=proc.rank,
        pid=pid,
        state=state,
        actor=seen.actor if busy else "",
        endpoint=seen.endpoint if busy else "",
        since_s=since,
        messages=seen.messages,
        rss_bytes=rss_bytes(pid) if pid and proc.state is not ProcState.ENDED else 0,
        failure=failure,
        errors=seen.errors,
        busy_s=busy_s,
    )
