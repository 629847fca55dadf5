"""The watch of one rank over its process groups: it ends collectives that wait in vain.

Runs in: a rank. `explain` on the thread of an actor whose endpoint has raised, the rest on the
thread of the `GroupMember`, or on any.
Invariant: one watch is active in a process, and `groups_ended` of it is set once.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any

from monarch._src.actor.run.mailbox import caller_of
from monarch._src.actor.runtime import Runtime, runtime
from monarch._src.errors import CollectiveError
from monarch._src.failures.report import RankFailure
from monarch._src.spmd import gloo_sockets
from monarch._src.spmd.state.group_watch import Absence, CallKey, Group, GroupWatch
from monarch._src.spmd.torch_modules import distributed_c10d
from monarch._src.wire.messages import Call

log = logging.getLogger("monarch.spmd")

# How long a rank whose connection has broken waits for the reason, which follows at once. A broken
# network has none.
REASON_S = 3.0
_CONNECTION = re.compile(
    r"gloo.transport|Connection (closed|reset)|Broken pipe|NCCL|nccl|failed to recv|Socket Error"
)
_active: RankWatch | None = None


class RankWatch:
    """One watch, from `begin` until another one begins in this process."""

    def __init__(self, rank: int, report: Callable[[Absence], None]) -> None:
        """`report` tells the peers that an endpoint of this rank has raised. Any thread."""
        self.state = GroupWatch(rank)
        self._report = report
        self.reason_known = threading.Event()  # set when the groups have ended

    def begin(self) -> None:
        """Become the watch of this process. Raises ModuleNotFoundError if torch is missing."""
        global _active
        gloo_sockets.install()
        _active = self
        runtime().hooks.explain_error = _explain

    def close(self) -> None:
        """Watch no more, unless another watch has begun. Idempotent."""
        global _active
        if self.is_active:
            _active = None
            runtime().hooks.explain_error = None

    @property
    def is_active(self) -> bool:
        """Whether no other watch has begun since."""
        return _active is self

    def end_groups(self, why: str) -> bool:
        """End the collectives of this rank, those to come included; whether that is news."""
        news = self.state.on_peer_gone(why)
        if news:
            self._end()
        return news

    def check(self) -> str | None:
        """End the collectives of this rank if they wait in vain; returns the reason."""
        why = self.state.check(groups(), _runs)
        if why is not None:
            self._end()
        return why

    def _end(self) -> None:
        self.reason_known.set()
        if self.is_active:
            abort_groups()

    def explain(self, cell: Any, caller: str, call: Call, error: BaseException) -> BaseException:
        """The error to answer a call with. Tells the peers if this rank has raised by itself."""
        broken = isinstance(error, Exception) and _is_broken_connection(error)
        if broken and self.state.ended is None:
            self.reason_known.wait(REASON_S)
        why = self.state.ended
        if why is not None:
            return _explained(why, error) if broken else error
        here = groups()
        if here:
            key = CallKey(caller, call.call, call.actor, call.endpoint)
            failure: RankFailure = cell.describe(error, "endpoint", call.endpoint)
            begun = {group.name: group.begun for group in here}
            self._report(Absence(self.state.rank, key, begun, _what(failure)))
        return error


def _explain(cell: Any, caller: str, call: Call, error: BaseException) -> BaseException:
    watch = _active
    if watch is None or getattr(cell.instance_object, "__monarch_watches__", False):
        return error
    try:
        return watch.explain(cell, caller, call, error)
    except Exception:
        log.exception("the process groups of this rank could not be looked at")
        return error


def _explained(why: str, error: BaseException) -> CollectiveError:
    explained = CollectiveError(why).with_traceback(error.__traceback__)
    explained.__suppress_context__ = True  # the backend only knows that a connection has ended
    return explained


def _what(failure: RankFailure) -> str:
    place = next((frame for frame in reversed(failure.frames) if frame.user), None)
    return failure.what if place is None else f"{failure.what} ({place.filename}:{place.lineno})"


def _is_broken_connection(error: BaseException) -> bool:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, RuntimeError) and _CONNECTION.search(str(one)):
            return True
        one = one.__cause__ or one.__context__
    return False


def groups() -> list[Group]:
    """The process groups of this rank, as torch knows them."""
    c10d = distributed_c10d()
    found: list[Group] = []
    for group, ranks in list(c10d._world.pg_group_ranks.items()):
        if isinstance(group, c10d.ProcessGroup):  # another object stands for a group without us
            found.append(Group(group.group_name, frozenset(ranks), _begun(group)))
    return found


def _begun(group: Any) -> int:
    """How many collectives and messages this rank has begun in a group, on all its devices."""
    backends = {id(one): one for one in map(group._get_backend, group._device_types)}
    count = 0
    for backend in backends.values():
        try:
            count += int(backend._get_sequence_number_for_group())
        except RuntimeError:
            pass  # this backend does not count
    return count


def abort_groups() -> None:
    """End all collectives of this process, those to come included."""
    gloo_sockets.shut_down()
    c10d = distributed_c10d()
    for group in list(c10d._world.pg_map):
        if isinstance(group, c10d.ProcessGroup):
            try:
                group.abort()
            except RuntimeError as error:  # a backend that cannot
                log.warning("the process group %s was not aborted: %s", group.group_name, error)


def _runs(key: CallKey) -> bool:
    """Whether that call still runs in this process."""
    run: Runtime = runtime()
    for uid, cell in list(run.cells.items()):
        for item in list(_running(cell)):
            call: Call = item[1]
            if key.number:
                if call.call == key.number and caller_of(item) == key.caller:
                    return True
            elif uid == key.actor and call.endpoint == key.endpoint:
                return True
    return False


def _running(cell: Any) -> list[Any]:
    calls: dict[int, Any] = cell.running_calls.calls
    return list(calls.values())
