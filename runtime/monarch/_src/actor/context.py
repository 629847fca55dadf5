"""Who is running: which actor (or the client) this code belongs to, and which message it has."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any

import msgspec

from monarch._src.core.waiting import Waiting
from monarch._src.shape import Extent, Point


class ActorId(msgspec.Struct, frozen=True):
    """The name of one actor on one proc: unique for ever."""

    node: str
    uid: int
    name: str

    def __str__(self) -> str:
        return f"{self.node}/{self.name}#{self.uid:x}"


class ActorInstance(msgspec.Struct, eq=False):
    """One actor as seen from inside. `rank` is its place in the mesh it was spawned in."""

    actor_id: ActorId
    rank: Point
    class_name: str
    creator: str
    waiting: Waiting
    proc_ref: Any = None
    stopper: Callable[[str], None] | None = None
    # What it runs now; the task that runs it, if calls of it do not overlap; what it waits for.
    endpoint: str = ""
    task: Any = None
    waits_for: Any = None

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self.actor_id.name

    @property
    def proc_id(self) -> str:
        """The node name of the process it lives in."""
        return self.actor_id.node

    @property
    def proc(self) -> Any:
        """The process it lives in, as a proc mesh of one."""
        return _make_proc(self.proc_ref)

    def stop(self, reason: str = "stopped by itself") -> None:
        """Stop this actor once its present message and those before it are done."""
        if self.stopper is None:
            raise RuntimeError("the client itself is ended by shutdown_context()")
        self.stopper(reason)


# The mesh layer stands above this one and says how a proc reference becomes a ProcMesh.
_MAKER = "monarch._src.mesh.host_mesh"
_maker: Callable[[Any], Any] | None = None


def set_proc_maker(maker: Callable[[Any], Any]) -> None:
    """Called once by the mesh layer."""
    global _maker
    _maker = maker


def _make_proc(ref: Any) -> Any:
    if _maker is None:
        import_module(_MAKER)
    assert _maker is not None
    return _maker(ref)


class Context:
    """What `context()` returns while a message is handled."""

    __slots__ = ("_labels", "_rank", "_sizes", "actor_instance")

    def __init__(
        self, actor_instance: ActorInstance, rank: int, labels: list[str], sizes: list[int]
    ) -> None:
        self.actor_instance = actor_instance
        self._rank = rank
        self._labels = labels
        self._sizes = sizes

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
