"""How a console reaches the host agent: as the client of the session, or from outside of it.

Runs in: the client, any thread; answers come in on the thread that receives.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from monarch._src.actor.runtime import Runtime
from monarch._src.net.local.waitable import Waitable
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import (
    AskBridge,
    AskDebugger,
    BridgeAnswered,
    BridgeBytes,
    BridgeClosed,
    DebuggerAnswered,
    ListPaused,
    PausedListed,
)

Question: TypeAlias = "ListPaused | AskDebugger | AskBridge"
Answer: TypeAlias = "PausedListed | DebuggerAnswered | BridgeAnswered"
Place: TypeAlias = "tuple[int, int]"  # mesh, rank
Heard: TypeAlias = "Callable[[BridgeBytes | BridgeClosed], None]"
Ask: TypeAlias = "Callable[[int], Question]"  # a question that has that number


class PendingRequest(Protocol):
    """A question on its way."""

    answers: list[Any]

    def wait(self, timeout_s: float | None) -> bool:
        """Block until all answers are there; False if they are not in time."""
        ...

    def forget(self) -> None:
        """What comes later has no use."""
        ...


class AgentConnection(Protocol):
    """A way to the host agent of one session."""

    def ask(
        self, question: Ask, answers: int, on_answer: Callable[[Any], None] | None = None
    ) -> PendingRequest:
        """Put a question to which so many answers come, or one an agent.

        `on_answer` is called with each, on any thread, and is quick.

        Raises:
            RuntimeError: the host agent is gone.
        """
        ...

    def tell(self, message: BridgeBytes) -> None:
        """Say that to a debugger, in order."""
        ...

    def listen(self, place: Place, heard: Heard | None) -> None:
        """Have what the bridge to that rank says given to `heard`, on any thread; None: no more."""
        ...


class _Asked:
    """One question of the client."""

    def __init__(
        self,
        line: ClientConnection,
        number: int,
        owed: int,
        on_answer: Callable[[Any], None] | None,
    ) -> None:
        self.answers: list[Any] = []
        self.all_in = Waitable()
        self._line = line
        self._number = number
        self._owed = owed
        self._on_answer = on_answer

    def answered(self, answer: Answer) -> None:
        """One came."""
        self.answers.append(answer)
        if len(self.answers) == self._owed:
            self.forget()
            self.all_in.finish()
        if self._on_answer is not None:
            self._on_answer(answer)

    def wait(self, timeout_s: float | None) -> bool:
        """See `PendingRequest`."""
        return self._line.runtime.node.wait(self.all_in, timeout_s)

    def forget(self) -> None:
        """See `PendingRequest`."""
        self._line.open.pop(self._number, None)


class ClientConnection:
    """The line of the client, which is a node of the session."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.open: dict[int, _Asked] = {}
        self._numbers = itertools.count(1)
        runtime.handle(PausedListed, self._answered)
        runtime.handle(DebuggerAnswered, self._answered)
        runtime.handle(BridgeAnswered, self._answered)
        runtime.handle(BridgeBytes, self._bridge_says)
        runtime.handle(BridgeClosed, self._bridge_says)
        self._listeners: dict[Place, Heard] = {}

    def ask(
        self, question: Ask, answers: int, on_answer: Callable[[Any], None] | None = None
    ) -> PendingRequest:
        """See `AgentConnection`."""
        number = next(self._numbers)
        parts = self._by_agent(question(number))
        owed = max(answers, len(parts))
        asked = self.open[number] = _Asked(self, number, owed, on_answer)
        sent = [self.runtime.node.send(agent, part) for agent, part in parts]
        if not all(sent):
            asked.forget()
            raise RuntimeError("the host agent is gone")
        if on_answer is not None:
            self.runtime.node.leader.receive_now()
        return asked

    def _by_agent(self, question: Question) -> list[tuple[str, Question]]:
        """What to ask whom: each agent of its own ranks, and what is about no ranks all of them."""
        run = self.runtime
        if not run.agent.others:
            return [(AGENT, question)]
        if isinstance(question, ListPaused) or not question.targets:
            return [(agent, question) for agent in (AGENT, *run.agent.others)]
        targets: dict[str, list[Any]] = {}
        for target in question.targets:
            targets.setdefault(self._agent_of(target[0], target[1]), []).append(target)
        return [
            (agent, msgspec.structs.replace(question, targets=found))
            for agent, found in targets.items()
        ]

    def _agent_of(self, mesh: int, rank: int) -> str:
        run = self.runtime
        ref = run.known.ref(mesh)
        return AGENT if ref is None else ref.agent(rank, run.node.site)

    def tell(self, message: BridgeBytes) -> None:
        """See `AgentConnection`."""
        self.runtime.node.send(self._agent_of(message.mesh, message.rank), message)

    def listen(self, place: Place, heard: Heard | None) -> None:
        """See `AgentConnection`."""
        if heard is None:
            self._listeners.pop(place, None)
        else:
            self._listeners[place] = heard

    def _bridge_says(
        self, _peer: str, message: BridgeBytes | BridgeClosed, _payload: Payload
    ) -> None:
        heard = self._listeners.get((message.mesh, message.rank))
        if heard is not None:
            heard(message)

    def _answered(self, _peer: str, message: Answer, _payload: Payload) -> None:
        asked = self.open.get(message.request)
        if asked is not None:
            asked.answered(message)


_line: ClientConnection | None = None
_making = threading.Lock()


def line_of(runtime: Runtime) -> ClientConnection:
    """The line of that client."""
    global _line
    with _making:
        if _line is None or _line.runtime is not runtime:
            _line = ClientConnection(runtime)
        return _line
