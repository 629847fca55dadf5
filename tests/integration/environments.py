"""The environment of each rank."""

from __future__ import annotations

from collections.abc import Callable

from monarch.actor import ProcMesh
from tests.integration.sample_actors import Teller

Spawn = Callable[..., ProcMesh]
KEY = "MONARCH_TEST_KEY"


def environments(procs: ProcMesh) -> list[dict[str, str]]:
    """The environment of each rank."""
    teller = procs.spawn("teller", Teller)
    return [world["env"] for world in teller.process_world.call().get(timeout=60).values()]
