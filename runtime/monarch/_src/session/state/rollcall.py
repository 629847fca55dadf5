"""RollCall: which procs of a host know the current client, and which clients wait for that. No I/O.

A host agent gives a session to a client and tells its procs, each by its own pipe. A call of the
client to one proc may lead to a call to another that has not heard of the client yet; that proc
would take it for a call of the last client. So an attaching client asks its agents to answer when
every proc has confirmed that it knows the client.

The wait is bounded: procs that have not confirmed after `PATIENCE_S` (they are stopped, or run one
long computation) are ignored, and so are procs that have ended or are about to.

Events are methods named in the past tense. `now` is seconds on any clock that never goes back. The
driver is `monarch._src.session.client_announcement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

PATIENCE_S = 1.0


class RollCall:
    """The confirmations of one host's procs for the current client."""

    def __init__(self) -> None:
        self._number = 0  # the number of that client
        # Exactly the procs that were told of it, have not answered, and may still answer.
        self._unconfirmed: dict[str, None] = {}
        self._until = 0.0  # when waiting ends
        # The waiting clients: node, number of the request.
        self._requests: list[tuple[str, int]] = []

    def announced(self, procs: Iterable[str], number: int, now: float) -> None:
        """These procs were told of a client with that number. Drops requests of earlier clients."""
        self._number, self._unconfirmed = number, dict.fromkeys(procs)
        self._until = now + PATIENCE_S
        self._requests.clear()

    def confirmed(self, proc: str, number: int) -> None:
        """A proc confirms that it knows the client with that number."""
        if number == self._number:
            self._unconfirmed.pop(proc, None)

    def requested(self, node: str, request: int) -> None:
        """A client asks to be told when all procs know it."""
        self._requests.append((node, request))

    def due(self, now: float, counts: Callable[[str], bool]) -> list[tuple[str, int]]:
        """The requests to answer now. `counts`: whether an answer of a proc is still expected."""
        if not self._requests or (now < self._until and self._is_owed(counts)):
            return []
        found, self._requests = self._requests, []
        return found

    def _is_owed(self, counts: Callable[[str], bool]) -> bool:
        while self._unconfirmed:
            first = next(iter(self._unconfirmed))
            if counts(first):
                return True
            del self._unconfirmed[first]
        return False

    @property
    def deadline(self) -> float | None:
        """When `due` changes without an event; None: never."""
        return self._until if self._requests else None
