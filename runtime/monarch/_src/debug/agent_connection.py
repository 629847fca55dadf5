"""Send debugger requests to the host agents: the protocol, and the client's implementation.

Programs outside the session implement the protocol in `terminal_connection`.

Runs in: the client, any thread; the receiving thread delivers answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from monarch._src.actor.runtime import Runtime
from monarch._src.net.local.interrupt import GuardedLock
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

DebugRequest: TypeAlias = "ListPaused | AskDebugger | AskBridge"
Answer: TypeAlias = "PausedListed | DebuggerAnswered | BridgeAnswered"
Place: TypeAlias = "tuple[int, int]"  # mesh, rank
BridgeListener: TypeAlias = "Callable[[BridgeBytes | BridgeClosed], None]"
MakeRequest: TypeAlias = "Callable[[int], DebugRequest]"  # makes the request with this number


class PendingRequest(Protocol):
    """A request that the host agents have not answered yet."""

    answers: list[Any]

    def wait(self, timeout_s: float | None) -> bool:
        """Block until all answers have arrived; return False if `timeout_s` passes first."""
        ...

    def discard(self) -> None:
        """Ignore answers that arrive from now on."""
        ...


class AgentConnection(Protocol):
    """A connection to the host agents of one session."""

    def request(
        self, make: MakeRequest, answers: int, on_answer: Callable[[Any], None] | None = None
    ) -> PendingRequest:
        """Send the request; expect `answers` answers, or one from each agent if that is more.

        `on_answer` is called with each answer, on any thread, and must not block.

        Raises:
            RuntimeError: a host agent is gone.
        """
        ...

    def send_bytes(self, message: BridgeBytes) -> None:
        """Send bytes to the debugger of a rank. Order is kept."""
        ...

    def set_listener(self, place: Place, listener: BridgeListener | None) -> None:
        """Call `listener` with messages of the bridge to that rank, on any thread; None: stop."""
        ...


class _SentRequest:
    """A request that the client has sent."""

    def __init__(
        self,
        connection: ClientConnection,
        number: int,
        expected: int,
        on_answer: Callable[[Any], None] | None,
    ) -> None:
        self.answers: list[Any] = []
        self.completed = Waitable()
        self._connection = connection
        self._number = number
        self._expected = expected
        self._on_answer = on_answer

    def add_answer(self, answer: Answer) -> None:
        """Record an answer."""
        self.answers.append(answer)
        if len(self.answers) == self._expected:
            self.discard()
            self.completed.finish()
        if self._on_answer is not None:
            self._on_answer(answer)

    def wait(self, timeout_s: float | None) -> bool:
        """See `PendingRequest`."""
        return self._connection.runtime.node.wait(self.completed, timeout_s)

    def discard(self) -> None:
        """See `PendingRequest`."""
        self._connection.pending.pop(self._number, None)


class ClientConnection:
    """The connection of the client, which is a node of the session."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.pending: dict[int, _SentRequest] = {}
        self._numbers = itertools.count(1)
        runtime.handle(PausedListed, self._on_answer)
        runtime.handle(DebuggerAnswered, self._on_answer)
        runtime.handle(BridgeAnswered, self._on_answer)
        runtime.handle(BridgeBytes, self._on_bridge_message)
        runtime.handle(BridgeClosed, self._on_bridge_message)
        self._listeners: dict[Place, BridgeListener] = {}

    def request(
        self, make: MakeRequest, answers: int, on_answer: Callable[[Any], None] | None = None
    ) -> PendingRequest:
        """See `AgentConnection`."""
        number = next(self._numbers)
        parts = self._by_agent(make(number))
        expected = max(answers, len(parts))
        request = self.pending[number] = _SentRequest(self, number, expected, on_answer)
        sent = [self.runtime.node.send(agent, part) for agent, part in parts]
        if not all(sent):
            request.discard()
            raise RuntimeError("the host agent is gone")
        if on_answer is not None:
            self.runtime.node.leader.receive_now()
        return request

    def _by_agent(self, request: DebugRequest) -> list[tuple[str, DebugRequest]]:
        """Split a request by agent: its own ranks to each, a request without ranks to all."""
        run = self.runtime
        if not run.agent.others:
            return [(AGENT, request)]
        if isinstance(request, ListPaused) or not request.targets:
            return [(agent, request) for agent in (AGENT, *run.agent.others)]
        targets: dict[str, list[Any]] = {}
        for target in request.targets:
            targets.setdefault(self._agent_of(target[0], target[1]), []).append(target)
        return [
            (agent, msgspec.structs.replace(request, targets=found))
            for agent, found in targets.items()
        ]

    def _agent_of(self, mesh: int, rank: int) -> str:
        run = self.runtime
        ref = run.known.ref(mesh)
        return AGENT if ref is None else ref.agent(rank, run.node.site)

    def send_bytes(self, message: BridgeBytes) -> None:
        """See `AgentConnection`."""
        self.runtime.node.send(self._agent_of(message.mesh, message.rank), message)

    def set_listener(self, place: Place, listener: BridgeListener | None) -> None:
        """See `AgentConnection`."""
        if listener is None:
            self._listeners.pop(place, None)
        else:
            self._listeners[place] = listener

    def _on_bridge_message(
        self, _peer: str, message: BridgeBytes | BridgeClosed, _payload: Payload
    ) -> None:
        listener = self._listeners.get((message.mesh, message.rank))
        if listener is not None:
            listener(message)

    def _on_answer(self, _peer: str, message: Answer, _payload: Payload) -> None:
        request = self.pending.get(message.request)
        if request is not None:
            request.add_answer(message)


_connection: ClientConnection | None = None
_making = GuardedLock()


def client_connection(runtime: Runtime) -> ClientConnection:
    """The connection of the client with this runtime; created on first use."""
    global _connection
    with _making:
        if _connection is None or _connection.runtime is not runtime:
            _connection = ClientConnection(runtime)
        return _connection
