"""`monarch ps`: sessions, their meshes, their processes, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from monarch._src.cli.layout import columns, duration, memory
from monarch._src.cli.sessions import Session, find_sessions
from monarch._src.errors import at_text
from monarch._src.net.observer import Answer, ask_agents
from monarch._src.shape import Extent
from monarch._src.wire.messages import MeshState, RankState, Refused, Snapshotted

_LONGEST_PROGRAM = 60


class Seen(msgspec.Struct):
    """A session, and what its agent has answered."""

    session: Session
    answer: Answer

    @property
    def meshes(self) -> list[MeshState]:
        """Its meshes, oldest first; none if the agent gave no answer."""
        found = self.answer.meshes if isinstance(self.answer, Snapshotted) else []
        return sorted(found, key=lambda mesh: -mesh.age_s)

    @property
    def state(self) -> str:
        """In a word: live, orphan, ending, starting, gone."""
        ending = isinstance(self.answer, Snapshotted) and self.answer.ending
        return "ending" if ending and self.session.state == "live" else self.session.state

    @property
    def problem(self) -> str | None:
        """What is wrong with it, and what to do."""
        session = self.session
        match session.state:
            case "gone":
                return (
                    "its host agent is gone, and this directory is left: the next session sweeps it"
                )
            case "starting":
                if session.is_left_behind:
                    return "no host agent has ever come; `monarch kill` removes the directory"
                return None
            case "live" | "orphan":
                return self._no_answer() or (
                    "its client is gone; `monarch kill --orphans` ends it"
                    if session.state == "orphan"
                    else None
                )

    def _no_answer(self) -> str | None:
        if isinstance(self.answer, Snapshotted):
            return None
        if isinstance(self.answer, Refused):
            return "it speaks another version; use the `monarch` of its own environment"
        agent = self.session.agent
        if agent is None:
            return "its host agent has just ended"
        ends = f"`monarch kill {self.session.name}` ends it"
        if agent.state in ("T", "t"):
            return (
                "its host agent is stopped by a signal and does not answer; "
                f"`kill -CONT {agent.pid}` lets it go on, {ends}"
            )
        return f"its host agent does not answer; {ends}"


def run(bases: Sequence[str] | None, timeout_s: float, *, as_json: bool) -> int:
    """Print them; 0."""
    seen = look(bases, timeout_s)
    if as_json:
        data = {"sessions": [as_data(one) for one in seen]}
        print(msgspec.json.format(msgspec.json.encode(data)).decode())
    elif seen:
        print("\n\n".join(as_text(one) for one in seen))
    else:
        print("no sessions of yours on this machine")
    return 0


def look(bases: Sequence[str] | None, timeout_s: float) -> list[Seen]:
    """The sessions of this user, each asked for what its ranks do."""
    found = find_sessions(bases)
    asked = [one for one in found if one.state in ("live", "orphan")]
    answers = dict(
        zip(
            (one.directory for one in asked),
            ask_agents([one.directory for one in asked], timeout_s),
            strict=True,
        )
    )
    return [Seen(one, answers.get(one.directory)) for one in found]


# --- for people -----------------------------------------------------------------------------------


def as_text(seen: Seen) -> str:
    """One session: a line, what is wrong with it, and a table of its processes."""
    session, record = seen.session, seen.session.record
    line = f"session {session.name}  {seen.state}, {duration(session.age_s)} old"
    if record is not None:
        program = record.program or record.client
        if len(program) > _LONGEST_PROGRAM:
            program = program[: _LONGEST_PROGRAM - 3] + "..."
        line += f"  client {record.client_pid} ({program}), host agent {record.agent_pid}"
    lines = [line]
    if seen.problem:
        lines.append(f"  !! {seen.problem}")
    rows = [row for mesh in seen.meshes for row in _rows(mesh)]
    if rows:
        head = ["MESH", "PID", "STATE", "FOR", "RUNS", "MESSAGES", "MEMORY"]
        lines += columns([head, *rows], right=(1, 5, 6), indent="  ")
    elif isinstance(seen.answer, Snapshotted):
        lines.append("  no meshes")
    return "\n".join(lines)


def _rows(mesh: MeshState) -> list[list[str]]:
    return [_row(mesh, rank) for rank in mesh.ranks]


def _row(mesh: MeshState, rank: RankState) -> list[str]:
    runs = f"{rank.actor}.{rank.endpoint}" if rank.actor else rank.endpoint
    return [
        mesh.name + at_text(_point(mesh, rank)), str(rank.pid) if rank.pid else "-", rank.state,
        duration(rank.since_s), rank.failure or runs or "-", str(rank.messages),
        memory(rank.rss_bytes),
    ]  # fmt: skip


# --- for programs ---------------------------------------------------------------------------------


def as_data(seen: Seen) -> dict[str, Any]:
    """One session as JSON: seconds, bytes, and null for what is not known."""
    session, record = seen.session, seen.session.record
    known = record is not None
    return {
        "session": session.name,
        "directory": str(session.directory),
        "state": seen.state,
        "problem": seen.problem,
        "age_s": round(session.age_s, 3),
        "agent_pid": record.agent_pid if known else None,
        "client_pid": record.client_pid if known else None,
        "client": record.client if known else None,
        "program": (record.program or None) if known else None,
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
    }


def _point(mesh: MeshState, rank: RankState) -> dict[str, int]:
    return dict(Extent(mesh.labels, mesh.sizes).point_of_rank(rank.rank))
