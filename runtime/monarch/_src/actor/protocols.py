"""Whom a process's runtime hands messages to: what runs an actor, what reads a port.

Runs in: any process; called on the thread that receives, so all of it is quick and blocks on
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from monarch._src.actor.context import ActorInstance
from monarch._src.actor.supervise.ownership import Supervisor
from monarch._src.failures.report import RankFailure
from monarch._src.wire.actor_snapshot_codec import SeenActor
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, StopActor, Undelivered

if TYPE_CHECKING:
    from monarch._src.actor.deliver.routes import Routes
    from monarch._src.actor.inspect.agent_client import AgentClient
    from monarch._src.actor.refs import Known, ProcsRef
    from monarch._src.actor.run.tombstones import Tombstones
    from monarch._src.actor.state.endpoint_metrics import MetricsTable
    from monarch._src.net.node import Node


class LocalActor(Protocol):
    """What runs one actor; see `monarch._src.actor.run.cell`. `dead` says why it has ended."""

    dead: RankFailure | None
    instance: ActorInstance
    keeper: Supervisor

    @property
    def point(self) -> dict[str, int]:
        """Where it is, as users are told."""
        ...

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Queue a message for it."""
        ...

    def returned(self, message: Undelivered) -> None:
        """Queue a message of its own that has come back."""
        ...

    def cancel(self, caller: str, number: int) -> None:
        """End that call, which is queued, runs, or is still to come."""
        ...

    def seen(self) -> SeenActor:
        """What it is and has at this moment."""
        ...

    def owes(self, caller: str, number: int, *, overlapping: bool) -> bool:
        """Whether it has that call and can't answer it while it waits."""
        ...


class Receiver(Protocol):
    """What reads a port; see `monarch._src.actor.ports`."""

    def deliver(self, rank: int, status: int, payload: Payload) -> None:
        """A message came."""
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
    workers: dict[int, LocalActor]
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
