"""Every public exception.

    KeyboardInterrupt
    └── CallCancelled         in a sync endpoint: the caller has cancelled the call
    Exception
    ├── ActorError            an endpoint raised; the actor lives
    │   ├── ItemError             a function that `map` runs has raised for one of its items
    │   └── RemoteException       an operation on a distributed tensor has failed on a rank
    ├── CollectiveError       (RuntimeError) a rank did not come to a collective of a process group
    ├── DebugError            (RuntimeError) the debugger cannot do what was requested
    ├── DeadlockError         (RuntimeError) actors wait for each other in a cycle
    ├── JobError              (RuntimeError) the hosts of a job could not be allocated, or are gone
    ├── HostUnreachableError  (ConnectionError) no address of a host could be reached
    ├── MessageLostError      (ConnectionError) an injected fault has lost a call, or its answer
    ├── RDMAError             (RuntimeError) a transfer of bytes failed, and has ended
    │   ├── RDMAHandleError       the handle is invalid: its buffer was dropped or its memory freed
    │   ├── RDMAOwnerLostError    the process that owns the memory has ended
    │   ├── RDMATimeoutError      (TimeoutError) the transfer was not done in time
    │   ├── StateDictVersionError the publisher no longer keeps that version of a state dict
    │   └── RDMAUnavailableError  no permitted transport leads to the owner
    ├── StateDictMismatchError (ValueError) a published state dict does not fit the requested one
    ├── QueryError            (ValueError) a query is refused, or fails
    │   └── QueryTimeoutError (TimeoutError) a query has not ended in time
    ├── StacksError           (RuntimeError) the stacks of ranks cannot be read here
    ├── RecoveryError         (RuntimeError) a training cannot go on after a death
    ├── SessionError          (RuntimeError) a session cannot be kept, resumed or released
    └── SupervisionError      (RuntimeError) the actor, process or host that was called has died
        ├── BootstrapError    (ActorError) the bootstrap function of a process has raised
        ├── ItemLostError     several ranks have died while they ran the same item of a `map`
        ├── MeshStoppedError  a mesh was used after `stop`
        └── RestartedError    the process died during the call, and is being restarted

`ActorError` and `SupervisionError` carry `RankFailure`s (`monarch._src.failures.report`) as data,
and format their text when it is read. Ranks answer one after another, so an error is raised on the
first failure while other ranks may still fail: `failures` grows until the last rank has answered.

Mistakes that are found before a message is sent raise builtin exceptions instead: `TypeError` for
arguments that do not fit the signature and for a wrong dim, `ValueError` for `call_one` on several
ranks.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from monarch._src.failures.report import RankFailure, failures_text, of_bootstrap


class _FailureReport:
    """The base of ActorError and SupervisionError: failures that may still arrive, and a text."""

    _failures: Sequence[RankFailure]
    _message: str

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """One entry per failed rank, the first cause first; grows while other ranks answer."""
        return tuple(self._failures)

    @property
    def message(self) -> str:
        """The text that `str()` shows."""
        failures = self.failures
        return failures_text(failures) if failures else self._message

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        # `asyncio.gather(..., return_exceptions=True)` shows errors by their repr: keep it short.
        return f"{type(self).__name__}({self.message.partition(chr(10))[0]!r})"


class ActorError(_FailureReport, Exception):
    """An endpoint raised an `Exception` while its caller waited for the answer. The actor lives.

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


class ItemError(ActorError):
    """The function that `map` runs has raised for one of the items. The ranks live.

    Every exception counts, also a KeyboardInterrupt or another one that is no `Exception`. So does
    an item, or the value for it, that cannot be pickled or rebuilt.

    `index` is the place of the item, from 0, and `item` a short text of it. `failures` has the rank
    that ran it.
    """

    def __init__(
        self,
        exception: BaseException | None = None,
        message: str = "the function has raised for an item",
        failures: Sequence[RankFailure] = (),
        index: int = 0,
        item: str = "",
    ) -> None:
        super().__init__(exception, message, failures)
        self.index = index
        self.item = item

    def __reduce__(self) -> tuple[Any, ...]:
        kind, facts = super().__reduce__()
        return kind, (*facts, self.index, self.item)


class RemoteException(ActorError):
    """An operation of a tensor of a mesh has failed on a rank. The rank lives.

    Raised when a value that depends on the operation is fetched. `exception` is that of the rank,
    `traceback` its text there, and `operation` the name of the operation. `filename`, `line` and
    `source` tell the line of the program that issued it; `rank` and `point` where it failed.
    """

    def __init__(
        self,
        exception: BaseException | None = None,
        message: str = "an operation has failed on a rank",
        failures: Sequence[RankFailure] = (),
        *,
        operation: str = "",
        rank: int = -1,
        point: Mapping[str, int] | None = None,
        filename: str = "",
        line: int = 0,
        source: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(exception, message, failures)
        self.operation = operation
        self.rank = rank
        self.point = dict(point or {})
        self.filename = filename
        self.line = line
        self.source = source
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:
        kind, facts = super().__reduce__()
        own = ("operation", "rank", "point", "filename", "line", "source", "traceback")
        return kind, facts, {name: getattr(self, name) for name in own}


class SupervisionError(_FailureReport, RuntimeError):
    """The actor, process or host that was called has died, or the actor's constructor raised.

    `remedy` is advice, and `refusal` says which work was therefore not done. `str()` shows both in
    its last line; each may be empty.
    """

    def __init__(
        self,
        message: str = "a mesh that was called has failed",
        failures: Sequence[RankFailure] = (),
        remedy: str = "",
        refusal: str = "",
    ) -> None:
        super().__init__(message)
        self._message = message
        self._failures = failures
        self.remedy = remedy
        self.refusal = refusal

    @property
    def message(self) -> str:
        """The text that `str()` shows."""
        last = ": ".join(filter(None, (self.refusal, self.remedy)))
        return "\n".join(filter(None, (super().message, last)))

    @property
    def exception(self) -> BaseException | None:
        """Always None: no endpoint has raised."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self._message, self.failures, self.remedy)
        return type(self), arguments, {"refusal": self.refusal}


class BootstrapError(ActorError, SupervisionError):
    """The bootstrap function of a process has raised, so that process never started an actor.

    An `ActorError`, because the user's code has raised, and a `SupervisionError`, because that rank
    will never answer a call. `exception` is None: the text has the remote traceback.
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
        """Always None: the remote exception stays in its own process."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return SupervisionError.__reduce__(self)


class MeshStoppedError(SupervisionError):
    """A mesh was used after it had been stopped. No rank has failed, so `failures` is empty.

    A SupervisionError, so that a program needs only one `except` clause for meshes that are gone.
    """


class ItemLostError(SupervisionError):
    """Several ranks have died while they ran the same item of a `map`, so it is not tried again.

    `index` is the place of the item, from 0, and `item` a short text of it. `failures` has the
    ranks that died.
    """

    def __init__(
        self,
        message: str = "an item has ended the ranks that ran it",
        failures: Sequence[RankFailure] = (),
        remedy: str = "",
        index: int = 0,
        item: str = "",
    ) -> None:
        super().__init__(message, failures, remedy)
        self.index = index
        self.item = item

    def __reduce__(self) -> tuple[Any, ...]:
        kind, facts, state = super().__reduce__()
        return kind, (*facts, self.index, self.item), state


class RestartedError(SupervisionError):
    """The process that was called has died and is being restarted: its state is lost.

    Raised by calls that were in flight when a rank of a mesh with `restart` died. The rank may have
    completed such a call, or part of it, or none of it; the runtime repeats no call. Later calls
    wait until the rank is back, or raise this too, as `while_restarting` of the mesh says.
    Operations raise it that need a tensor of the mesh which was made before.
    """


def death_error(failures: Sequence[RankFailure]) -> SupervisionError:
    """The error to raise for the deaths of these ranks, the first cause first."""
    kind: type[SupervisionError] = SupervisionError
    if failures and failures[0].restarted > 0:
        kind = RestartedError
    elif failures and of_bootstrap(failures[0]):
        kind = BootstrapError
    return kind(failures=failures, remedy=_remedy_for(failures[0]) if failures else "")


def _remedy_for(failure: RankFailure) -> str:
    """Advice on a module that the host lacks, if it is one of this program's own files."""
    if failure.exception_type != "ModuleNotFoundError":
        return ""
    name = failure.message.partition("'")[2].partition("'")[0].partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or "-packages" in file:  # it was installed
        return ""
    folder, last = os.path.split(file)
    folder = os.path.dirname(folder) if last == "__init__.py" else folder
    return (
        f"{failure.host} does not have {name}, which is in {folder} here: "
        f"`hosts.sync_workspace({str(folder)!r})` copies that directory to hosts, and so does "
        "`%monarch sync` in a notebook"
    )


class CallCancelled(KeyboardInterrupt):
    """Raised in a sync endpoint when the caller has cancelled the call. The actor lives.

    A KeyboardInterrupt, so that code which cleans up after an interrupt does so here too, and so
    that a retry in an `except Exception` does not keep the call going. An async endpoint gets an
    `asyncio.CancelledError` instead.
    """

    def __init__(self, message: str = "the caller has cancelled the call") -> None:
        super().__init__(message)


class CollectiveError(RuntimeError):
    """A collective was ended because a rank that it waited for has died, or has raised before it.

    `why` names that rank. The process groups of the rank that gets the error have ended. It takes
    the place of the error of torch's backend when an endpoint is left; inside the endpoint, code
    sees the RuntimeError of the backend, and this error where it makes a group.
    """

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"{why}. The process groups of this rank have ended with it: call init_process_group() "
            "on the ranks that live for new ones"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.why,)


class RecoveryError(RuntimeError):
    """A training cannot go on: too many replicas are lost, all state is lost, or no step is done.

    The error of a spawn that failed, if that is the reason, is its `__cause__`.
    """


class DeadlockError(RuntimeError):
    """Actors wait for each other in a cycle, so none of them could ever proceed.

    Raised in one of the waiting actors. `cycle` has one entry per actor, each of which waits for
    the next.
    """

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        chain = ", which waits for ".join([*self.cycle[1:], *self.cycle[:1]])
        super().__init__(
            f"{' '.join(self.cycle[:1])} waits for {chain}: none can proceed. Don't wait for the "
            "answer there, or make the endpoint that is called back a concurrent_endpoint"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cycle,)


class HostUnreachableError(ConnectionError):
    """No address of a host could be reached; the text lists each address tried, and its errno."""


class MessageLostError(ConnectionError):
    """A fault that `monarch.testing` injected has lost a call, or its answer.

    The waiting caller gets it when the fault is lifted.
    """

    def __init__(self, message: str, host: str) -> None:
        super().__init__(f"{message} was lost on a link of {host}: a fault was injected there")
        self._arguments = message, host

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by its class: pickle would look it up in `monarch.testing`, which a proc has not
        # loaded.
        return _message_lost, self._arguments


def _message_lost(message: str, host: str) -> MessageLostError:
    return MessageLostError(message, host)


class DebugError(RuntimeError):
    """The debugger cannot do what was requested, because no thread is paused there, or another
    client controls it.
    """


class StacksError(RuntimeError):
    """No stack could be read: py-spy is not installed, or may not trace the processes."""


class QueryError(ValueError):
    """A query was refused or failed; the text is DuckDB's where DuckDB refused it.

    Also raised without DuckDB, with the remedy.
    """


class QueryTimeoutError(QueryError, TimeoutError):
    """A query has not ended within its time-out."""


class JobError(RuntimeError):
    """The hosts of a job could not be allocated, or are gone; or its record cannot be read."""


class SessionError(RuntimeError):
    """A session cannot be kept, resumed or released. Its state is unchanged."""


class BlockedLoopError(RuntimeError):
    """A blocking wait was requested on a thread that must never block."""


class RDMAError(RuntimeError):
    """A transfer to or from an `RDMABuffer` failed.

    The transfer has ended when this is raised: it no longer touches your memory. The destination of
    a read is partly overwritten, and the remote memory of a write may be. `bytes_done` of `size`
    bytes were complete. `buffer` and `owner` describe both for people; `transport` is the name of
    the transport that was used last, or None.
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
    """The handle is invalid: its buffer was dropped, its memory was freed, or it never existed."""


class RDMAOwnerLostError(RDMAError):
    """The process that owns the memory has ended, or its session has."""


class RDMATimeoutError(RDMAError, TimeoutError):
    """The transfer was not done in time, and was abandoned."""


class RDMAUnavailableError(RDMAError):
    """No permitted transport leads to the owner; the text gives the reason for each."""


class StateDictVersionError(RDMAError):
    """The publisher has replaced that version of its state dict, and no longer keeps it.

    `wanted` is the requested version, `newest` the latest that the publisher had.
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
    """A published state dict does not fit the requested one; raised before any byte is copied.

    `missing` names are requested but not published, `unexpected` names are published but not
    requested. `mismatched` maps a name to the difference in words: of dtype, of shape, or elements
    that no publisher has.
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
        mismatched = list(self.mismatched.items())
        lines += [f"{name!r}: {text}" for name, text in mismatched[:_MOST_SHOWN]]
        if len(mismatched) > _MOST_SHOWN:
            lines.append(f"and {len(mismatched) - _MOST_SHOWN:,} more")
        return f"{self.what}: {'; '.join(lines)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.missing, self.unexpected, self.mismatched)


_MOST_SHOWN = 8


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN:,} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(map(repr, names[:_MOST_SHOWN])) + more


class RDMATcpFallbackWarning(Warning):
    """Bytes go over TCP, because no faster transport works here. Warns once for each reason."""


class RDMAReadTransferWarning(Warning):
    """A read moved to another transport because its first one failed. Warns once a reason."""


class RDMAWriteTransferWarning(Warning):
    """A write moved to another transport because its first one failed. Warns once a reason."""


def portable(exception: BaseException | None) -> BaseException | None:
    """The exception if it survives a round trip through pickle, else None."""
    if exception is None:
        return None
    try:
        pickle.loads(pickle.dumps(exception))
    except Exception:
        return None
    return exception


# Tracebacks show where a user imports these from.
for _public in (
    ActorError, BootstrapError, CallCancelled, DeadlockError, ItemError, ItemLostError,
    MeshStoppedError, RestartedError, SupervisionError,
):  # fmt: skip
    _public.__module__ = "monarch.actor"


QueryError.__module__ = "monarch.observe"
StacksError.__module__ = "monarch.observe"


MessageLostError.__module__ = "monarch.testing"


for _public in (
    RDMAError, RDMAHandleError, RDMAOwnerLostError, RDMATimeoutError, RDMAUnavailableError,
    RDMATcpFallbackWarning, RDMAReadTransferWarning, RDMAWriteTransferWarning,
    StateDictMismatchError, StateDictVersionError,
):  # fmt: skip
    _public.__module__ = "monarch.rdma"


SessionError.__module__ = "monarch.session"
