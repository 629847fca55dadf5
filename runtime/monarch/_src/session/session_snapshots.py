"""Sessions of this user on this machine, with the snapshots that their agents give of their ranks.

Runs in: any process, which need not be a client.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from monarch._src.net.observer import Answer, ask_agents
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
