"""Errors of calls whose futures are dropped before anything has read them.

Runs in: every process. A future that fails holds an `UnreadError`; reading the future marks it. One
that goes away unmarked is reported to the front end, if there is one, once for a call. Of calls,
only errors that an endpoint has raised are reported here. Deaths of actors and processes reach
their owners by supervision, and the error of a cancelled call was requested. Work that goes on
beside its caller (`actor.work`) has other errors too, such as a time-out, and keeps deaths from
their owners; so it gives their text.
Invariant: an `UnreadError` refers to no future and no pending call, so it goes away with its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from monarch._src.errors import ActorError
from monarch._src.failures.report import RankFailure

# The exceptions of cancelled calls. They are not reported.
_CANCELLED = ("CallCancelled", "CancelledError")


def is_cancellation(error: BaseException | None) -> bool:
    """Whether this is the error of a call, or of other work, that was cancelled."""
    if not isinstance(error, ActorError):
        return False
    kinds = {type(error.exception).__name__, *(one.exception_type for one in error.failures)}
    return not kinds.isdisjoint(_CANCELLED)


class UnreadError:
    """The error of one call. `origin` is the number that `number_calls` gave the call; 0: none.

    The futures of one `stream`, and their pending call, share it: a program that has read the error
    of one of them knows that the call has failed, and one that still holds a future may read it.
    """

    __slots__ = ("_failures", "_is_read", "origin", "text")

    def __init__(self, failures: Sequence[RankFailure], origin: int, text: str = "") -> None:
        """`text`: of an error that is reported also if no endpoint has raised it."""
        self._failures = failures  # grows until the last rank has answered
        self.origin = origin
        self.text = text
        self._is_read = False

    def mark_read(self) -> None:
        """The error has been raised to a reader."""
        self._is_read = True

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """One entry for each rank whose endpoint raised, in the order of their answers."""
        return tuple(
            failure
            for failure in self._failures
            if failure.kind == "endpoint" and failure.exception_type not in _CANCELLED
        )

    def __del__(self) -> None:
        # Any thread, at any allocation: take no lock here that this thread may hold.
        if _listener is None or self._is_read or sys.is_finalizing():
            return
        if not self.failures and not self.text:
            return
        _listener(self)


_listener: Callable[[UnreadError], None] | None = None


def on_unread_error(listener: Callable[[UnreadError], None] | None) -> None:
    """Report the errors of calls that nothing has read to `listener`.

    It runs on any thread, possibly inside a garbage collection, so it may only do what is safe in a
    `__del__` method, such as `queue.SimpleQueue.put`. None: report nothing.
    """
    global _listener
    _listener = listener
