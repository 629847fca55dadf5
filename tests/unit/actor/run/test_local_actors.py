"""A cancellation that overtakes the message that spawns its actor reaches the actor."""

from __future__ import annotations

from typing import Any, cast

import pytest

from monarch._src.actor.run import local_actors
from monarch._src.actor.run.local_actors import LocalActors
from monarch._src.wire.frames import NO_PAYLOAD
from monarch._src.wire.messages import SpawnActor


class FakeCell:
    """Notes what it is asked to cancel."""

    def __init__(self, _runtime: object, spec: SpawnActor, _payload: object) -> None:
        self.spec = spec
        self.dead = None
        self.cancelled: list[tuple[str, int]] = []

    def cancel(self, caller: str, number: int) -> None:
        self.cancelled.append((caller, number))


class FakeRuntime:
    """A process without a network."""

    def __init__(self) -> None:
        self.hooks = self.terminations = self.tombstones = self
        self.cells: dict[int, Any] = {}
        self.proc_ref = None

    def forget(self, _uid: int) -> None:
        """No actor has ended."""


def test_only_its_own_cancellations_reach_an_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_actors, "ActorCell", FakeCell)
    runtime = cast("Any", FakeRuntime())
    actors = LocalActors(runtime, claim_main=lambda _cell: True)
    for actor, number in ((1, 7), (2, 8), (1, 9)):
        actors.on_early_cancel(actor, "client", number)
    for actor in (1, 2, 1):
        spec = SpawnActor(actor, "a", "A", 1, "workers", 0, [], [], "")
        actors.spawn("client", spec, NO_PAYLOAD)
        expected = [("client", 7), ("client", 9)] if actor == 1 else [("client", 8)]
        assert runtime.cells[actor].cancelled == expected
        runtime.cells[actor].cancelled = []
        if actor == 1:
            actors.on_early_cancel(1, "client", 7)
            actors.on_early_cancel(1, "client", 9)
