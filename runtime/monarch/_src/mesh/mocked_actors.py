"""Actor classes that are spawned in place of others, for tests; see `monarch.testing.patch_actor`.

Runs in: any process that spawns, so actors that spawn others spawn the mocks too.
"""

from __future__ import annotations

from typing import Any, TypeVar

from monarch._src.mesh.mock_registry import MockRegistry

C = TypeVar("C", bound=type)
actor_mocks = MockRegistry[type]("actors")


def mock_of(Class: C) -> C:
    """The class to spawn in place of that one: its mock, or itself."""
    found: Any = actor_mocks.get(Class) if actor_mocks else None
    return found or Class
