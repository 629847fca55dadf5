"""The receivers of a runtime's messages: local actors, and ports.

Runs in: any process. The receiving thread calls them, so no method may block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from monarch._src.actor.context import ActorInstance
from monarch._src.actor.supervise.ownership import Supervisor
from monarch._src.failures.report import RankFailure
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, StopActor, Undelivered
from monarch._src.wire.process_codec import SeenActor

if TYPE_CHECKING:
    from monarch._src.actor.deliver.routes import Routes
    from monarch._src.actor.inspect.agent_client import AgentClient
    from monarch._src.actor.refs import Known, ProcsRef
    from monarch._src.actor.run.tombstones import Tombstones
    from monarch._src.actor.state.endpoint_metrics import MetricsTable
    from monarch._src.net.node import Node


class LocalActor(Protocol):
    """The runner of one actor; see `actor.run.cell`. `dead` is the reason of its end, or None."""

    dead: RankFailure | None
    instance: ActorInstance
    supervisor: Supervisor

    @property
    def point(self) -> dict[str, int]:
        """Its coordinates, as shown to users."""
        ...

    @property
    def runs_cancelled_call(self) -> bool:
        """Whether a call that runs here was cancelled by its caller. Any thread."""
        ...

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Queue a message for the actor."""
        ...

    def on_undelivered(self, message: Undelivered) -> None:
        """Queue a message that the actor sent and that could not be delivered."""
        ...

    def cancel(self, caller: str, number: int, *, queued_only: bool = False) -> None:
        """Cancel a call that is queued, runs, or has not arrived yet."""
        ...

    def snapshot(self) -> SeenActor:
        """The present state of the actor."""
        ...

    def owes(self, caller: str, number: int, *, overlapping: bool) -> bool:
        """Whether the actor has that call, and cannot answer it while the actor waits."""
        ...


class Receiver(Protocol):
    """The reader of a port; see `actor.ports`."""

    def deliver(self, rank: int, status: int, payload: Payload) -> None:
        """Take in a message."""
        ...


class InspectedRuntime(Protocol):
    """The parts of a process's runtime (`monarch._src.actor.runtime`) that others inspect."""

    name: str
    rank: int
    node: Node
    known: Known
    routes: Routes
    agent: AgentClient
    metrics: MetricsTable
    cells: dict[int, LocalActor]
    tombstones: Tombstones
    handlers: dict[type, Callable[[str, Any, Payload], None]]

    @property
    def proc_ref(self) -> ProcsRef | None:
        """The mesh of which this process is one; None in a client."""
        ...

    @property
    def client_ref(self) -> ProcsRef | None:
        """The client's process."""
        ...
