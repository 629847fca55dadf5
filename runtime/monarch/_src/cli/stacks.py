"""`monarch stacks`: show the stacks of the ranks of a session, of a mesh, or of all sessions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from monarch._src.cli.selection import ANSWER_S, BadSelectionError, no_answer_text, select
from monarch._src.net.observer import ask_agents
from monarch._src.observe.stacks.state.grouping import text
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions
from monarch._src.wire.messages import MeshStacks, ReadStacks, StacksRead


class Reading(NamedTuple):
    """The stacks of each session that has answered; `complaints`: why others are missing."""

    found: list[tuple[Session, list[MeshStacks]]]
    complaints: list[str]

    def __str__(self) -> str:
        parts: list[str] = []
        for session, meshes in self.found:
            parts += [f"{session.label}: {text(mesh)}" for mesh in meshes]
            if not meshes:
                parts.append(f"{session.label}: no meshes")
        return "\n\n".join(parts)


def read(
    live: Sequence[Session], timeout_s: float, which: str, *, full: bool, idle: bool
) -> Reading:
    """Read the stacks of the ranks that `which` selects.

    Raises:
        BadSelectionError: `which` selects nothing.
    """
    targets = select(live, which)
    questions = [ReadStacks(1, meshes, full, idle, timeout_s) for _, meshes in targets]
    directories = [session.directory for session, _ in targets]
    answers = ask_agents(directories, timeout_s + ANSWER_S, questions)
    found: list[tuple[Session, list[MeshStacks]]] = []
    complaints: list[str] = []
    for (session, _), answer in zip(targets, answers, strict=True):
        if not isinstance(answer, StacksRead):
            complaints.append(no_answer_text(session, answer))
            continue
        if answer.problem:
            complaints.append(answer.problem)
        if answer.meshes or not answer.problem:
            found.append((session, answer.meshes))
    return Reading(found, list(dict.fromkeys(complaints)))


def run(
    bases: Sequence[str] | None, timeout_s: float, which: str, *, full: bool, idle: bool
) -> int:
    """Print the stacks; return 1 if one of them could not be read."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    try:
        reading = read(live, timeout_s, which, full=full, idle=idle)
    except BadSelectionError as error:
        print(f"monarch stacks: {error}", file=sys.stderr)
        return 1
    if not live:
        print("you have no sessions on this machine")
        return 0
    if reading.found:
        print(reading)
    for complaint in reading.complaints:
        print(f"monarch stacks: {complaint}", file=sys.stderr)
    return 1 if reading.complaints else 0
