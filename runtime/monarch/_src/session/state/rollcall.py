"""Which procs of a host have heard who the client is now, and who waits until all have. No I/O.

A host agent gives a session to a client and tells its procs, each by its own pipe. What the client
then says to one proc may come to another one by way of the first, before that one has heard of the
client; it would hold the call for one of the client before. So the client asks its agents once more
before it begins, and is answered when every proc has said that it knows.

Nobody waits long: a proc that says nothing for `PATIENCE_S` (it stands still, or nothing of it runs
but one long computation) is not waited for, and one of which nothing more is expected, since it has
ended or is about to, not at all.

Events are methods named in the past tense. `now` is seconds on any clock that never goes back. The
driver is `monarch._src.session.client_announcement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

PATIENCE_S = 1.0


class RollCall:
    """Of one host, for the client of the moment."""

    def __init__(self) -> None:
        self._number = 0  # of that client
        # All and only the procs that were told of it, have not answered, and are not known to be
        # out of the question.
        self._owing: dict[str, None] = {}
        self._until = 0.0  # then nobody is waited for
        self._asked: list[tuple[str, int]] = []  # who waits: node, number of its question

    def told(self, procs: Iterable[str], number: int, now: float) -> None:
        """These have been told of a client, of that number; whoever asked was one before it."""
        self._number, self._owing = number, dict.fromkeys(procs)
        self._until = now + PATIENCE_S
        self._asked.clear()

    def answered(self, proc: str, number: int) -> None:
        """That one knows the client of that number."""
        if number == self._number:
            self._owing.pop(proc, None)

    def asked(self, node: str, request: int) -> None:
        """Somebody wants to hear when all do."""
        self._asked.append((node, request))

    def due(self, now: float, counts: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Who is to be answered now. `counts`: whether that proc is still to be waited for."""
        if not self._asked or (now < self._until and self._is_owed(counts)):
            return []
        found, self._asked = self._asked, []
        return found

    def _is_owed(self, counts: Callable[[str], bool]) -> bool:
        while self._owing:
            first = next(iter(self._owing))
            if counts(first):
                return True
            del self._owing[first]
        return False

    @property
    def deadline(self) -> float | None:
        """When `due` has another answer though nothing has happened; None: never."""
        return self._until if self._asked else None
