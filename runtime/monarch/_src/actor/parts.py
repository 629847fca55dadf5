"""The features of higher packages that a process and its meshes call, as hooks and as parts.

Invariants: neither this package nor `mesh` imports such a feature.

Hooks are objects, set once in the `RuntimeHooks` of a runtime by a feature that is loaded. Their
classes here are those of a process without the feature: the methods do nothing, and answer every
question with no. A feature derives from its class and takes its place. Unless a method says
otherwise, the receiving thread calls it, and it must not block.

`Parts` has a method for each feature that is loaded by its first use, so that a process that nobody
debugs does not load the debugger. `monarch._src.programs.parts` implements them, on any thread; it
sets them before the process has a runtime, and imports each feature when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from datetime import timedelta

    from monarch._src.failures.report import RankFailure
    from monarch._src.wire.frames import Payload
    from monarch._src.wire.messages import (
        AskData,
        Bootstrap,
        BreakIn,
        BridgeBytes,
        Call,
        DebugCommand,
        EndpointWait,
        KeepFailures,
        ReadCalls,
        ReadTable,
        SetBridge,
        SetHistory,
        SpawnActor,
        StopActor,
        StopProc,
        TableRead,
    )


# --- hooks ----------------------------------------------------------------------------------------


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


# --- parts ----------------------------------------------------------------------------------------


class Parts(Protocol):
    """A method for each feature.

    Where higher packages have the class, a type is Any: `run` is the `Runtime` of this process, and
    `procs` a `ProcMesh`.
    """

    # Of the runtime. All but the first are called on the receiving thread.

    def begin_history(self) -> None:
        """Switch history on if the settings say so. Called when the process gets its node."""
        ...

    def set_history(self, message: SetHistory) -> None:
        """Switch history on or off."""
        ...

    def read_calls(self, run: Any, peer: str, message: ReadCalls) -> None:
        """Answer a reader of a timeline."""
        ...

    def read_table(self, run: Any, message: ReadTable) -> TableRead:
        """The rows of this process that a query wants."""
        ...

    def endpoint_waits(self, run: Any) -> list[EndpointWait]:
        """The waits of this process, longest first."""
        ...

    def debug(
        self,
        run: Any,
        message: DebugCommand | KeepFailures | BreakIn | SetBridge | BridgeBytes,
    ) -> None:
        """Handle a message of a console or an editor."""
        ...

    # Of users' objects. Called on the thread of the user.

    def proc_of(self, ref: Any, node: str) -> Any:
        """The process of that node as a ProcMesh; without a reference, the calling process."""
        ...

    def mesh_of(self, ref: Any) -> Any:
        """The whole ProcMesh of a reference; without one, the calling process."""
        ...

    def sync_workspace(self, hosts: Any, workspace: Any, reload: bool) -> Any:
        """See `HostMesh.sync_workspace`."""
        ...

    def init_process_group(
        self, procs: Any, backend: str | None, timeout: float | timedelta | None
    ) -> None:
        """See `ProcMesh.init_process_group`."""
        ...

    def remake_process_groups(self, procs: Any, ranks: Sequence[int]) -> Awaitable[list[str]]:
        """Make the groups again that had these restarted ranks; lines about those it could not."""
        ...

    def device_mesh(self, procs: Any, backend: str | None) -> Any:
        """See `ProcMesh.device_mesh`."""
        ...

    def activate(self, procs: Any, device: Any) -> Any:
        """See `ProcMesh.activate`."""
        ...

    def deactivate(self, procs: Any) -> None:
        """See `ProcMesh.deactivate`."""
        ...

    def process_group(self, procs: Any, dims: str | Sequence[str], timeout: float | str) -> Any:
        """See `ProcMesh.process_group`."""
        ...

    def rank_tensor(self, procs: Any, dim: str) -> Any:
        """See `ProcMesh.rank_tensor`."""
        ...

    # Of trainings.

    def stacks_text(self, procs: Any, timeout_s: float) -> str:
        """The stacks of the ranks of a mesh or slice, or why they cannot be read."""
        ...


_parts: Parts | None = None


def set_parts(parts: Parts) -> None:
    """Set the features of this process. Called by `programs.parts`."""
    global _parts
    _parts = parts


def parts() -> Parts:
    """The features of this process.

    Raises:
        RuntimeError: they have not been set.
    """
    if _parts is None:
        raise RuntimeError("the runtime of this process is not complete; import monarch.actor")
    return _parts
