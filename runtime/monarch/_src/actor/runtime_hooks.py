"""The parts of upper packages that a process's runtime calls: each is an object, set once.

The classes here are those of a process without the part: their methods do nothing, and answer
every question with no. A part derives from its class and takes its place in `RuntimeHooks`. Unless
a method says otherwise, the receiving thread calls it, and it must not block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch._src.failures.report import RankFailure
    from monarch._src.wire.frames import Payload
    from monarch._src.wire.messages import AskData, Bootstrap, Call, SpawnActor, StopActor, StopProc


class ActorHost:
    """The actors of a process; see `actor.run.local_actors`."""

    def spawn(self, _peer: str, spec: SpawnActor, payload: Payload) -> None:
        """Create an actor."""

    def on_unknown_actor(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """A message has arrived for an actor that has not been spawned here."""

    def on_early_cancel(self, actor: int, caller: str, number: int) -> None:
        """A cancellation has arrived for a call of an actor that has not been spawned here."""

    def on_actor_gone(self, cell: Any) -> None:
        """Nothing of an actor runs any more. On the actor's own thread."""


class ProcProgram:
    """The main program of a proc; see `programs.proc`."""

    def on_bootstrap(self, message: Bootstrap, payload: Payload) -> None:
        """Run the bootstrap function before any actor."""

    def on_stop_proc(self, message: StopProc) -> None:
        """Stop all actors, then end the process."""

    def ends_process(self, failure: RankFailure) -> bool:
        """Whether an actor's failure ends the process, which the host agent restarts. Any thread.

        Callers of the actor then receive the end of the process.
        """
        return False

    def end_process(self, failure: RankFailure) -> None:
        """End the process with that failure. Any thread."""


class Debugger:
    """The debugger of a process, from its first use on; see `debug.rank.pauses`."""

    def unpause(self, cell: Any, call: Call | None) -> bool:
        """End the pauses of a call, of an actor, or of all actors. Any thread.

        `call` None: of all code of the actor. `cell` None: of all code of the process. Returns
        whether a thread was paused for it.
        """
        return False

    def on_endpoint_error(self, cell: Any, error: BaseException) -> None:
        """An endpoint has raised. On the actor's own thread, which may pause here."""


class ErrorExplainer:
    """Finds the reasons of errors that name none, as those of collectives; see `spmd.rank_watch`.

    Called on the actor's own thread.
    """

    async def await_reason(self, error: BaseException) -> None:
        """Wait on an event loop until `explain` need not block."""

    def explain(self, _cell: Any, _caller: str, _call: Call, error: BaseException) -> BaseException:
        """The error to answer a call with that has ended with `error`."""
        return error


class RuntimeHooks:
    """The parts that other packages add to a `Runtime`."""

    def __init__(self) -> None:
        self.actors = ActorHost()
        self.program = ProcProgram()
        self.debugger = Debugger()
        self.explainer = ErrorExplainer()
        # Set by the mesh layer in a process that spawns procs: takes a mesh's uid and a rank.
        self.on_proc_ready: Callable[[int, int], None] | None = None
        # Set by the data plane, from its first use on.
        self.on_ask_data: Callable[[str, AskData], None] | None = None
