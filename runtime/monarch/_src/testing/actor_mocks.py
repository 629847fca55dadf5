"""`patch_actor`: spawn another class in place of an actor class. Runs in: the client."""

from __future__ import annotations

from monarch._src.actor.endpoint import Actor
from monarch._src.mesh.mocked_actors import actor_mocks
from monarch._src.testing.class_patch import ClassPatch, check_actor_class


class patch_actor(ClassPatch[type]):
    """Spawn `mock` wherever the program spawns `original`: `with patch_actor(Model, FakeModel):`.

    It holds for spawns within the block, controllers included, and for actors that such actors
    spawn. Actors that exist stay as they are. Processes that got an actor within the block go on
    spawning the mock. It is also an `async with`, and a decorator of functions, `async def` too.

    Args:
        original: an actor class.
        mock: the actor class to spawn. Its constructor gets the same arguments.

    Raises:
        TypeError: one of them is no actor class.
        ValueError: a class breaks a rule of actor classes.
    """

    def __init__(self, original: type[Actor], mock: type[Actor]) -> None:
        check_actor_class("patch_actor: original is", original)
        check_actor_class("patch_actor: mock is", mock)
        super().__init__(actor_mocks, original, mock)
