"""Messages about sessions, from a kernel or from the server. No I/O."""

from __future__ import annotations

from typing import TypedDict

from monarch.session import SessionInfo


class SessionMessage(TypedDict):
    """One session, see `SessionInfo`; `age_s` in seconds.

    `notebook`: the path of the notebook whose kernel is its client, where the server knows it.
    """

    session: str
    state: str
    kept_as: str | None
    age_s: float
    agent_pid: int | None
    client_pid: int | None
    program: str | None
    meshes: list[str]
    left: str | None
    notebook: str | None


def session_message(one: SessionInfo, notebook: str | None = None) -> SessionMessage:
    """A session as a message."""
    return SessionMessage(
        session=one.session,
        state=one.state,
        kept_as=one.kept_as,
        age_s=round(one.age_s, 1),
        agent_pid=one.agent_pid,
        client_pid=one.client_pid,
        program=one.program,
        meshes=[*one.meshes],
        left=one.left,
        notebook=notebook,
    )
