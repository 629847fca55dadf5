"""Selections of the command line: a session, a mesh of any session, or a slice of a mesh."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from monarch._src.net.observer import ask_agents
from monarch._src.session.directories import Session, name_of, named, short_name
from monarch._src.shape import Extent, Region
from monarch._src.wire.messages import MeshState, Refused, Snapshotted

_SELECTION = re.compile(r"(?P<name>[^\[\]]+)\[(?P<dims>[^\[\]]*)\]\s*\Z")
_INDEX = re.compile(r"(?P<first>\d*)(?P<range>:(?P<stop>\d*))?\Z")
ANSWER_S = 2.0


class BadSelectionError(Exception):
    """The selection names no session or mesh, or cannot be parsed."""


def select(
    live: Sequence[Session], which: str
) -> list[tuple[Session, list[tuple[int, list[int]]]]]:
    """The sessions that `which` selects, each with meshes and their ranks; an empty list means all.

    Raises:
        BadSelectionError: it selects nothing, or several sessions.
    """
    if not which:
        return [(session, []) for session in live]
    begun = name_of(Path(which))
    exact = [session for session in live if session.name == begun]
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
    matching = named(which, live) if match is None else []
    if len(matching) == 1:
        return [(matching[0], [])]
    if matching:
        names = ", ".join(short_name(session) for session in matching)
        raise BadSelectionError(f"several sessions begin with {which!r}: {names}")
    meshes = f"meshes: {', '.join(sorted(known))}" if known else "there are no meshes"
    raise BadSelectionError(f"there is no session or mesh {name!r}; {meshes} (see `monarch ps`)")


def no_answer_text(session: Session, answer: object) -> str:
    """Why the host agent of a session has not answered a question, with the remedy."""
    if isinstance(answer, Refused):
        return (
            f"{session.label} runs another version of monarch; use the `monarch` command of its "
            "environment"
        )
    return f"the host agent of {session.label} does not answer"


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
