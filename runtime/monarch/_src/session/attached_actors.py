"""An actor mesh that another client has made, in a session that this process attached to.

Runs in: a client that has attached to a session.
"""

from __future__ import annotations

from monarch._src.actor.endpoint import ActorClass, actor_class
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.serialize import unpack_value
from monarch._src.mesh.actor_mesh import Actors
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import KeptActors


class InheritedActors(Actors):
    """Actors that another client has spawned. Their class is unpickled when it is first needed."""

    def __init__(self, kept: KeptActors, payload: Payload, procs: ProcsRef, region: Region) -> None:
        self.uid, self.name, self.class_name = kept.actor, kept.name, kept.class_name
        self.procs, self.region = procs, region
        self.owned, self.recorded = True, True
        self.listed_in = None
        self.stopped = None
        self.failures = {f.rank: f for f in kept.failures}
        self._payload = payload.own()
        self._cls: ActorClass | None = None

    @property
    def cls(self) -> ActorClass:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The actor class."""
        if self._cls is None:
            try:
                self._cls = actor_class(unpack_value(self._payload))
            except Exception as error:
                # Attribute lookup of an endpoint leads here, and may raise only this.
                raise AttributeError(
                    f"{self.class_name}, the class of the actor mesh {self.name!r}, cannot be "
                    f"rebuilt in this process ({type(error).__name__}: {error}); make it "
                    "importable here as it was where the mesh was made, and try again"
                ) from error
        return self._cls
