"""Who runs this code: what an actor, or the client, can ask about itself."""

from __future__ import annotations

from contextvars import Token
from typing import Any, TypeVar, overload

from monarch._src.actor.context import Context, current
from monarch._src.actor.runtime import runtime, runtime_or_none
from monarch._src.shape import Point

T = TypeVar("T")


def context() -> Context:
    """Who runs this code: the actor and message at hand, or the client."""
    return current.get() or runtime().root


class ContextVariable:
    """`context()` as a context variable has it: it can be looked at without beginning a session."""

    name = "monarch.actor_mesh._context"

    @overload
    def get(self) -> Context | None: ...
    @overload
    def get(self, default: T) -> Context | T: ...
    def get(self, default: Any = None) -> Any:
        """The context of this code; of a client that has no session yet, and of a thread of a
        proc that is no actor's, the default.
        """
        found = current.get()
        if found is None:
            run = runtime_or_none()
            if run is None or run.proc_ref is not None:
                return default
            found = run.root
        return found

    def set(self, context: Context | None) -> Token[Context | None]:
        """Have what runs here, in this thread or task, be that of `context`."""
        return current.set(context)

    def reset(self, token: Token[Context | None]) -> None:
        """Undo a `set`."""
        current.reset(token)

    def __repr__(self) -> str:
        return f"<ContextVariable {self.name!r}>"


context_variable = ContextVariable()


def current_rank() -> Point:
    """This actor's place in the slice that the present message was sent to."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """The dims and sizes of that slice."""
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """The name and place of the actor that runs this code."""
    instance = context().actor_instance
    return f"{instance.name}{dict(instance.rank) or ''}"
