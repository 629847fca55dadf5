"""The watch of one rank over its process groups: it ends collectives that wait in vain.

Runs in: a rank. `explain` on the thread of an actor whose endpoint has raised, the rest on the
thread of the `GroupMember`, or on any.
Invariant: one watch is active in a process, and `groups_ended` of it is set once.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from monarch._src.actor.parts import ErrorExplainer
from monarch._src.actor.runtime import runtime
from monarch._src.errors import CollectiveError
from monarch._src.failures.report import RankFailure
from monarch._src.spmd import gloo_sockets
from monarch._src.spmd.collective_errors import Failure, failure_of, tells_of_peer
from monarch._src.spmd.group_plan import CPU
from monarch._src.spmd.left_calls import call_state, ranks_left
from monarch._src.spmd.state.group_watch import (
    MAKING,
    Absence,
    CallKey,
    Group,
    GroupWatch,
)
from monarch._src.spmd.torch_modules import distributed_c10d
from monarch._src.wire.messages import Call

log = logging.getLogger("monarch.spmd")

# How long a rank whose connection has broken waits for the reason, which follows at once. A broken
# network has none.
REASON_S = 3.0
LOOK_S = 0.02
_active: RankWatch | None = None


class RankWatch:
    """One watch, from `begin` until another one begins in this process."""

    def __init__(
        self, rank: int, report: Callable[[Absence], None], report_end: Callable[[str], None]
    ) -> None:
        """Make the watch of a rank. The functions tell its peers something, on any thread.

        Args:
            report: that an endpoint of this rank has raised.
            report_end: why the group of all ranks has ended.
        """
        self.state = GroupWatch(rank)
        self._report = report
        self._report_end = report_end
        self.reason_known = threading.Event()  # set when the groups have ended
        self.has_failed = False  # whether a collective of this rank has failed
        # The last call of each caller to each actor that this rank has left by an exception.
        self.reported: dict[tuple[str, int], Absence] = {}
        self.is_joining = False  # whether the runtime makes the group for which this watch began
        self._made: frozenset[int] = frozenset()  # the ranks of a group that is being made here

    def begin(self) -> None:
        """Become the watch of this process. Raises ModuleNotFoundError if torch is missing."""
        global _active
        gloo_sockets.install()
        _active = self
        runtime().hooks.explainer = _ActiveWatch()

    def close(self) -> None:
        """Watch no more, unless another watch has begun. Idempotent."""
        global _active
        if self.is_active:
            _active = None
            runtime().hooks.explainer = ErrorExplainer()

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

    def raise_if_ended(self) -> None:
        """End the collectives again, and raise a CollectiveError, if they were ended."""
        why = self.state.ended
        if why is not None:
            self._end()
            raise CollectiveError(why)

    def before_making(self, size: int | None) -> None:
        """Raise a CollectiveError if a group that this thread is about to make cannot be whole.

        Once its groups have ended, a rank makes others in a default group of its own. That group is
        watched as the first one was. It cannot be whole if it has more ranks than are left in the
        call that makes it.

        Args:
            size: of a default group; None: the group belongs to the default group that there is.
        """
        if self.state.ended is None:
            return
        left = ranks_left()
        if size is None or self.is_joining or (left is not None and size > left):
            self.raise_if_ended()
        self.state = GroupWatch(self.state.rank)
        self.reason_known = threading.Event()
        self.has_failed = False

    @contextmanager
    def making(self, ranks: Iterable[int]) -> Generator[None]:
        """A thread of this process makes a group, and waits for these ranks."""
        before, self._made = self._made, frozenset(ranks)
        try:
            yield
        finally:
            self._made = before

    def check(self) -> str | None:
        """End the collectives of this rank if they wait in vain; returns the reason."""
        here = groups()
        if self._made:
            here.append(Group(MAKING, self._made, _count_of_groups()))
        why = self.state.check(here, call_state, time.monotonic())
        if why is not None:
            self._end()
        return why

    def _end(self) -> None:
        self.reason_known.set()
        if self.is_active:
            abort_groups()

    async def await_reason(self, error: BaseException) -> None:
        """Wait as `explain` would, but leave the event loop to other tasks."""
        if self._lacks_reason(failure_of(error)):
            import asyncio  # loaded already; a client that imports `monarch.spmd` has no loop

            loop = asyncio.get_running_loop()
            deadline = loop.time() + REASON_S
            # Another thread sets the event.
            while not self.reason_known.is_set() and loop.time() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    def explain(self, cell: Any, caller: str, call: Call, error: BaseException) -> BaseException:
        """The error to answer a call with. Tells the peers if this rank has raised by itself."""
        failure = failure_of(error)
        if self._lacks_reason(failure) and not in_event_loop():
            self.reason_known.wait(REASON_S)
        why = self.state.ended
        if why is not None:
            return error if failure is Failure.NONE else _explained(why, error)
        here = groups()
        described: RankFailure = cell.describe(error, "endpoint", call.endpoint)
        if here and failure is not Failure.NONE:
            self._on_failed(_what(described), here)
            return error
        key = CallKey(caller, call.call, call.actor, call.endpoint)
        begun = {group.name: group.begun for group in here} | {MAKING: _count_of_groups()}
        absence = Absence(self.state.rank, key, begun, _what(described))
        self.reported[caller, call.actor] = absence
        self._report(absence)
        return error

    def _lacks_reason(self, failure: Failure) -> bool:
        return failure is Failure.CONNECTION and self.state.ended is None

    def _on_failed(self, why: str, here: Sequence[Group]) -> None:
        """A collective of this rank has failed, and no peer's end explains it.

        Its connections are broken, so the next `init_process_group` makes the group anew. With
        several groups it is not known which one has failed, and the others may go on.
        """
        self.has_failed = True
        if len(here) == 1 and self.end_groups(why):
            self._report_end(why)


def in_event_loop() -> bool:
    """Whether this thread runs an event loop, which may not be blocked."""
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def active() -> RankWatch | None:
    """The watch of this process."""
    return _active


def reason_of(error: Exception) -> str | None:
    """Why a connection of this rank's process groups has broken; None if it is not known."""
    if isinstance(error, CollectiveError):
        return error.why
    watch = _active
    if watch is None or failure_of(error) is Failure.NONE:
        return None
    if watch.state.ended is None:
        watch.reason_known.wait(REASON_S)
    return watch.state.ended


def is_of_bystander(error: BaseException) -> bool:
    """Whether an endpoint raises this because another rank has died, or has left a collective.

    Does not wait. Without a watch, or before the news of the other rank, the text decides.
    """
    if isinstance(error, CollectiveError):
        return True
    if failure_of(error) is Failure.NONE:
        return False
    return why_ended() is not None or tells_of_peer(error)


def why_ended() -> str | None:
    """Why the process groups of this process have ended; None if they have not."""
    return None if _active is None else _active.state.ended


class _ActiveWatch(ErrorExplainer):
    """Explains errors by the watch of this process."""

    async def await_reason(self, error: BaseException) -> None:
        if _active is not None:
            await _active.await_reason(error)

    def explain(self, cell: Any, caller: str, call: Call, error: BaseException) -> BaseException:
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


def groups() -> list[Group]:
    """The process groups of this rank, as torch knows them."""
    c10d = distributed_c10d()
    found: list[Group] = []
    for group, ranks in list(c10d._world.pg_group_ranks.items()):
        if isinstance(group, c10d.ProcessGroup):  # another object stands for a group without us
            found.append(Group(group.group_name, frozenset(ranks), _begun(group)))
    return found


def _count_of_groups() -> int:
    """How many groups of the default group this rank has begun to make, the default one included.

    Those that only their own ranks make (`use_local_synchronization`) do not count.
    """
    return int(distributed_c10d()._world.group_count)


def _begun(group: Any) -> int:
    """How many collectives and messages this rank has begun in a group, on all its devices."""
    count = 0
    for backend in _backends(group):
        try:
            count += int(backend._get_sequence_number_for_group())
        except RuntimeError:
            pass  # this backend does not count
    return count


def _backends(group: Any) -> list[Any]:
    """The backends of a group, each once."""
    return list({id(one): one for one in map(group._get_backend, group._device_types)}.values())


def abort_groups() -> None:
    """End all collectives of this process, those to come included."""
    gloo_sockets.shut_down()
    c10d = distributed_c10d()
    for group in list(c10d._world.pg_map):
        if isinstance(group, c10d.ProcessGroup):
            for backend in _backends(group):
                _abort(group, backend)


def _abort(group: Any, backend: Any) -> None:
    # Gloo's own abort closes connections without a word to a collective that waits for them. If it
    # comes before gloo has seen that they were shut down, that collective waits for its time-out.
    if backend.name() == CPU:
        return
    try:
        backend.abort()
    except RuntimeError as error:  # a backend that cannot
        log.warning("the process group %s was not aborted: %s", group.group_name, error)
