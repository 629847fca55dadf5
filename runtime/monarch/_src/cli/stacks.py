"""`monarch stacks`: show the stacks of the ranks of a session, of a mesh, or of all sessions."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from monarch._src.net.observer import ask_agents
from monarch._src.observe.stacks.state.grouping import text
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions, name_of
from monarch._src.shape import Extent, Region
from monarch._src.wire.messages import MeshState, ReadStacks, Refused, Snapshotted, StacksRead

_SELECTION = re.compile(r"(?P<name>[^\[\]]+)\[(?P<dims>[^\[\]]*)\]\s*\Z")
_INDEX = re.compile(r"(?P<first>\d*)(?P<range>:(?P<stop>\d*))?\Z")
ANSWER_S = 2.0


class BadSelectionError(Exception):
    """The selection names no session or mesh, or cannot be parsed."""


def run(
    bases: Sequence[str] | None, timeout_s: float, which: str, *, full: bool, idle: bool
) -> int:
    """Print the stacks; return 1 if one of them could not be read."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    try:
        targets = _targets(live, which)
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
            parts += [f"session {session.name}: {text(mesh)}" for mesh in answer.meshes]
            if not answer.problem and not answer.meshes:
                parts.append(f"session {session.name}: no meshes")
        elif isinstance(answer, Refused):
            complaints.append(
                f"session {session.name} runs another version of monarch; use the `monarch` "
                "command of its environment"
            )
        else:
            complaints.append(f"the host agent of session {session.name} does not answer")
    if parts:
        print("\n\n".join(parts))
    for complaint in dict.fromkeys(complaints):
        print(f"monarch stacks: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _targets(
    live: Sequence[Session], which: str
) -> list[tuple[Session, list[tuple[int, list[int]]]]]:
    """The sessions to ask, each with meshes and their ranks; an empty list means all."""
    if not which:
        return [(session, []) for session in live]
    named = name_of(Path(which))
    exact = [session for session in live if session.name == named]
    if exact:
        return [(exact[0], [])]
    match = _SELECTION.match(which)
    name = match["name"] if match is not None else which
    found: list[tuple[Session, list[tuple[int, list[int]]]]] = []
    known: set[str] = set()
    answers = ask_agents([session.directory for session in live], ANSWER_S)
    for session, answer in zip(live, answers, strict=True):
        meshes = answer.meshes if isinstance(answer, Snapshotted) else []
        known |= {mesh.name for mesh in meshes}
        chosen = [
            (mesh.mesh, _ranks(mesh, match["dims"]) if match is not None else list[int]())
            for mesh in meshes
            if mesh.name == name
        ]
        if chosen:
            found.append((session, chosen))
    if found:
        return found
    matching = [session for session in live if match is None and session.name.startswith(named)]
    if len(matching) == 1:
        return [(matching[0], [])]
    if matching:
        names = ", ".join(session.name for session in matching)
        raise BadSelectionError(f"several sessions begin with {which!r}: {names}")
    meshes = f"meshes: {', '.join(sorted(known))}" if known else "there are no meshes"
    raise BadSelectionError(f"there is no session or mesh {name!r}; {meshes} (see `monarch ps`)")


def _ranks(mesh: MeshState, dims: str) -> list[int]:
    """The ranks that a slice such as `gpus=3` or `hosts=0, gpus=0:4` selects."""
    selectors: dict[str, int | slice] = {}
    for part in dims.split(","):
        dim, _, at = (piece.strip() for piece in part.partition("="))
        match = _INDEX.match(at) if at else None
        if match is None:
            raise BadSelectionError(
                f"{part.strip()!r} selects nothing; write dim=3 or dim=0:4, as in "
                f"'{mesh.name}[gpus=0:4]'"
            )
        first = int(match["first"]) if match["first"] else None
        if match["range"]:
            selectors[dim] = slice(first, int(match["stop"]) if match["stop"] else None)
        elif first is not None:
            selectors[dim] = first
    region = Region.of_extent(Extent(mesh.labels, mesh.sizes))
    try:
        return list(region.slice(**selectors).ranks())
    except (TypeError, IndexError, ValueError) as error:
        raise BadSelectionError(f"{mesh.name}: {error}") from None
