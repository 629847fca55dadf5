"""`context()` and its relatives: what running code can learn about its own actor."""

from __future__ import annotations

from contextvars import Token
from typing import Any, TypeVar, overload

from monarch._src.actor.context import Context, current
from monarch._src.actor.runtime import runtime, runtime_or_none
from monarch._src.shape import Point

T = TypeVar("T")


def context() -> Context:
    """The context of the running code: its actor and message, or the client."""
    return current.get() or runtime().root


class ContextVariable:
    """`context()` with the interface of a context variable. Reading it starts no session."""

    name = "monarch.actor_mesh._context"

    @overload
    def get(self) -> Context | None: ...
    @overload
    def get(self, default: T) -> Context | T: ...
    def get(self, default: Any = None) -> Any:
        """The context of the running code.

        The default, in a client without a session and on a proc's thread that runs no actor.
        """
        found = current.get()
        if found is None:
            run = runtime_or_none()
            if run is None or run.proc_ref is not None:
                return default
            found = run.root
        return found

    def set(self, context: Context | None) -> Token[Context | None]:
        """Set the context of the current thread or task."""
        return current.set(context)

    def reset(self, token: Token[Context | None]) -> None:
        """Undo a `set`."""
        current.reset(token)

    def __repr__(self) -> str:
        return f"<ContextVariable {self.name!r}>"


context_variable = ContextVariable()


def current_rank() -> Point:
    """This actor's point in the slice that the current message was sent to."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """The dimensions of that slice, with their sizes."""
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """The name and point of the running actor."""
    instance = context().actor_instance
    return f"{instance.name}{dict(instance.rank) or ''}"
