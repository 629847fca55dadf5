"""What a process asks host agents, and what they tell unasked: what ranks write.

A question goes to the agent of each host that it is about; the answers become one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

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
    ReadStacks,
    Signalled,
    SignalProcs,
    Snapshot,
    Snapshotted,
    StacksRead,
    WantOutput,
)

_STREAMS = ("stderr", "stdout")  # by whether its number is odd
Question: TypeAlias = "Snapshot | FlushOutput | ReadStacks | SignalProcs"
Answer: TypeAlias = "Snapshotted | OutputFlushed | StacksRead | Signalled"


class AgentGoneError(RuntimeError):
    """It will not answer; of its meshes everybody who has them is told by a failure."""


class Settled(Protocol):
    """Who waits for an answer: a future, say."""

    def settle(self, decode: Callable[[], Any], /) -> None:
        """It has come."""
        ...

    def fail(self, error: BaseException, /) -> None:
        """It will not come."""
        ...


class _Notice:
    """Has something called when there is an answer, or will be none."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done

    def settle(self, _decode: Callable[[], Any]) -> None:
        self._done()

    def fail(self, _error: BaseException) -> None:
        self._done()


class _PendingQuery:
    """A question: the agents that owe an answer, and the answers so far in their order."""

    def __init__(
        self, agents: Sequence[str], future: Settled, merge: Callable[[list[Any]], Any]
    ) -> None:
        self.owing = set(agents)
        self.agents = agents
        self.future = future
        self.merge = merge
        self.answers: dict[str, Answer] = {}

    def settle(self) -> None:
        answers = [self.answers[agent] for agent in self.agents if agent in self.answers]
        self.future.settle(lambda: self.merge(answers))


class AgentClient:
    """The questions of this process that are open."""

    def __init__(self, node: Node, known: Known, new_future: Callable[[], Future[Any]]) -> None:
        self._node = node
        self._known = known
        self._new_future = new_future
        self._numbers = itertools.count(1)
        self._queries: dict[int, _PendingQuery] = {}
        self._origins = OriginReader()
        # What a rank of a mesh has written goes through that, if set; and who holds lines back is
        # told when somebody wants all of them.
        self.output_filter: Callable[[int, int, list[OutputLine]], list[OutputLine]] | None = None
        self.on_flushed: Callable[[], None] | None = None
        self.output_wanted = False
        self.others: list[str] = []  # agents of other hosts that this process has

    def snapshot(self, meshes: list[int]) -> Future[list[MeshState]]:
        """Ask what the ranks of these meshes do."""
        agents = self._agents_of(meshes)
        return self._ask(agents, lambda number, _: Snapshot(number, meshes), _states)

    def flush_output(self) -> Future[None]:
        """Ask for all that ranks have written; done when it has arrived."""
        return self._ask(
            [AGENT, *self.others], lambda number, _: FlushOutput(number), lambda _: None
        )

    def flush_output_of(self, meshes: Collection[int] | None, done: Callable[[], None]) -> None:
        """Ask for all that ranks of these meshes (None: all) have written; call when it has come.

        Lines that are gathered over a while stay so.
        """
        agents = [AGENT, *self.others] if meshes is None else self._agents_of([*meshes])
        self._ask(agents, lambda number, _: FlushOutput(number), lambda _: None, _Notice(done))

    def read_stacks(
        self, meshes: list[tuple[int, list[int]]], *, full: bool, idle: bool, timeout_s: float
    ) -> Future[StacksRead]:
        """Have these ranks looked into."""
        agents = self._agents_of([mesh for mesh, _ in meshes])
        return self._ask(
            agents, lambda number, _: ReadStacks(number, meshes, full, idle, timeout_s), _stacks
        )

    def signal(self, mesh: int, ranks: list[int], number: int) -> Future[Signalled]:
        """Have a signal sent to these ranks."""
        ref = self._known.ref(mesh)
        here = self._node.site
        by_agent: dict[str, list[int]] = {}
        for rank in ranks:
            agent = AGENT if ref is None else ref.agent(rank, here)
            by_agent.setdefault(agent, []).append(rank)
        return self._ask(
            list(by_agent),
            lambda request, agent: SignalProcs(request, mesh, by_agent[agent], number),
            _signalled,
        )

    def want_output(self, wanted: bool) -> None:
        """Ask for what ranks write, or for no more of it."""
        self.output_wanted = wanted
        for agent in (AGENT, *self.others):
            self._node.send(agent, WantOutput(wanted))

    def on_agent_joined(self, agent: str) -> None:
        """This process has one more host."""
        self.others.append(agent)
        if self.output_wanted:
            self._node.send(agent, WantOutput(True))

    def on_agent_lost(self, agent: str, reason: str) -> None:
        """That one will not answer any more."""
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
        """The agents of the hosts of these meshes, of all if there are none."""
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

    def _ask(
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
        """An answer came."""
        self._on_answer(peer, message.request, message)

    def on_output(self, _peer: str, message: OutputLines, _payload: Payload) -> None:
        """A rank has written."""
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
                    written_over=number in (3, 4),
                )
            )
        if self.output_filter is not None:
            lines = self.output_filter(message.mesh, message.rank, lines)
        if lines:
            bus.emit(Output(tuple(lines)))


# --- answers of several hosts as one --------------------------------------------------------------

# Of the parts of a mesh, the one whose state comes first here is what the whole is in.
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


def _join(whole: MeshStacks, part: MeshStacks) -> None:
    """Ranks of other hosts that are in the same as some here are in one group with them."""
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
