"""Made-up rows of 1,024 ranks, for the terminal view, and as a recording for the dashboard.

A machine for tests cannot have that many processes at work. On 128 hosts a trainer makes steps of a
second, one rank takes longer than the others, and another one is killed in the last step, in which
the others then wait for it. A recording has a sample a second, of fixed times, so that pictures are
alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monarch._src.telemetry.replay.file import RecordingFile
from monarch._src.telemetry.sql.collect import Collected

GPUS = 8
RANKS = 1024
DEAD = 619
SLOW = 397
SECONDS = 14
KILLED_S = 9.4
FAILURE = "killed by SIGKILL"
BEGAN_US = 1_790_000_000_000_000
MESH = {"session": "oz3p8n5h", "mesh_id": 0x1F, "mesh": "workers"}
MIB = 1 << 20
_HOUR_US = 3_600_000_000


def host_of(rank: int) -> str:
    """The host of a rank."""
    return f"node-{rank // GPUS:03}"


def point_of(rank: int) -> dict[str, int]:
    """The coordinates of a rank."""
    return {"hosts": rank // GPUS, "gpus": rank % GPUS}


def ran_s(rank: int, step: int) -> float:
    """How many seconds a rank takes for a step."""
    return 0.97 if rank == SLOW else 0.55 + 0.03 * ((rank * 7 + step * 11) % 8)


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """These rows by column."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def procs(at_s: int) -> list[dict[str, Any]]:
    """The rows of `procs` at that time."""
    return [_proc(rank, at_s) for rank in range(RANKS)]


def _proc(rank: int, at_s: int) -> dict[str, Any]:
    died = rank == DEAD and at_s > KILLED_S
    last = int(KILLED_S)
    since_s = at_s - KILLED_S if died else max(0.0, float(at_s - last))
    return {
        **MESH, "host": host_of(rank), "rank": rank, "point_json": json.dumps(point_of(rank)),
        "pid": 4000 + rank, "state": "failed" if died else "busy",
        "since_s": since_s, "actor": None if died else "Trainer",
        "endpoint": None if died else "step", "messages": min(at_s, last) + 1, "errors": 0,
        "busy_s": 0.0, "rss_bytes": None if died else (900 + rank % 64) * MIB, "restarts": 0,
        "failure": FAILURE if died else None,
    }  # fmt: skip


def messages(at_s: int) -> list[dict[str, Any]]:
    """The rows of `messages`: the steps that have begun by that time."""
    last = int(KILLED_S)
    return [
        {
            **MESH, "host": host_of(rank), "rank": rank, "id": step * RANKS + rank,
            "timestamp_us": BEGAN_US + step * 1_000_000, "endpoint": "step", "actor": "trainer",
            "status": "active" if step == min(at_s, last) else "complete", "waited_s": 0.0,
            "ran_s": None if step == min(at_s, last) else ran_s(rank, step),
        }
        for step in range(min(at_s, last) + 1)
        for rank in range(RANKS)
        if not (rank == DEAD and step == last and at_s > KILLED_S)
    ]  # fmt: skip


def lines() -> list[dict[str, Any]]:
    """The rows of `log_lines`: each rank tells the loss of each step."""
    return [
        {
            **MESH, "host": host_of(rank), "rank": rank, "number": step * RANKS + rank,
            "timestamp_us": BEGAN_US + step * 1_000_000 + int(1e6 * ran_s(rank, step)),
            "stream": "stdout", "text": f"step {step}: loss {2.5 / (step + 1):.3f}",
        }
        for step in range(int(KILLED_S))
        for rank in range(RANKS)
    ]  # fmt: skip


def sample(at_s: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables at that time."""
    now_us = BEGAN_US + at_s * 1_000_000
    hosts = [
        {
            "session": MESH["session"], "host": host_of(rank), "agent_pid": 900, "cores": 96,
            "timestamp_us": now_us, "meshes": 1, "procs": GPUS, "log_lines": 0,
            "log_lines_dropped": 0,
        }
        for rank in range(0, RANKS, GPUS)
    ]  # fmt: skip
    shape = {"inner": {"labels": ["hosts", "gpus"], "sizes": [RANKS // GPUS, GPUS]}}
    mesh = {
        "session": MESH["session"], "host": host_of(0), "id": MESH["mesh_id"],
        "timestamp_us": BEGAN_US - 60_000_000, "class": "Proc", "given_name": "workers",
        "full_name": "workers-1f", "shape_json": json.dumps(shape),
    }  # fmt: skip
    rows = procs(at_s)
    actors = [
        {
            "session": MESH["session"], "host": row["host"], "proc_mesh_id": MESH["mesh_id"],
            "proc_mesh": "workers", "proc_rank": row["rank"], "mesh_id": 0x2A, "rank": row["rank"],
            "name": "trainer", "class": "train.Trainer", "pid": row["pid"], "status": "processing",
            "running": "step", "queued": 0, "full_name": f"trainer-2a-{row['rank']}",
        }
        for row in rows
        if row["state"] != "failed"
    ]  # fmt: skip
    return {
        "hosts": hosts, "meshes": [mesh], "procs": rows, "actors": actors,
        "messages": messages(at_s), "log_lines": lines(),
    }  # fmt: skip


def write_recording(path: Path) -> None:
    """Write the recording."""
    file = RecordingFile(path, _HOUR_US, 2_000_000)
    try:
        for at_s in range(SECONDS):
            tables = {name: columns(rows) for name, rows in sample(at_s).items()}
            file.add(Collected(tables), BEGAN_US + at_s * 1_000_000)
    finally:
        file.close()
