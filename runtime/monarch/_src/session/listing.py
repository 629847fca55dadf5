"""The sessions of this user on this machine, and snapshots of them, for programs and front ends.

Runs in: any process, which need not be a client. Only `inspect` and `snapshot_sessions` ask the
agents; see `session.directories`, and `session.reap` for sessions that are left behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from monarch._src.net.observer import Answer, ask_agents
from monarch._src.observe.meshes import MeshSnapshot, snapshot_of
from monarch._src.session import directories as found
from monarch._src.session import reap as reaping
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions
from monarch._src.session.records import read_away
from monarch._src.wire.messages import MeshState, Refused, Snapshotted


class SeenSession(msgspec.Struct):
    """A session, and the answer of its agent."""

    session: Session
    answer: Answer

    @property
    def meshes(self) -> list[MeshState]:
        """Its meshes, oldest first; none if the agent gave no answer."""
        found = self.answer.meshes if isinstance(self.answer, Snapshotted) else []
        return sorted(found, key=lambda mesh: -mesh.age_s)

    @property
    def state(self) -> str:
        """One of live, detached, orphan, ending, starting, gone."""
        ending = isinstance(self.answer, Snapshotted) and self.answer.ending
        state = self.session.state
        return "ending" if ending and state in ("live", "detached") else state

    @property
    def problem(self) -> str | None:
        """A problem of the session and its remedy; None if there is none."""
        session = self.session
        match session.state:
            case "gone" if read_away(session.directory) is not None:
                return (
                    "its host agent is gone, and worker hosts keep meshes of it; "
                    "`monarch reap` ends those"
                )
            case "gone":
                return (
                    "its host agent is gone, and only this directory is left: the next session "
                    "removes it"
                )
            case "starting":
                if session.is_left_behind:
                    return "no host agent has ever come; `monarch kill` removes the directory"
                return None
            case "live" | "orphan" | "detached":
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
                f"`kill -CONT {agent.pid}` resumes it, {ends}"
            )
        return f"its host agent does not answer; {ends}"


def snapshot_sessions(bases: Sequence[str] | None, timeout_s: float) -> list[SeenSession]:
    """The sessions of this user, with the answers of their agents."""
    found = find_sessions(bases)
    asked = [one for one in found if one.state in AGENT_LIVES]
    answers = dict(
        zip(
            (one.directory for one in asked),
            ask_agents([one.directory for one in asked], timeout_s),
            strict=True,
        )
    )
    return [SeenSession(one, answers.get(one.directory)) for one in found]


@dataclass(frozen=True)
class SessionInfo:
    """One session. `state`: live, detached, orphan, starting or gone; `age_s` in seconds.

    `kept_as` is the name under which it is kept, None if it ends with its client; `meshes` are its
    kept meshes. `client_pid` and `program` describe the client that holds it, or held it last if it
    is not kept; None if there is none. `left` is the reason why it has no client. `hosts` are the
    workers of a kept session. `serves` is the address of a worker of this machine; a worker is a
    session too.
    """

    session: str
    state: str
    kept_as: str | None
    age_s: float
    user: str | None
    agent_pid: int | None
    client_pid: int | None
    program: str | None
    meshes: tuple[str, ...] = ()
    left: str | None = None
    hosts: tuple[str, ...] = ()
    serves: str | None = None


@dataclass(frozen=True)
class SessionSnapshot:
    """A session and its meshes, oldest first. `problem`: a problem of it and the remedy."""

    info: SessionInfo
    meshes: tuple[MeshSnapshot, ...]
    problem: str | None = None


@dataclass(frozen=True)
class Reaped:
    """The results of `reap`, a line each: sessions and processes that ended, and failures."""

    done: tuple[str, ...]
    complaints: tuple[str, ...]


def sessions() -> list[SessionInfo]:
    """Your sessions on this machine, oldest first, including those of other processes."""
    return [_info(one) for one in found.find_sessions(None)]


def inspect(timeout: float = 2.0) -> list[SessionSnapshot]:
    """Your sessions on this machine, oldest first, with the state of each rank.

    `timeout`: seconds that all agents together have to answer; `problem` says which did not. Names
    of actors are known to their own client alone.
    """
    return [
        SessionSnapshot(_info(seen.session), tuple(map(snapshot_of, seen.meshes)), seen.problem)
        for seen in snapshot_sessions(None, timeout)
    ]


def reap(*, dry_run: bool = False) -> Reaped:
    """End everything that has no owner, and wait for it. Bounded in time; `dry_run` ends nothing.

    That is: sessions whose client is gone and that are not kept, directories without a host agent,
    agents and processes without a session, and processes that ranks had started. A session
    that is kept, or whose client lives, is not among them.
    """
    outcome = reaping.reap(dry_run=dry_run)
    return Reaped(tuple(outcome.done), tuple(outcome.complaints))


def _info(one: found.Session) -> SessionInfo:
    kept, client = one.kept, one.client
    return SessionInfo(
        one.name, one.state, None if kept is None else kept.name, one.age_s,
        found.user_of(one.directory), one.record.agent_pid if one.record else None,
        client.pid if client else None, client.program if client else None,
        tuple(kept.meshes) if kept else (), (kept.left or None) if kept else None,
        tuple(kept.hosts) if kept else (), (one.record.serves or None) if one.record else None,
    )  # fmt: skip
