"""Every public exception.

    KeyboardInterrupt
    └── CallCancelled         in a sync endpoint: who called it has taken the call back
    Exception
    ├── ActorError            an endpoint raised; the actor lives
    ├── DebugError            (RuntimeError) the debugger cannot do that there, and why
    ├── DeadlockError         (RuntimeError) actors wait for each other in a cycle
    ├── JobError              (RuntimeError) the hosts of a job could not be had, or are gone
    ├── HostUnreachableError  (ConnectionError) no address of a host could be reached
    ├── MessageLostError      (ConnectionError) an injected fault has lost a call, or its answer
    ├── RDMAError             (RuntimeError) bytes could not be moved; nothing touches them any more
    │   ├── RDMAHandleError       the buffer was dropped, its memory freed, or it never was
    │   ├── RDMAOwnerLostError    the process that has the memory has ended
    │   ├── RDMATimeoutError      (TimeoutError) not done in time
    │   ├── StateDictVersionError that version of a state dict is not kept any more
    │   └── RDMAUnavailableError  no transport that may be used leads there
    ├── StateDictMismatchError (ValueError) a state dict is not what is asked for, all of it told
    ├── StacksError           (RuntimeError) the stacks of ranks cannot be read here, and why
    ├── SessionError          (RuntimeError) a session cannot be kept, taken up or let go of
    └── SupervisionError      (RuntimeError) what you called has died, or never lived
        ├── BootstrapError    (ActorError) the bootstrap function of a process has raised
        ├── MeshStoppedError  a mesh was used after `stop`
        └── RestartedError    it died in the middle of the call, and is being started again

`ActorError` and `SupervisionError` carry `RankFailure`s (`monarch._src.failures.report`), data
first, and word themselves from that data when they are shown. Because ranks answer one after
another, an error that one rank's failure completed learns of the others while it is already on its
way; `failures` grows until the last rank has answered, and the text is made when it is read.

You do *not* get these for mistakes that are found before anything is sent: a call that does not fit
the signature is a `TypeError`, a wrong dim too, a `call_one` on many ranks a `ValueError`.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from monarch._src.failures.report import RankFailure, failures_text, of_bootstrap


class _FailureReport:
    """What ActorError and SupervisionError share: failures that may still arrive, and a text."""

    _failures: Sequence[RankFailure]
    _message: str

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """One entry a failed rank, the first cause first; grows while other ranks still answer."""
        return tuple(self._failures)

    @property
    def message(self) -> str:
        """The text that `str()` shows."""
        failures = self.failures
        return failures_text(failures) if failures else self._message

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        # As in what `asyncio.gather(..., return_exceptions=True)` gives: who, where and what.
        return f"{type(self).__name__}({self.message.partition(chr(10))[0]!r})"


class ActorError(_FailureReport, Exception):
    """An endpoint raised an `Exception` and its caller waited for the answer. The actor lives.

    `exception` is the remote exception itself, or None where it could not be rebuilt here.
    """

    def __init__(
        self,
        exception: BaseException | None = None,
        message: str = "a remote actor call failed",
        failures: Sequence[RankFailure] = (),
    ) -> None:
        super().__init__(exception, message)
        self.exception = exception
        self._message = message
        self._failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (portable(self.exception), self._message, self.failures)


class SupervisionError(_FailureReport, RuntimeError):
    """What was called has died (a process, an actor, a host), or its constructor raised.

    `remedy`: what can be done about it, in a line that `str()` ends with; may be empty.
    """

    def __init__(
        self,
        message: str = "a mesh that was called has failed",
        failures: Sequence[RankFailure] = (),
        remedy: str = "",
    ) -> None:
        super().__init__(message)
        self._message = message
        self._failures = failures
        self.remedy = remedy

    @property
    def message(self) -> str:
        """The text that `str()` shows."""
        return "\n".join(filter(None, (super().message, self.remedy)))

    @property
    def exception(self) -> BaseException | None:
        """Always None: nothing was raised to the caller on the other side."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._message, self.failures, self.remedy)


class BootstrapError(ActorError, SupervisionError):
    """The bootstrap function of a process has raised, so no actor of that process ever lived.

    An `ActorError`, since code of the user has raised, and a `SupervisionError`, since no call to
    that rank will ever be answered. `exception` is None: the text has the remote traceback.
    """

    def __init__(
        self,
        message: str = "a bootstrap function has raised",
        failures: Sequence[RankFailure] = (),
        remedy: str = "",
    ) -> None:
        SupervisionError.__init__(self, message, failures, remedy)

    @property
    def exception(self) -> BaseException | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Always None: the remote exception itself stays where it was raised."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return SupervisionError.__reduce__(self)


class MeshStoppedError(SupervisionError):
    """A mesh was used after it had been stopped. Nothing has failed, so there are no `failures`.

    A SupervisionError, so that a program which asks whether what it calls is still there need not
    ask in two ways.
    """


class RestartedError(SupervisionError):
    """What was called has died, and its process is being started again: its state is lost.

    Raised by calls that were under way when a rank of a mesh with `restart` died. They may have
    been done, or in part, or not at all; none is repeated by itself. Later calls wait until the
    rank is back, or raise this too, as the mesh was told with `while_restarting`.
    """


def death_error(failures: Sequence[RankFailure]) -> SupervisionError:
    """What is raised for the deaths of these ranks, the first cause first."""
    kind: type[SupervisionError] = SupervisionError
    if failures and failures[0].restarted > 0:
        kind = RestartedError
    elif failures and of_bootstrap(failures[0]):
        kind = BootstrapError
    return kind(failures=failures)


class CallCancelled(KeyboardInterrupt):
    """Raised in a sync endpoint whose call was cancelled by who had made it. The actor lives.

    A KeyboardInterrupt, so that code which tidies up after one does so here, and so that an
    `except Exception` that tries again does not keep the call going. In an async endpoint the same
    is an `asyncio.CancelledError`.
    """

    def __init__(self, message: str = "who called has cancelled the call") -> None:
        super().__init__(message)


class DeadlockError(RuntimeError):
    """Actors wait for each other in a cycle, so none of them could ever go on.

    Raised where one of them waits; `cycle` says who waits for whom, one actor an entry.
    """

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        chain = ", which waits for ".join([*self.cycle[1:], *self.cycle[:1]])
        super().__init__(
            f"{' '.join(self.cycle[:1])} waits for {chain}: none can go on. Don't wait for the "
            "answer there, or make the endpoint that is called back a concurrent_endpoint"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cycle,)


class HostUnreachableError(ConnectionError):
    """No address of a host could be reached; the text lists each that was tried, with its errno."""


class MessageLostError(ConnectionError):
    """A call, or its answer, was lost by a fault that `monarch.testing` had injected.

    Raised to whoever waits for it when the fault is lifted.
    """

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} was lost on a link of {where}: a fault was injected there")
        self._given = what, where

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by its class: that would be looked for in a module that a proc has not loaded.
        return _message_lost, self._given


def _message_lost(what: str, where: str) -> MessageLostError:
    return MessageLostError(what, where)


class DebugError(RuntimeError):
    """The debugger cannot do what was asked: nothing waits there, or somebody else has it."""


class StacksError(RuntimeError):
    """The stacks of no rank could be read: py-spy is not there, or may not look."""


class JobError(RuntimeError):
    """The hosts of a job could not be had, or are gone; or what should be its record is none."""


class SessionError(RuntimeError):
    """A session cannot be kept, taken up or let go of. Nothing has changed."""


class BlockedLoopError(RuntimeError):
    """A blocking wait was asked for on a thread that must never block."""


class RDMAError(RuntimeError):
    """Bytes of an `RDMABuffer` could not be moved.

    When you get it, nothing touches your memory any more. What was to be read into is in part
    overwritten; what was to be written to, over there, may be too: `bytes_done` of `size` were
    complete. `buffer` and `owner` are in words, `transport` is what was used last, if any.
    """

    def __init__(
        self, message: str, buffer: str = "", owner: str = "", size: int = 0, bytes_done: int = 0,
        transport: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.buffer = buffer
        self.owner = owner
        self.size = size
        self.bytes_done = bytes_done
        self.transport = transport

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.buffer, self.owner, self.size, self.bytes_done, self.transport)
        return type(self), (str(self), *facts)


class RDMAHandleError(RDMAError):
    """The handle leads nowhere: its buffer was dropped, its memory was freed, or it never was."""


class RDMAOwnerLostError(RDMAError):
    """The process that has the memory has ended, or the session that it took part in."""


class RDMATimeoutError(RDMAError, TimeoutError):
    """The transfer was not done in time, and was given up."""


class RDMAUnavailableError(RDMAError):
    """No transport that may be used leads to the owner; the text says why, for each."""


class StateDictVersionError(RDMAError):
    """A publisher has gone on from that version of its state dict, and does not keep it any more.

    `wanted`: the version that was asked for. `newest`: what the publisher had come to.
    """

    def __init__(
        self, message: str, buffer: str = "", owner: str = "", size: int = 0, bytes_done: int = 0,
        transport: str | None = None, wanted: int = 0, newest: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(message, buffer, owner, size, bytes_done, transport)
        self.wanted = wanted
        self.newest = newest

    def __reduce__(self) -> tuple[Any, ...]:
        kind, facts = super().__reduce__()
        return kind, (*facts, self.wanted, self.newest)


class StateDictMismatchError(ValueError):
    """What is published and what is asked for do not fit; found before anything moved.

    `missing`: names that were asked for and that nobody publishes. `unexpected`: published, and not
    asked for. `mismatched`: by name, in words: dtype, shape, elements that nobody has.
    """

    def __init__(
        self, what: str, missing: Sequence[str] = (), unexpected: Sequence[str] = (),
        mismatched: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.what = what
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.mismatched = dict(mismatched or {})
        super().__init__(what)

    def __str__(self) -> str:
        lines = [
            f"{title}: {_some(names)}"
            for title, names in (("missing", self.missing), ("unexpected", self.unexpected))
            if names
        ]
        told = list(self.mismatched.items())
        lines += [f"{name!r}: {text}" for name, text in told[:_MOST_TOLD]]
        if len(told) > _MOST_TOLD:
            lines.append(f"and {len(told) - _MOST_TOLD:,} more")
        return f"{self.what}: {'; '.join(lines)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.missing, self.unexpected, self.mismatched)


_MOST_TOLD = 8


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_TOLD:,} more" if len(names) > _MOST_TOLD else ""
    return ", ".join(map(repr, names[:_MOST_TOLD])) + more


class RDMATcpFallbackWarning(Warning):
    """Bytes go over TCP, because nothing faster works between two processes. Once a reason."""


class RDMAReadTransferWarning(Warning):
    """A read went over another transport than it began with, which failed. Once a reason."""


class RDMAWriteTransferWarning(Warning):
    """A write went over another transport than it began with, which failed. Once a reason."""


def portable(exception: BaseException | None) -> BaseException | None:
    """The exception if pickle can carry it to another process and back, else None."""
    if exception is None:
        return None
    try:
        pickle.loads(pickle.dumps(exception))
    except Exception:
        return None
    return exception


# Tracebacks show where a user imports these from.
for _public in (
    ActorError, BootstrapError, CallCancelled, DeadlockError, MeshStoppedError, RestartedError,
    SupervisionError,
):  # fmt: skip
    _public.__module__ = "monarch.actor"


StacksError.__module__ = "monarch.observe"


MessageLostError.__module__ = "monarch.testing"


for _public in (
    RDMAError, RDMAHandleError, RDMAOwnerLostError, RDMATimeoutError, RDMAUnavailableError,
    RDMATcpFallbackWarning, RDMAReadTransferWarning, RDMAWriteTransferWarning,
    StateDictMismatchError, StateDictVersionError,
):  # fmt: skip
    _public.__module__ = "monarch.rdma"


SessionError.__module__ = "monarch.session"
