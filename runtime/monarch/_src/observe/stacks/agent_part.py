"""The part of the host agent that reads the stacks of ranks.

Runs in: the host agent, on its one thread, from the first request for stacks on.
Owns: the `Looks`, which run py-spy in a child process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from monarch._src.host.parts import AgentView, Handlers, Part
from monarch._src.host.report import rank_state
from monarch._src.host.state.procs import Mesh, ProcState
from monarch._src.host.status_board import Board
from monarch._src.observe.stacks.py_spy import Job, Looks, Subject
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import ReadStacks, StacksRead


class StackService(Part):
    """Answers ReadStacks."""

    def __init__(self, agent: AgentView) -> None:
        self._agent = agent
        self._looks = Looks(agent.selector, self._answer)
        self.handlers: Handlers = {ReadStacks: self._on_read_stacks}

    def _on_read_stacks(self, peer: str, message: ReadStacks, _payload: Payload) -> None:
        meshes, boards = self._agent.host.meshes, self._agent.boards
        wanted = message.meshes or [(uid, list[int]()) for uid in meshes]
        now = time.monotonic()
        jobs = [
            job_of(meshes[uid], boards[uid], ranks, message.idle, now)
            for uid, ranks in wanted
            if uid in meshes
        ]
        self._looks.ask(peer, message.request, jobs, full=message.full, timeout_s=message.timeout_s)

    def _answer(self, peer: str, answer: StacksRead) -> None:
        self._agent.node.send(peer, answer)
        if peer.startswith(OBSERVER):
            self._agent.node.drop(peer)  # an observer connects for one question


def job_of(mesh: Mesh, board: Board, ranks: Sequence[int], idle: bool, now: float) -> Job:
    """The order for these ranks of a mesh (none: all); idle ranks are read only with `idle`."""
    subjects: list[Subject] = []
    for rank in ranks or mesh.ranks:
        proc = mesh.at(rank)
        if proc is None:
            continue
        seen = rank_state(proc, board, now)
        doing = f"{seen.actor}.{seen.endpoint}" if seen.actor else seen.endpoint
        pid, otherwise = seen.pid, seen.state
        match seen.state:
            case "busy":
                otherwise = f"in {doing}, awaiting"  # a coroutine that awaits is on no thread
            case "idle":
                pid = pid if idle else 0
            case "failed":
                pid, otherwise = 0, f"failed: {seen.failure}"
            case "starting" if seen.failure:
                otherwise = f"starting again: {seen.failure}"
            case "stopped" if proc.state is ProcState.ENDED:
                pid = 0
            case _:
                pass
        subjects.append(Subject(rank, pid, doing, otherwise))
    spec = mesh.spec
    return Job(mesh.uid, spec.name, spec.labels, spec.sizes, subjects)
