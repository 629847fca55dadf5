"""Connect a program outside a session, such as a terminal, to the host agent of the session.

Runs in: the command line and the admin server; one thread at a time, which blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from monarch._src.debug.agent_connection import Answer, BridgeListener, MakeRequest, Place
from monarch._src.errors import DebugError
from monarch._src.net.observer import AgentLink
from monarch._src.session.directories import Session, named, short_name
from monarch._src.wire.messages import (
    BridgeAnswered,
    BridgeBytes,
    BridgeClosed,
    DebuggerAnswered,
    PausedListed,
    Refused,
)


def choose_session(live: Sequence[Session], which: str) -> Session:
    """Return the live session that `which` names; if it is empty, the only live session.

    Raises:
        DebugError: no session matches, or several do.
    """
    found = named(which, live) if which else list(live)
    if len(found) == 1:
        return found[0]
    if not live:
        raise DebugError("you have no sessions on this machine")
    names = ", ".join(short_name(one) for one in found or live)
    if not which:
        problem = "several sessions are running; name one"
    elif found:
        problem = f"several sessions begin with {which!r}"
    else:
        problem = f"there is no session {which!r}; running sessions"
    raise DebugError(f"{problem}: {names}")


class _SentRequest:
    """A request that the terminal has sent."""

    def __init__(self, connection: TerminalConnection, number: int, expected: int) -> None:
        self.answers: list[Any] = []
        self._connection = connection
        self._number = number
        self._expected = expected

    def wait(self, timeout_s: float | None) -> bool:
        """See `PendingRequest`."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while len(self.answers) < self._expected:
            remaining = None if deadline is None else deadline - monotonic()
            if remaining is not None and remaining <= 0:
                return False
            answer = self._connection.receive(remaining)
            if answer is not None and answer.request == self._number:
                self.answers.append(answer)
        return True

    def discard(self) -> None:
        """Do nothing: `wait` compares request numbers, so late answers match no request."""


class TerminalConnection:
    """A connection to the host agent from outside the session; implements `AgentConnection`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        try:
            self._link = AgentLink(session.directory)
        except ConnectionError:
            raise self._has_ended() from None
        self._numbers = itertools.count(1)
        self._listeners: dict[Place, BridgeListener] = {}
        self._callbacks: dict[int, Callable[[Any], None]] = {}

    def request(
        self, make: MakeRequest, answers: int, on_answer: Callable[[Any], None] | None = None
    ) -> _SentRequest:
        """See `AgentConnection`. `receive` calls `on_answer`, on the calling thread."""
        number = next(self._numbers)
        if on_answer is not None:
            self._callbacks[number] = on_answer
        self._link.send(make(number))
        return _SentRequest(self, number, answers)

    def send_bytes(self, message: BridgeBytes) -> None:
        """See `AgentConnection`."""
        self._link.send(message)

    def set_listener(self, place: Place, listener: BridgeListener | None) -> None:
        """See `AgentConnection`. `receive` calls the listener, on the calling thread."""
        if listener is None:
            self._listeners.pop(place, None)
        else:
            self._listeners[place] = listener

    def wait(self, fd: int, timeout_s: float) -> bool:
        """Block until the agent sends a message or `fd` is readable; return whether `fd` is."""
        return self._link.wait(fd, timeout_s)

    def receive(self, timeout_s: float | None) -> Answer | None:
        """Receive one message; return it if it answers a request, otherwise None.

        Also returns None if no message arrives within `timeout_s`.
        """
        try:
            message = self._link.receive(timeout_s)
        except ConnectionError:
            raise self._has_ended() from None
        if isinstance(message, Refused):
            raise DebugError(
                f"{self._session.label} runs another version of monarch; use the `monarch` "
                "command of its environment"
            )
        if isinstance(message, (BridgeBytes, BridgeClosed)):
            listener = self._listeners.get((message.mesh, message.rank))
            if listener is not None:
                listener(message)
            return None
        if not isinstance(message, (PausedListed, DebuggerAnswered, BridgeAnswered)):
            return None
        callback = self._callbacks.pop(message.request, None)
        if callback is not None:
            callback(message)
        return message

    def _has_ended(self) -> DebugError:
        return DebugError(f"{self._session.label} has ended; `monarch ps` lists live sessions")

    def pending(self) -> bool:
        """Whether a message from the agent can be received without blocking."""
        return self._link.pending()

    def close(self) -> None:
        """Disconnect. The agent releases the ranks to which this terminal was attached."""
        self._link.close()
