"""The hooks of a process's runtime: functions that upper packages assign, each at most once.

A hook that is None is not needed in this process: its message is ignored, or its question has the
default answer. Unless it says otherwise, a hook is called on the receiving thread and must not
block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch._src.failures.report import RankFailure
    from monarch._src.wire.frames import Payload
    from monarch._src.wire.messages import AskData, Bootstrap, Call, SpawnActor, StopActor, StopProc


class RuntimeHooks:
    """The functions that other packages add to a `Runtime`."""

    def __init__(self) -> None:
        # Set by `actor.run.local_actors` in every process that runs actors.
        self.on_spawn: Callable[[str, SpawnActor, Payload], None] | None = None
        self.on_unknown_actor: Callable[[str, Call | StopActor, Payload], None] | None = None
        # The actor, the caller, and the number of its call, which is cancelled.
        self.on_early_cancel: Callable[[int, str, int], None] | None = None
        # On the actor's own thread, when nothing of the actor runs any more.
        self.on_actor_gone: Callable[[Any], None] | None = None

        # Set by the main program of a proc.
        self.on_bootstrap: Callable[[Bootstrap, Payload], None] | None = None
        self.on_stop_proc: Callable[[StopProc], None] | None = None
        # In a proc that the host agent restarts when it dies. `ends_process` tells whether an
        # actor's failure ends the proc, and `end_process` does so; callers of the actor then
        # receive the end of the process. Both are called on any thread.
        self.ends_process: Callable[[RankFailure], bool] | None = None
        self.end_process: Callable[[RankFailure], None] | None = None

        # Set by the mesh layer in a process that spawns procs: takes a mesh's uid and a rank.
        self.on_proc_ready: Callable[[int, int], None] | None = None

        # Set by the data plane, from its first use on.
        self.on_ask_data: Callable[[str, AskData], None] | None = None

        # Set by the debugger, from its first use on. `unpause` ends the pause of an actor, or of
        # one of its calls, and returns whether there was one; None stands for all actors.
        self.unpause: Callable[[Any, Call | None], bool] | None = None
        # On the actor's own thread, with the exception that its endpoint has raised.
        self.on_endpoint_error: Callable[[Any, BaseException], None] | None = None

        # Set by the watch of process groups, from its first use on. On the actor's own thread, with
        # the caller of a call and the exception that ended it; returns the one to answer with.
        self.explain_error: Callable[[Any, str, Call, BaseException], BaseException] | None = None
        # Before that on an event loop: waits for what explains the exception.
        self.await_explanation: Callable[[BaseException], Awaitable[None]] | None = None
