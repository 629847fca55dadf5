"""`monarch stacks`: where ranks are in the program, of one session, one mesh, or all of them."""

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
    """What was asked for is not there, or not understood."""


def run(
    bases: Sequence[str] | None, timeout_s: float, which: str, *, full: bool, idle: bool
) -> int:
    """Print the stacks; 1 if something could not be read."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    try:
        asked = _asked(live, which)
    except BadSelectionError as error:
        print(f"monarch stacks: {error}", file=sys.stderr)
        return 1
    if not asked:
        print("no sessions of yours on this machine")
        return 0
    questions = [ReadStacks(1, meshes, full, idle, timeout_s) for _, meshes in asked]
    directories = [session.directory for session, _ in asked]
    answers = ask_agents(directories, timeout_s + ANSWER_S, questions)
    complaints: list[str] = []
    parts: list[str] = []
    for (session, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, StacksRead):
            if answer.problem:
                complaints.append(answer.problem)
            parts += [f"session {session.name}: {text(mesh)}" for mesh in answer.meshes]
            if not answer.problem and not answer.meshes:
                parts.append(f"session {session.name}: no meshes")
        elif isinstance(answer, Refused):
            complaints.append(
                f"session {session.name} speaks another version; use the `monarch` of its own "
                "environment"
            )
        else:
            complaints.append(f"the host agent of session {session.name} does not answer")
    if parts:
        print("\n\n".join(parts))
    for complaint in dict.fromkeys(complaints):
        print(f"monarch stacks: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _asked(
    live: Sequence[Session], which: str
) -> list[tuple[Session, list[tuple[int, list[int]]]]]:
    """Which sessions to ask for which ranks of which meshes."""
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
    begun = [session for session in live if match is None and session.name.startswith(named)]
    if len(begun) == 1:
        return [(begun[0], [])]
    if begun:
        names = ", ".join(session.name for session in begun)
        raise BadSelectionError(f"{which!r} is the beginning of several sessions: {names}")
    there = f"there are {', '.join(sorted(known))}" if known else "there are no meshes"
    raise BadSelectionError(f"there is no session and no mesh {name!r}; {there} (`monarch ps`)")


def _ranks(mesh: MeshState, dims: str) -> list[int]:
    """The ranks of `gpus=3` or `hosts=0, gpus=0:4`."""
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
