"""Who is running: which actor (or the client) this code belongs to, and which message it has."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Literal, TypeAlias

import msgspec

from monarch._src.actor.checked_names import reason_text
from monarch._src.actor.deadlock.state.waits import ActorWaits
from monarch._src.failures.report import at_text
from monarch._src.shape import Extent, Point
from monarch._src.wire.ids import parse_proc_node


class ActorId(msgspec.Struct, frozen=True):
    """The name of one actor on one proc: unique for ever."""

    node: str
    uid: int
    name: str

    def __str__(self) -> str:
        return f"{self.node}/{self.name}#{self.uid:x}"


class CreatorInstance(msgspec.Struct, frozen=True):
    """Who spawned an actor: another actor, or the client, whose `creator` is None."""

    actor_id: ActorId
    rank: Point
    class_name: str
    creator: CreatorInstance | None = None
    proc_ref: Any = None

    @property
    def name(self) -> str:
        """The name given at spawn; `client` for the client."""
        return self.actor_id.name

    @property
    def proc_id(self) -> str:
        """The node name of the process it lives in."""
        return self.actor_id.node

    @property
    def proc(self) -> Any:
        """The process it lives in, as a proc mesh of one."""
        return _make_proc(self.proc_ref, self.actor_id.node)

    def __repr__(self) -> str:
        return _lineage(self)


End: TypeAlias = Literal["stop", "abort", "kill"]


class ActorInstance(msgspec.Struct, eq=False):
    """One actor as seen from inside. `rank` is its place in the mesh it was spawned in."""

    actor_id: ActorId
    rank: Point
    class_name: str
    creator_node: str
    waiting: ActorWaits
    proc_ref: Any = None
    ender: Callable[[End, str | None], None] | None = None
    # What it runs now; the task that runs it, if calls of it do not overlap.
    endpoint: str = ""
    task: Any = None
    is_async: bool = False
    find_creator: Callable[[], CreatorInstance | None] | None = None
    thread: int = 0  # the one that takes its messages, so that it takes none while that one waits
    # Of a sync actor: what its thread is blocked on, what becomes done when its supervisor is to be
    # asked meanwhile, and what asks it then.
    blocked_on: Any = None
    check_due: Any = None
    check_failures: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self.actor_id.name

    @property
    def proc_id(self) -> str:
        """The node name of the process it lives in; `ProcId.from_string` takes it."""
        return self.actor_id.node

    @property
    def proc(self) -> Any:
        """The process it lives in, as a proc mesh of one."""
        return _make_proc(self.proc_ref, self.actor_id.node)

    @property
    def creator(self) -> CreatorInstance | None:
        """Who spawned it. None for the client, and for a controller, which belongs to nobody."""
        return None if self.find_creator is None else self.find_creator()

    def stop(self, reason: str | None = None) -> None:
        """End this actor when the messages that it has by now are done. That is no failure.

        Returns at once. `__cleanup__(None)` runs; whoever calls it later gets `SupervisionError`.

        Raises:
            RuntimeError: there is no actor here that could be stopped (client, bootstrap function).
            TypeError: the reason is no text.
        """
        self._end("stop", reason)

    def abort(self, reason: str | None = None) -> None:
        """Let this actor fail now, for that reason, told with the place where this was called.

        Returns at once. From here on the calls in progress, what is queued and what comes later
        are answered with `SupervisionError`. An async endpoint is cancelled where it waits next; a
        sync one cannot be interrupted, runs on to its end, and its value is dropped, so return
        right after. Then `__cleanup__(SupervisionError)` runs, and the owner's `__supervise__` is
        told: at the latest `cleanup_timeout` after this, whatever the actor still does. The
        process, and other actors in it, live on. On an actor that has ended already: nothing.

        Any thread. In the client, or a thread that is no actor's, take the instance from where
        the actor runs: `me = context().actor_instance`.

        Raises:
            RuntimeError: there is no actor here that could be aborted (client, bootstrap function).
            TypeError: the reason is no text.
        """
        self._end("abort", reason)

    def kill(self, reason: str | None = None) -> None:
        """The same as `abort`, but for the word in the failure: Monarch has both names."""
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
        f"the client is no actor that {how}() could end; raise an exception, or end all that it "
        "has started with shutdown_context()"
    )


# The mesh layer stands above this one and says how a proc reference becomes a ProcMesh.
_MAKER = "monarch._src.mesh.host_mesh"
_maker: Callable[[Any, str], Any] | None = None


def set_proc_maker(maker: Callable[[Any, str], Any]) -> None:
    """Called once by the mesh layer."""
    global _maker
    _maker = maker


def _make_proc(ref: Any, node: str) -> Any:
    if _maker is None:
        import_module(_MAKER)
    assert _maker is not None
    return _maker(ref, node)


class Context(msgspec.Struct, eq=False):
    """What `context()` returns while a message is handled.

    `origin`: what this is done for, as whoever began it has numbered that; see
    `observe.number_calls`. `endpoint`: of this message; that of the instance is another one's while
    calls overlap.
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

# What gives calls of this process that no message has caused their origin, if anything does.
_source: Callable[[], int] | None = None


def set_origin_source(source: Callable[[], int] | None) -> None:
    """Have `source`, called on the thread that calls, number what calls are made for; None: 0."""
    global _source
    _source = source


def origin_now() -> int:
    """What whatever runs here is done for."""
    context = current.get()
    if context is not None:
        return context.origin
    return 0 if _source is None else _source()


def origin_of_output() -> int | None:
    """The same for what is written in a proc; None on a thread that nobody knows."""
    context = current.get()
    return None if context is None else context.origin
