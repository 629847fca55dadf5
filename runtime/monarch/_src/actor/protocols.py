"""Whom a process's runtime hands messages to: what runs an actor, what reads a port.

Runs in: any process; called on the thread that receives, so all of it is quick and blocks on
nothing.
"""

from __future__ import annotations

from typing import Protocol

from monarch._src.actor.context import ActorInstance
from monarch._src.actor.supervise.ownership import Supervisor
from monarch._src.failures.report import RankFailure
from monarch._src.wire.actor_snapshot_codec import SeenActor
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, StopActor, Undelivered


class LocalActor(Protocol):
    """What runs one actor; see `monarch._src.actor.run.cell`. `dead` says why it has ended."""

    dead: RankFailure | None
    instance: ActorInstance
    supervisor: Supervisor

    @property
    def point(self) -> dict[str, int]:
        """Where it is, as users are told."""
        ...

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Queue a message for it."""
        ...

    def on_undelivered(self, message: Undelivered) -> None:
        """Queue a message of its own that has come back."""
        ...

    def cancel(self, caller: str, number: int) -> None:
        """End that call, which is queued, runs, or is still to come."""
        ...

    def snapshot(self) -> SeenActor:
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
