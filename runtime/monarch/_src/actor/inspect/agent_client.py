"""The requests of a process to host agents, and the output of ranks that agents send.

Runs in: any process; answers and output arrive on the receiving thread. A request goes to the agent
of each host that it concerns, and the answers are merged into one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from monarch._src.actor.future import Future
from monarch._src.actor.refs import Known, agent_of
from monarch._src.events import Output, OutputLine, bus
from monarch._src.logs.line_origin import OriginReader
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import (
    FlushOutput,
    MeshStacks,
    MeshState,
    OutputFlushed,
    OutputLines,
    RanksRestarting,
    ReadStacks,
    ReadTable,
    RestartRanks,
    RestartRule,
    RestartsSet,
    SampleStacks,
    SetHistory,
    SetRestarts,
    Signalled,
    SignalProcs,
    Snapshot,
    Snapshotted,
    StacksRead,
    StacksSampled,
    TableRead,
    WantOutput,
)

_STREAMS = ("stderr", "stdout")  # odd numbers are stdout
Question: TypeAlias = (
    Snapshot | FlushOutput | ReadStacks | SampleStacks | SignalProcs | SetRestarts | RestartRanks
    | ReadTable
)  # fmt: skip
Answer: TypeAlias = (
    Snapshotted | OutputFlushed | StacksRead | StacksSampled | Signalled | RestartsSet
    | RanksRestarting | TableRead
)  # fmt: skip


class AgentGoneError(RuntimeError):
    """A host agent is gone and will not answer. Its meshes fail separately."""


class Settled(Protocol):
    """Receives the answer to a request; a Future, say."""

    def settle(self, decode: Callable[[], Any], /) -> None:
        """The answer has arrived."""
        ...

    def fail(self, error: BaseException, /) -> None:
        """There will be no answer."""
        ...


class _Notice:
    """Calls a function when the answer has arrived, or will not."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done

    def settle(self, _decode: Callable[[], Any]) -> None:
        self._done()

    def fail(self, _error: BaseException) -> None:
        self._done()


class _PendingQuery:
    """A request: the agents that owe an answer, and the answers so far."""

    def __init__(
        self, agents: Sequence[str], future: Settled, merge: Callable[[list[Any]], Any]
    ) -> None:
        self.owing = set(agents)
        self.agents = agents
        self.future = future
        self.merge = merge
        self.on_wait: Callable[[], None] | None = None
        self.answers: dict[str, Answer] = {}

    def settle(self) -> None:
        answers = [self.answers[agent] for agent in self.agents if agent in self.answers]
        self.future.settle(lambda: self.merge(answers))


class AgentClient:
    """The open requests of this process to host agents."""

    def __init__(self, node: Node, known: Known, new_future: Callable[[], Future[Any]]) -> None:
        self._node = node
        self._known = known
        self._new_future = new_future
        self._numbers = itertools.count(1)
        self._queries: dict[int, _PendingQuery] = {}
        self._origins = OriginReader()
        # The filter for lines of a rank of a mesh, if set; and a function that makes it release
        # held lines, called when all output was requested.
        self.output_filter: Callable[[int, int, list[OutputLine]], list[OutputLine]] | None = None
        self.on_flushed: Callable[[], None] | None = None
        self.output_wanted = False
        self.others: list[str] = []  # the agents of other hosts that this process uses

    def snapshot(self, meshes: list[int]) -> Future[list[MeshState]]:
        """Request the state of these meshes and their ranks."""
        agents = self._agents_of(meshes)
        return self._request(agents, lambda number, _: Snapshot(number, meshes), _states)

    def flush_output(self) -> Future[None]:
        """Request all output that ranks have written; done when it has arrived."""
        return self._request(
            [AGENT, *self.others], lambda number, _: FlushOutput(number), lambda _: None
        )

    def flush_output_of(self, meshes: Collection[int] | None, done: Callable[[], None]) -> None:
        """Request the output of these meshes (None: all), and call `done` when it has arrived.

        Lines that are held to be merged stay held.
        """
        agents = [AGENT, *self.others] if meshes is None else self._agents_of([*meshes])
        self._request(agents, lambda number, _: FlushOutput(number), lambda _: None, _Notice(done))

    def read_stacks(
        self, meshes: list[tuple[int, list[int]]], *, full: bool, idle: bool, timeout_s: float
    ) -> Future[StacksRead]:
        """Read the stacks of these ranks."""
        agents = self._agents_of([mesh for mesh, _ in meshes])
        return self._request(
            agents, lambda number, _: ReadStacks(number, meshes, full, idle, timeout_s), _stacks
        )

    def sample_stacks(self, request: SampleStacks) -> Future[StacksSampled]:
        """Read the stacks of these ranks, many times; the number of the request is set here."""
        agents = self._agents_of([mesh for mesh, _ in request.meshes])
        return self._request(
            agents, lambda number, _: msgspec.structs.replace(request, request=number), _samples
        )

    @property
    def agents(self) -> list[str]:
        """The nodes of the agents of all hosts that this process uses, its own host's first."""
        return [AGENT, *self.others]

    def read_table(
        self,
        agent: str,
        request: ReadTable | SetHistory,
        settled: Settled,
        on_wait: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Request rows of one agent, or give it an order.

        `settled` gets its TableRead, or None if the agent is gone. `on_wait` is called when the
        agent says that it waits for others.

        Returns the function that drops the request, whose answer is then ignored.
        """
        number = next(self._numbers)
        self._queries[number] = _PendingQuery(
            [agent], settled, lambda answers: answers[0] if answers else None
        )
        self._queries[number].on_wait = on_wait
        if not self._node.send(agent, msgspec.structs.replace(request, request=number)):
            self._queries.pop(number, None)
            settled.fail(AgentGoneError("the host agent is gone"))

        def drop() -> None:
            self._queries.pop(number, None)

        return drop

    def signal(
        self, mesh: int, ranks: list[int], number: int, *, group: bool = False
    ) -> Future[Signalled]:
        """Send a signal to these ranks, or to their process groups."""
        by_agent = self._by_agent(mesh, ranks)
        return self._request(
            list(by_agent),
            lambda request, agent: SignalProcs(request, mesh, by_agent[agent], number, group),
            _signalled,
        )

    def set_restarts(self, mesh: int, rule: RestartRule) -> Future[str]:
        """Set the rule of a mesh that was spawned with one; why that failed, or an empty text."""
        agents = self._agents_of([mesh])
        return self._request(
            agents,
            lambda request, _: SetRestarts(request, mesh, rule),
            lambda answers: next((one.problem for one in answers if one.problem), ""),
        )

    def restart_ranks(
        self, mesh: int, ranks: list[int], grace_s: float
    ) -> Future[list[RanksRestarting]]:
        """Restart these ranks; the answers of the agents of their hosts that are not gone."""
        by_agent = self._by_agent(mesh, ranks)
        return self._request(
            list(by_agent),
            lambda request, agent: RestartRanks(request, mesh, by_agent[agent], grace_s),
            lambda answers: answers,
        )

    def _by_agent(self, mesh: int, ranks: list[int]) -> dict[str, list[int]]:
        """Ranks of a mesh by the agents of their hosts."""
        ref, here = self._known.ref(mesh), self._node.site
        by_agent: dict[str, list[int]] = {}
        for rank in ranks:
            agent = AGENT if ref is None else ref.agent(rank, here)
            by_agent.setdefault(agent, []).append(rank)
        return by_agent

    def want_output(self, wanted: bool) -> None:
        """Subscribe to the output of ranks, or unsubscribe."""
        self.output_wanted = wanted
        for agent in (AGENT, *self.others):
            self._node.send(agent, WantOutput(wanted))

    def on_agent_joined(self, agent: str) -> None:
        """This process uses one more host."""
        self.others.append(agent)
        if self.output_wanted:
            self._node.send(agent, WantOutput(True))

    def on_agent_lost(self, agent: str, reason: str) -> None:
        """An agent is gone: complete the requests that wait for it."""
        if agent in self.others:
            self.others.remove(agent)
        for number, query in list(self._queries.items()):
            if agent not in query.owing:
                continue
            if agent == AGENT:
                self._queries.pop(number, None)
                query.future.fail(AgentGoneError(f"the host agent is gone: {reason}"))
            else:
                self._on_answer(agent, number, None)

    def _agents_of(self, meshes: Sequence[int]) -> list[str]:
        """The agents of the hosts of these meshes; without meshes, all agents."""
        if not self.others:
            return [AGENT]
        here = self._node.site
        found: dict[str, None] = {}
        for mesh in meshes:
            ref = self._known.ref(mesh)
            sites = ("",) if ref is None else ref.sites or ("",)
            found.update(dict.fromkeys(agent_of(site, here) for site in sites))
        live = [agent for agent in found or [AGENT, *self.others] if self._node.knows(agent)]
        return live or [AGENT]

    def _request(
        self,
        agents: Sequence[str],
        request: Callable[[int, str], Question],
        merge: Callable[[list[Any]], Any],
        notice: _Notice | None = None,
    ) -> Future[Any]:
        number = next(self._numbers)
        future = self._new_future()
        query = self._queries[number] = _PendingQuery(agents, notice or future, merge)
        for agent in agents:
            if self._node.send(agent, request(number, agent)):
                continue
            if agent == AGENT:
                self._queries.pop(number, None)
                query.future.fail(AgentGoneError("the host agent is gone"))
                break
            self._on_answer(agent, number, None)
        return future

    # --- on the thread that receives --------------------------------------------------------------

    def _on_answer(self, agent: str, number: int, answer: Answer | None) -> None:
        query = self._queries.get(number)
        if query is None or agent not in query.owing:
            return
        query.owing.discard(agent)
        if answer is not None:
            query.answers[agent] = answer
        if not query.owing:
            self._queries.pop(number, None)
            is_for_all = isinstance(answer, OutputFlushed) and not isinstance(query.future, _Notice)
            if self.on_flushed is not None and is_for_all:
                self.on_flushed()
            query.settle()

    def on_answer(self, peer: str, message: Answer, _payload: Payload) -> None:
        """An agent has answered, or says that it waits for others."""
        if isinstance(message, TableRead) and message.waiting:
            query = self._queries.get(message.request)
            if query is not None and query.on_wait is not None:
                query.on_wait()
            return
        self._on_answer(peer, message.request, message)

    def on_output(self, _peer: str, message: OutputLines, _payload: Payload) -> None:
        """A rank has written output."""
        ref = self._known.ref(message.mesh)
        if ref is None:
            return
        point = dict(ref.extent.point_of_rank(message.rank))
        uid = f"{ref.uid:x}"
        lines: list[OutputLine] = []
        for number, written in message.lines:
            stream = _STREAMS[number & 1]
            pipe = (message.mesh, message.rank, stream)
            text, origin = self._origins.read(pipe, written)
            lines.append(
                OutputLine(
                    ref.name,
                    uid,
                    message.rank,
                    point,
                    stream,
                    text,
                    origin,
                    number < 3,
                    written_over=number in (3, 4, 7, 8),
                    answered=number > 6,
                )
            )
        if self.output_filter is not None:
            lines = self.output_filter(message.mesh, message.rank, lines)
        if lines:
            bus.emit(Output(tuple(lines)))


# --- merging the answers of several hosts ---------------------------------------------------------

# The state of a mesh is the first of these that any part of it is in.
_WORST = ("failed", "stopped", "starting", "ready")


def _states(answers: list[Snapshotted]) -> list[MeshState]:
    found: dict[int, MeshState] = {}
    for state in (state for answer in answers for state in answer.meshes):
        whole = found.setdefault(state.mesh, state)
        if whole is not state:
            whole.ranks = sorted([*whole.ranks, *state.ranks], key=lambda rank: rank.rank)
            whole.state = min(whole.state, state.state, key=_WORST.index)
            whole.age_s = max(whole.age_s, state.age_s)
    return list(found.values())


def _stacks(answers: list[StacksRead]) -> StacksRead:
    whole, *others = answers or [StacksRead(0, [], "no host agent has answered")]
    for other in others:
        whole.problem = whole.problem or other.problem
        for mesh in other.meshes:
            same = next((found for found in whole.meshes if found.mesh == mesh.mesh), None)
            if same is None:
                whole.meshes.append(mesh)
            else:
                _join(same, mesh)
    return whole


def _samples(answers: list[StacksSampled]) -> StacksSampled:
    """The samples of all hosts; a mesh of several hosts is in it once for each."""
    problems = [answer.problem for answer in answers if answer.problem]
    if not answers:
        problems = ["no host agent has answered"]
    meshes = [mesh for answer in answers for mesh in answer.meshes]
    return StacksSampled(0, meshes, problems[0] if problems else "")


def _join(whole: MeshStacks, part: MeshStacks) -> None:
    """Merge the groups of ranks of two hosts that have equal stacks."""
    by_what = {(group.what, group.threads): group for group in whole.groups}
    for group in part.groups:
        same = by_what.get((group.what, group.threads))
        if same is None:
            whole.groups.append(group)
        else:
            same.ranks = sorted([*same.ranks, *group.ranks])
    whole.groups.sort(key=lambda group: -len(group.ranks))


def _signalled(answers: list[Signalled]) -> Signalled:
    whole, *others = answers or [Signalled(0, [], "no host agent has answered")]
    for other in others:
        whole.ranks += other.ranks
        whole.problem = whole.problem or other.problem
    return whole
