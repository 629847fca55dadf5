"""The sessions of this user on this machine, for programs and front ends.

Runs in: any process. Only `inspect` asks the agents; see `session.directories`, and `session.reap`
for sessions that are left behind.
"""

from __future__ import annotations

from dataclasses import dataclass

from monarch._src.observe.meshes import MeshSnapshot, snapshot_of
from monarch._src.session import directories as found
from monarch._src.session import reap as reaping
from monarch._src.session.session_snapshots import snapshot_sessions


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
