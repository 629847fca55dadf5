"""`monarch ps`: list sessions, their meshes and processes, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from monarch._src.cli.columns import columns, duration, memory
from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.failures.report import at_text
from monarch._src.session import directories
from monarch._src.session.listing import SeenSession, snapshot_sessions
from monarch._src.shape import Extent
from monarch._src.wire.messages import MeshState, RankState, Snapshotted

_LONGEST_PROGRAM = 60


def run(bases: Sequence[str] | None, timeout_s: float, *, as_json: bool) -> int:
    """Print the sessions; return 0."""
    seen = snapshot_sessions(bases, timeout_s)
    if as_json:
        data = {"sessions": [as_data(one) for one in seen]}
        print(msgspec.json.format(msgspec.json.encode(data)).decode())
    elif seen:
        print("\n\n".join(as_text(one) for one in seen))
    else:
        print("you have no sessions on this machine")
    return 0


def run_at(
    addresses: Sequence[str], own: str | None, key: str | None, timeout_s: float, *, as_json: bool
) -> int:
    """Print the meshes of these workers; return 1 if one of them does not answer."""
    # Imported here: listing the sessions of this machine needs no ZeroMQ.
    from monarch._src.net.hosts import keys
    from monarch._src.net.remote_observer import look_at
    from monarch._src.net.state.access import TRUST_ALL, Role
    from monarch._src.net.state.addresses import parse_address

    try:
        if own is None:
            raise ValueError(f"pass the keys of the job: --keys DIRECTORY (or {TRUST_ALL})")
        pair = None if own == TRUST_ALL else keys.load(own, key, Role.OBSERVER)
        parsed = [parse_address(address) for address in addresses]
    except (OSError, ValueError) as error:
        print(f"monarch ps: {error}", file=sys.stderr)
        return 1
    status, data, texts = 0, list[dict[str, Any]](), list[str]()
    for address in parsed:
        try:
            site, answer = look_at(address, pair, timeout_s)
        except OSError as error:
            status, data = 1, [*data, {"worker": str(address), "problem": str(error)}]
            print(f"monarch ps: {error}", file=sys.stderr)
            continue
        meshes = sorted(answer.meshes, key=lambda mesh: -mesh.age_s)
        found = [_mesh_data(mesh) for mesh in meshes]
        data.append({"worker": str(address), "problem": None, "site": site, "meshes": found})
        texts.append("\n".join([f"worker {address}  {site}", *_table(meshes)]))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode({"workers": data})).decode())
    elif texts:
        print("\n\n".join(texts))
    return status


# --- tables ---------------------------------------------------------------------------------------


def as_text(seen: SeenSession) -> str:
    """Format one session: its state, its problem if any, and a table of its processes."""
    lines = head_lines(seen)
    if isinstance(seen.answer, Snapshotted):
        lines += _table(seen.meshes)
    return "\n".join(lines)


def head_lines(seen: SeenSession) -> list[str]:
    """Format one session without its processes: its state, and its problem if any."""
    session, record = seen.session, seen.session.record
    kept, client = session.kept, session.client
    lease = "tied" if kept is None else "kept"
    if record is not None and record.serves:
        lease = "for any client"
    line = f"{session.label}  {seen.state}, {lease}, {duration(session.age_s)} old"
    if record is not None:
        holder = f"worker at {record.serves}" if record.serves else "no client attached"
        if client is not None:
            program = client.program or client.node
            if len(program) > _LONGEST_PROGRAM:
                program = program[: _LONGEST_PROGRAM - 3] + "..."
            holder = f"client {client.pid} ({program})"
        line += f"  {holder}, host agent {record.agent_pid}"
    lines = [line]
    if kept is not None and seen.state == "detached":
        since = f": {kept.left}" if kept.left else ""
        lines.append(f"  attach({kept.name!r}) attaches to it{since}")
    if kept is not None and kept.hosts:
        lines.append(f"  also on {', '.join(kept.hosts)}: {', '.join(kept.meshes)}")
    if seen.problem:
        lines.append(f"  !! {seen.problem}")
    return lines


def _table(meshes: Sequence[MeshState]) -> list[str]:
    rows = [_row(mesh, rank) for mesh in meshes for rank in mesh.ranks]
    if not rows:
        return ["  no meshes"]
    head = ["MESH", "PID", "STATE", "FOR", "RUNS", "MESSAGES", "MEMORY"]
    return columns([head, *rows], right=(1, 5, 6), indent="  ")


def _row(mesh: MeshState, rank: RankState) -> list[str]:
    runs = endpoint_text(rank.actor, rank.endpoint)
    return [
        mesh.name + at_text(_point(mesh, rank)), str(rank.pid) if rank.pid else "-", _state(rank),
        duration(rank.since_s), rank.failure or _paused(rank) or runs or "-", str(rank.messages),
        memory(rank.rss_bytes),
    ]  # fmt: skip


def _paused(rank: RankState) -> str:
    """Where a paused rank stands; empty if the rank is not paused."""
    return f"{rank.function} ({Path(rank.filename).name}:{rank.line})" if rank.filename else ""


def _state(rank: RankState) -> str:
    return f"{rank.state} ({rank.restarts} restarts)" if rank.restarts else rank.state


# --- JSON -----------------------------------------------------------------------------------------


def as_data(seen: SeenSession) -> dict[str, Any]:
    """One session as JSON data: times in seconds, sizes in bytes, null if not known."""
    session, record = seen.session, seen.session.record
    known = record is not None
    kept, client = session.kept, session.client
    return {
        "session": session.name,
        "directory": str(session.directory),
        "state": seen.state,
        "problem": seen.problem,
        "age_s": round(session.age_s, 3),
        "agent_pid": record.agent_pid if known else None,
        "user": directories.user_of(session.directory),
        "lease": ("tied" if kept is None else "kept") if known else None,
        "serves": (record.serves or None) if known else None,
        "kept_as": None if kept is None else kept.name,
        "attached": seen.state == "live" if known else None,
        "hosts": [] if kept is None else kept.hosts,
        "left": (kept.left or None) if kept is not None else None,
        "client_pid": client.pid if client is not None else None,
        "client": client.node if client is not None else None,
        "program": (client.program or None) if client is not None else None,
        "meshes": [_mesh_data(mesh) for mesh in seen.meshes],
    }


def _mesh_data(mesh: MeshState) -> dict[str, Any]:
    return {
        "uid": f"{mesh.mesh:x}",
        "name": mesh.name,
        "state": mesh.state,
        "sizes": dict(zip(mesh.labels, mesh.sizes, strict=True)),
        "owner": mesh.owner,
        "age_s": round(mesh.age_s, 3),
        "procs": [_proc_data(mesh, rank) for rank in mesh.ranks],
    }


def _proc_data(mesh: MeshState, rank: RankState) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "point": _point(mesh, rank),
        "pid": rank.pid or None,
        "state": rank.state,
        "since_s": round(rank.since_s, 3),
        "actor": rank.actor or None,
        "endpoint": rank.endpoint or None,
        "messages": rank.messages,
        "rss_bytes": rank.rss_bytes or None,
        "failure": rank.failure or None,
        "restarts": rank.restarts,
        "function": rank.function or None,
        "filename": rank.filename or None,
        "line": rank.line or None,
    }


def _point(mesh: MeshState, rank: RankState) -> dict[str, int]:
    return dict(Extent(mesh.labels, mesh.sizes).point_of_rank(rank.rank))
