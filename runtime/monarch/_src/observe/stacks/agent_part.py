"""The part of the host agent that reads the stacks of ranks.

Runs in: the host agent, on its one thread, from the first request for stacks on.
Owns: the `Looks`, which run py-spy in a child process, and the requests whose ranks have not all
answered which of their endpoints wait.
Invariant: the agent waits for a rank for `WAITS_S` at most, since a rank that is stopped, or holds
the interpreter's lock, does not answer. py-spy reads it all the same.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.host.parts import AgentView, Handlers, Part
from monarch._src.host.report import rank_state
from monarch._src.host.state.procs import Mesh, ProcState
from monarch._src.host.status_board import Board
from monarch._src.observe.stacks.py_spy import Job, Looks, Subject
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import ReadStacks, ReadWaits, StacksRead, WaitsRead

WAITS_S = 0.5
"""Seconds for the answers of ranks about their waits, less if the request has less."""


@dataclass
class _Open:
    """A request that waits for the answers of ranks, by node."""

    peer: str
    request: ReadStacks
    jobs: list[Job]
    deadline: float
    waiting: dict[str, Subject] = field(default_factory=dict[str, Subject])


class StackService(Part):
    """Answers ReadStacks."""

    def __init__(self, agent: AgentView) -> None:
        self._agent = agent
        self._looks = Looks(agent.selector, self._answer)
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self.handlers: Handlers = {ReadStacks: self._on_read_stacks, WaitsRead: self._on_waits}

    def _on_read_stacks(self, peer: str, message: ReadStacks, _payload: Payload) -> None:
        meshes, boards = self._agent.host.meshes, self._agent.boards
        wanted = message.meshes or [(uid, list[int]()) for uid in meshes]
        now = time.monotonic()
        number = next(self._numbers)
        jobs = [
            job_of(meshes[uid], boards[uid], ranks, message.idle, now)
            for uid, ranks in wanted
            if uid in meshes
        ]
        until = now + min(WAITS_S, message.timeout_s)
        opened = self._open[number] = _Open(peer, message, jobs, until)
        for job in jobs:
            for subject in job.subjects:
                if subject.for_s is not None:
                    self._ask(number, opened, meshes[job.mesh], subject)
        self._look_if_complete(number)

    def _ask(self, number: int, opened: _Open, mesh: Mesh, subject: Subject) -> None:
        proc = mesh.at(subject.rank)
        if proc is not None and self._agent.node.send(proc.node, ReadWaits(number)):
            opened.waiting[proc.node] = subject

    def _on_waits(self, peer: str, message: WaitsRead, _payload: Payload) -> None:
        opened = self._open.get(message.request)
        subject = None if opened is None else opened.waiting.pop(peer, None)
        if subject is not None:
            subject.waits = message.waits
            self._look_if_complete(message.request)

    def _look_if_complete(self, number: int) -> None:
        if not self._open[number].waiting:
            self._look(self._open.pop(number))

    def _look(self, opened: _Open) -> None:
        request = opened.request
        self._looks.ask(
            opened.peer, request.request, opened.jobs, full=request.full,
            timeout_s=request.timeout_s,
        )  # fmt: skip

    def on_proc_ended(self, proc: str) -> None:
        for number, opened in list(self._open.items()):
            if opened.waiting.pop(proc, None) is not None:
                self._look_if_complete(number)

    def after_poll(self) -> None:
        now = time.monotonic()
        for number, opened in list(self._open.items()):
            if opened.deadline <= now:
                self._look(self._open.pop(number))

    def next_deadline(self) -> float | None:
        return min((opened.deadline for opened in self._open.values()), default=None)

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
        doing = endpoint_text(seen.actor, seen.endpoint)
        pid, otherwise = seen.pid, seen.state
        for_s = None
        state = seen.state
        if state == "suspended":  # as what it did; its reader tells that a signal has stopped it
            state = "busy" if doing else "idle"
        match state:
            case "busy":
                otherwise = f"in {doing}, awaiting"  # a coroutine that awaits is on no thread
                for_s = seen.since_s
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
        subjects.append(Subject(rank, pid, doing, otherwise, for_s))
    spec = mesh.spec
    return Job(mesh.uid, spec.name, spec.labels, spec.sizes, subjects)
