"""The part of the host agent that samples the stacks of ranks.

Runs in: the host agent, on its one thread, from the first request for samples on.
Owns: the requests that wait; one is served at a time.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence

import msgspec

from monarch._src.host.parts import AgentView, Handlers, Part
from monarch._src.host.state.procs import Mesh, ProcState
from monarch._src.observe.flame_graph import py_spy_record
from monarch._src.observe.flame_graph.py_spy_record import (
    MOST_RANKS,
    SampledRank,
    SampleJob,
    SampleOrder,
)
from monarch._src.observe.stacks.py_spy import find_py_spy, not_installed, start_reader
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import SampleStacks, StacksSampled
from monarch._src.wire.msgpack_text import UNREADABLE

TOO_MANY = f"not sampled: {MOST_RANKS} ranks of a host are sampled at once; name a slice"


class FlameGraphService(Part):
    """Answers SampleStacks."""

    def __init__(self, agent: AgentView) -> None:
        self._agent = agent
        self._waiting: deque[tuple[str, SampleStacks]] = deque()
        self._is_sampling = False
        self.handlers: Handlers = {SampleStacks: self._on_sample_stacks}

    def _on_sample_stacks(self, peer: str, message: SampleStacks, _payload: Payload) -> None:
        self._waiting.append((peer, message))
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._is_sampling:
            peer, message = self._waiting.popleft()
            program = find_py_spy()
            if program is None:
                self._answer(peer, StacksSampled(message.request, [], not_installed()))
                continue
            try:
                self._begin(peer, message, program)
            except OSError as error:
                problem = f"the process that samples ranks could not be started: {error}"
                self._answer(peer, StacksSampled(message.request, [], problem))

    def _begin(self, peer: str, message: SampleStacks, program: str) -> None:
        meshes = self._agent.host.meshes
        wanted = message.meshes or [(uid, list[int]()) for uid in meshes]
        jobs: list[SampleJob] = []
        room = MOST_RANKS
        for uid, ranks in wanted:
            if uid in meshes:
                job = job_of(meshes[uid], ranks, room)
                room -= sum(bool(rank.pid) for rank in job.ranks)
                jobs.append(job)
        order = SampleOrder(
            program, jobs, message.seconds, message.rate, message.threads, message.native,
            message.nonblocking,
        )  # fmt: skip
        start_reader(
            self._agent.selector, py_spy_record.__name__, msgspec.msgpack.encode(order),
            lambda output, status: self._on_end(peer, message.request, output, status),
        )  # fmt: skip
        self._is_sampling = True

    def _on_end(self, peer: str, request: int, output: bytes, status: int) -> None:
        self._is_sampling = False
        try:
            report = msgspec.msgpack.decode(output, type=py_spy_record.SampleReport)
        except UNREADABLE:
            why = f"the process that samples ranks ended with status {status}; see agent.log"
            if status == -signal.SIGALRM:
                why = "the ranks were not sampled in time"
            report = py_spy_record.SampleReport([], why)
        self._answer(peer, StacksSampled(request, report.meshes, report.problem))
        self._next()

    def _answer(self, peer: str, answer: StacksSampled) -> None:
        self._agent.node.send(peer, answer)
        if peer.startswith(OBSERVER):
            self._agent.node.drop(peer)  # an observer connects for one question


def job_of(mesh: Mesh, ranks: Sequence[int], room: int) -> SampleJob:
    """The order for these ranks of a mesh (none: all), of which `room` are sampled."""
    found: list[SampledRank] = []
    for rank in ranks or mesh.ranks:
        proc = mesh.at(rank)
        if proc is None:
            continue
        if proc.pid is None or proc.state is ProcState.ENDED:
            found.append(SampledRank(rank, 0, "it has no process yet, or no more"))
        elif room > 0:
            found.append(SampledRank(rank, proc.pid))
            room -= 1
        else:
            found.append(SampledRank(rank, 0, TOO_MANY))
    spec = mesh.spec
    return SampleJob(mesh.uid, spec.name, spec.labels, spec.sizes, found)
