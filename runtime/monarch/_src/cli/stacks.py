"""`monarch stacks`: show the stacks of the ranks of a session, of a mesh, or of all sessions."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from monarch._src.cli.selection import ANSWER_S, BadSelectionError, no_answer_text, select
from monarch._src.net.observer import ask_agents
from monarch._src.observe.stacks.state.grouping import text
from monarch._src.session.directories import AGENT_LIVES, find_sessions
from monarch._src.wire.messages import ReadStacks, StacksRead


def run(
    bases: Sequence[str] | None, timeout_s: float, which: str, *, full: bool, idle: bool
) -> int:
    """Print the stacks; return 1 if one of them could not be read."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    try:
        targets = select(live, which)
    except BadSelectionError as error:
        print(f"monarch stacks: {error}", file=sys.stderr)
        return 1
    if not targets:
        print("you have no sessions on this machine")
        return 0
    questions = [ReadStacks(1, meshes, full, idle, timeout_s) for _, meshes in targets]
    directories = [session.directory for session, _ in targets]
    answers = ask_agents(directories, timeout_s + ANSWER_S, questions)
    complaints: list[str] = []
    parts: list[str] = []
    for (session, _), answer in zip(targets, answers, strict=True):
        if isinstance(answer, StacksRead):
            if answer.problem:
                complaints.append(answer.problem)
            parts += [f"{session.label}: {text(mesh)}" for mesh in answer.meshes]
            if not answer.problem and not answer.meshes:
                parts.append(f"{session.label}: no meshes")
        else:
            complaints.append(no_answer_text(session, answer))
    if parts:
        print("\n\n".join(parts))
    for complaint in dict.fromkeys(complaints):
        print(f"monarch stacks: {complaint}", file=sys.stderr)
    return 1 if complaints else 0
