"""The context of running code: its actor, or the client, and the message that it handles."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import msgspec

from monarch._src.actor.checked_names import reason_text
from monarch._src.actor.deadlock.state.waits import ActorWaits
from monarch._src.actor.parts import parts
from monarch._src.failures.report import at_text
from monarch._src.shape import Extent, Point
from monarch._src.wire.ids import parse_proc_node


class ActorId(msgspec.Struct, frozen=True):
    """The name of one actor on one proc. It is never reused."""

    node: str
    uid: int
    name: str

    def __str__(self) -> str:
        return f"{self.node}/{self.name}#{self.uid:x}"


class _OnProc:
    """The process that an actor lives in."""

    __slots__ = ()
    actor_id: ActorId
    proc_ref: Any

    @property
    def proc_id(self) -> str:
        """The node name of the process it lives in; `ProcId.from_string` takes it."""
        return self.actor_id.node

    @property
    def proc(self) -> Any:
        """The process it lives in, as a proc mesh of one."""
        return parts().proc_of(self.proc_ref, self.actor_id.node)

    @property
    def proc_mesh(self) -> Any:
        """The proc mesh that it was spawned on, as a reference. The client has a mesh of one."""
        return parts().mesh_of(self.proc_ref)


class CreatorInstance(_OnProc, msgspec.Struct, frozen=True):
    """The creator of an actor: another actor, or the client, whose own `creator` is None."""

    actor_id: ActorId
    rank: Point
    class_name: str
    creator: CreatorInstance | None = None
    proc_ref: Any = None

    @property
    def name(self) -> str:
        """The name given at spawn; `client` for the client."""
        return self.actor_id.name

    def __repr__(self) -> str:
        return _lineage(self)


End: TypeAlias = Literal["stop", "abort", "kill"]


class ActorInstance(_OnProc, msgspec.Struct, eq=False):
    """One actor as seen from inside. `rank` is its place in the mesh it was spawned in."""

    actor_id: ActorId
    rank: Point
    class_name: str
    waiting: ActorWaits
    proc_ref: Any = None
    ender: Callable[[End, str | None], None] | None = None
    # The endpoint that runs now, and the task that runs it unless calls of it overlap.
    endpoint: str = ""
    task: Any = None
    is_async: bool = False
    find_creator: Callable[[], CreatorInstance | None] | None = None
    thread: int = 0  # the thread that handles its messages
    # Of a sync actor: the Waitable that its thread is blocked on, and since when; a Waitable that
    # is done while a failure is to be checked; and the function that checks it, on that thread.
    blocked_on: Any = None
    blocked_since: float = 0.0
    check_due: Any = None
    check_failures: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self.actor_id.name

    @property
    def creator(self) -> CreatorInstance | None:
        """The creator of this actor.

        None for the client, and for controllers, which have no owner.
        """
        return None if self.find_creator is None else self.find_creator()

    def stop(self, reason: str | None = None) -> None:
        """End this actor after the messages that it has received so far. That is no failure.

        Returns at once. `__cleanup__(None)` runs; later calls raise `SupervisionError`.

        Raises:
            RuntimeError: there is no actor here that could be stopped (client, bootstrap function).
            TypeError: the reason is no text.
        """
        self._end("stop", reason)

    def abort(self, reason: str | None = None) -> None:
        """Make this actor fail now, with that reason and the traceback of this call.

        Returns at once. From here on, running, queued and later calls raise `SupervisionError`. An
        async endpoint is cancelled at its next `await`. A sync endpoint cannot be interrupted: it
        runs to its end, and its value is dropped, so return right after this. Then
        `__cleanup__(SupervisionError)` runs, and the owner's `__supervise__` is called, at the
        latest `cleanup_timeout` after this. The process and its other actors go on. An actor that
        has ended already is left as it is.

        Any thread. On a thread of your own, take the instance from where the actor runs:
        `me = context().actor_instance`.

        Raises:
            RuntimeError: there is no actor here that could be aborted (client, bootstrap function).
            TypeError: the reason is no text.
        """
        self._end("abort", reason)

    def kill(self, reason: str | None = None) -> None:
        """Same as `abort`, except for the word in the failure: Monarch has both names."""
        self._end("kill", reason)

    def _end(self, how: End, reason: str | None) -> None:
        if self.ender is None:
            raise RuntimeError(_no_actor(self.actor_id.node, how))
        self.ender(how, reason_text(reason, "") or None)

    def __repr__(self) -> str:
        return _lineage(self)


def _lineage(instance: ActorInstance | CreatorInstance) -> str:
    names: list[str] = []
    found: ActorInstance | CreatorInstance | None = instance
    while found is not None:
        at = at_text(dict(found.rank))
        is_client = found.class_name == found.name == "client"
        names.append(f"<{'' if is_client else found.class_name + ' '}{found.name}{at}>")
        found = found.creator
    return ".".join(reversed(names))


def _no_actor(node: str, how: End) -> str:
    if parse_proc_node(node) is not None:
        return (
            f"no actor runs on this thread, so there is none to {how}; take "
            "`me = context().actor_instance` where the actor runs, and hand `me` to the thread"
        )
    if how == "stop":
        return "the client itself is ended by shutdown_context()"
    return (
        f"the client is no actor that {how}() could end; raise an exception, or end everything "
        "that it has started with shutdown_context()"
    )


class Context(msgspec.Struct, eq=False):
    """The result of `context()` while a message is handled.

    `origin` is the number of the work that this code is part of; see `frontend.number_calls`.
    `endpoint` is that of this message; while calls overlap, the instance may name another endpoint.
    """

    actor_instance: ActorInstance
    _rank: int
    _labels: list[str]
    _sizes: list[int]
    origin: int = 0
    endpoint: str = ""

    @property
    def message_rank(self) -> Point:
        """This actor's place in the slice that the message was sent to."""
        return Extent(self._labels, self._sizes).point_of_rank(self._rank)

    @property
    def _actor_rank(self) -> Point:
        return self.actor_instance.rank

    def __repr__(self) -> str:
        return f"<Context of {self.actor_instance.actor_id}, message rank {self.message_rank!r}>"


current: ContextVar[Context | None] = ContextVar("monarch_context", default=None)

# Numbers the calls of this process that no message has caused, if set.
_source: Callable[[], int] | None = None


def set_origin_source(source: Callable[[], int] | None) -> None:
    """Set the function that numbers calls, on the calling thread; without it, the number is 0."""
    global _source
    _source = source


def origin_now() -> int:
    """The origin of the running code."""
    context = current.get()
    if context is not None:
        return context.origin
    work = origin_of_work.get()
    if work is not None:
        return work
    return 0 if _source is None else _source()


# Of work that goes on beside the code that has begun it, on a thread of the runtime.
origin_of_work: ContextVar[int | None] = ContextVar("monarch_origin_of_work", default=None)


def origin_of_output() -> int | None:
    """The origin of output written now in a proc; None on a thread of no actor."""
    context = current.get()
    return None if context is None else context.origin


# Set by `actor.runtime`; until that is loaded, this process has no session.
_find_runtime: Callable[[], Any] = lambda: None  # noqa: E731


def set_runtime_lookup(find: Callable[[], Any]) -> None:
    """Set the function that finds the runtime of this process, or None."""
    global _find_runtime
    _find_runtime = find


def runtime_if_loaded() -> Any:
    """The `Runtime` of this process, or None; loads no module."""
    return _find_runtime()
