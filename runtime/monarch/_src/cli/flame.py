"""`monarch flame`: a flame graph of the ranks of a session, of a mesh, or of all sessions."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from monarch._src.cli.selection import BadSelectionError, no_answer_text, select
from monarch._src.net.observer import ask_agents
from monarch._src.observe.flame_graph.query import ANSWER_S, FlameGraph, sample_request
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions
from monarch._src.wire.messages import MeshSamples, StacksSampled


@dataclass(frozen=True)
class Wanted:
    """The ranks to sample, and the duration. `output`: a file for the graph; empty: none."""

    which: str
    seconds: float
    rate: int
    output: str
    threads: bool
    native: bool
    nonblocking: bool


def sample(live: Sequence[Session], wanted: Wanted) -> tuple[FlameGraph | None, list[str]]:
    """Sample the ranks that `wanted` selects: the graph, and why samples of others are missing.

    There is no graph if no mesh was sampled.

    Raises:
        BadSelectionError: `wanted.which` selects nothing.
        ValueError: the seconds or the rate are out of range.
    """
    seconds = math.ceil(wanted.seconds)
    request = sample_request(
        seconds, wanted.rate, threads=wanted.threads, native=wanted.native,
        nonblocking=wanted.nonblocking,
    )  # fmt: skip
    targets = select(live, wanted.which)
    questions = [msgspec.structs.replace(request, meshes=meshes) for _, meshes in targets]
    directories = [session.directory for session, _ in targets]
    meshes: list[MeshSamples] = []
    complaints: list[str] = []
    answers = ask_agents(directories, seconds + ANSWER_S, questions)
    for (session, _), answer in zip(targets, answers, strict=True):
        if isinstance(answer, StacksSampled):
            meshes += answer.meshes
            complaints += [answer.problem] if answer.problem else []
        else:
            complaints.append(no_answer_text(session, answer))
    graph = FlameGraph(meshes, seconds, wanted.rate) if meshes else None
    return graph, list(dict.fromkeys(complaints))


def run(bases: Sequence[str] | None, wanted: Wanted) -> int:
    """Print the functions with the most samples; return 1 if a session could not be sampled."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    try:
        graph, complaints = sample(live, wanted)
    except (ValueError, BadSelectionError) as error:
        print(f"monarch flame: {error}", file=sys.stderr)
        return 1
    if not live:
        print("you have no sessions on this machine")
        return 0
    if graph is not None:
        print(graph)
        try:
            if wanted.output:
                print(f"wrote {graph.save(wanted.output)}")
        except OSError as error:
            complaints.append(str(error))
    elif not complaints:
        print("no meshes")
    for complaint in complaints:
        print(f"monarch flame: {complaint}", file=sys.stderr)
    return 1 if complaints else 0
